// Before the first paint, so that a chosen theme never flashes the other one.
try {
  const chosen = localStorage.getItem("chargehand.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage is refused: the system's theme counts.
}
