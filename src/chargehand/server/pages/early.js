// Runs before the pages: a chosen theme never flashes the other one, and what they ask first is on its way while they load.
try {
  const chosen = localStorage.getItem("chargehand.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage is refused: the system's theme counts.
}
const paths = { "/": location.search === "" ? ["/session", "/missions?limit=50"] : ["/session"], "/login": [] };
window.early = new Map(
  (paths[location.pathname] ?? ["/session", "/missions?limit=1"]).map((path) => [
    path,
    fetch(`/api/v1${path}`, { headers: { Accept: "application/json" } }).catch(() => null),
  ]),
);
