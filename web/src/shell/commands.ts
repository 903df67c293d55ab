/** Commands available on every page, by key or through the command palette. */
import { useNavigate } from "@tanstack/react-router";
import { useMemo } from "react";
import { toggleTheme } from "./theme";

export interface Command {
  title: string;
  /** The keys, pressed one after the other; "" if there are none. */
  keys: string;
  run: () => void;
}

export type Open = "palette" | "help" | "new" | null;

export function useCommands(open: (what: Open) => void): Command[] {
  const navigate = useNavigate();
  return useMemo(() => {
    const go = (to: string) => () => void navigate({ to });
    return [
      { title: "Go to the board", keys: "g b", run: go("/") },
      { title: "Go to agents and models", keys: "g a", run: go("/agents") },
      { title: "Go to projects", keys: "g p", run: go("/projects") },
      { title: "Go to statistics", keys: "g t", run: go("/statistics") },
      { title: "Go to decisions", keys: "g d", run: go("/decisions") },
      { title: "Go to system", keys: "g s", run: go("/system") },
      { title: "Go to settings", keys: "g c", run: go("/settings") },
      { title: "Go to accounts and tokens", keys: "g u", run: go("/accounts") },
      { title: "New mission", keys: "c", run: () => open("new") },
      { title: "Show only missions that need you", keys: "g w", run: () => void navigate({ to: "/", search: { status: "waiting" } }) },
      { title: "Find a mission or a command", keys: "/", run: () => open("palette") },
      { title: "Keyboard help", keys: "?", run: () => open("help") },
      { title: "Switch between light and dark", keys: "t", run: toggleTheme },
    ];
  }, [navigate, open]);
}
