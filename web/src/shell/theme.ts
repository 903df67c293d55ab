import { useSyncExternalStore } from "react";
import { writeStored } from "../storage";

export type Theme = "light" | "dark";

const KEY = "chargehand.theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();

function current(): Theme {
  const chosen = document.documentElement.dataset["theme"];
  if (chosen === "light" || chosen === "dark") return chosen;
  return system.matches ? "dark" : "light";
}

export function toggleTheme(): void {
  const next: Theme = current() === "dark" ? "light" : "dark";
  const asSystem = (next === "dark") === system.matches;
  if (asSystem) delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = next;
  writeStored(KEY, asSystem ? null : next);
  for (const listener of listeners) listener();
}

export function useTheme(): Theme {
  return useSyncExternalStore((listener) => {
    listeners.add(listener);
    system.addEventListener("change", listener);
    return () => {
      listeners.delete(listener);
      system.removeEventListener("change", listener);
    };
  }, current);
}
