// Runs before the pages: a chosen theme never flashes the other one, what they ask first is on its way, no key is lost.
let session = null;
try {
  session = localStorage.getItem("chargehand.session");
  const chosen = localStorage.getItem("chargehand.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage is refused: the system's theme counts.
}
// Keys that are pressed before the pages stand are theirs once they do: see `takeEarlyKeys`.
window.earlyKeys = [];
document.addEventListener("keydown", (event) => {
  if (!window.earlyKeys || window.earlyKeys.length > 8 || event.target !== document.body) return;
  window.earlyKeys.push(event);
  // Else the browser takes it for a search of its own.
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") event.preventDefault();
});
const paths = { "/": location.search === "" ? ["/session", "/missions?limit=50"] : ["/session"], "/login": [] };
window.early = new Map(
  (session === null ? [] : paths[location.pathname] ?? ["/session", "/missions?limit=1"]).map((path) => [
    path,
    fetch(`/api/v1${path}`, { credentials: "omit", headers: { Accept: "application/json", Authorization: `Bearer ${session}` } }).catch(() => null),
  ]),
);
