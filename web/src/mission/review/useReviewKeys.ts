import { useEffect, useEffectEvent } from "react";
import { dialogIsOpen, isPlainKey, isWriting, PAUSE_MS } from "../../shell/keys";
import type { Act } from "./decisions";
import type { Shown } from "./ReviewTab";

const ACTS: Readonly<Record<string, Act>> = {
  j: { type: "move", by: 1 },
  k: { type: "move", by: -1 },
  a: { type: "decide", decision: "accepted" },
  r: { type: "decide", decision: "rejected" },
  A: { type: "acceptFile" },
  n: { type: "nextFile" },
  u: { type: "undo" },
};
const SHOWS: Readonly<Record<string, Shown>> = { c: "comment", "?": "help", f: "finish" };

/** The keys of a review. They take precedence over those of the page, except after `g`. */
export function useReviewKeys(act: (made: Act) => void, show: (what: Shown) => void): void {
  const press = useEffectEvent((event: KeyboardEvent) => {
    const made = ACTS[event.key];
    const shown = SHOWS[event.key];
    if (made) act(made);
    else if (shown) show(shown);
    else return;
    event.preventDefault();
  });
  useEffect(() => {
    let asked = -Infinity;
    const listener = (event: KeyboardEvent) => {
      if (!isPlainKey(event) || isWriting(event.target) || dialogIsOpen()) return;
      const goes = event.timeStamp - asked <= PAUSE_MS;
      asked = event.key === "g" ? event.timeStamp : -Infinity;
      if (!goes) press(event);
    };
    document.addEventListener("keydown", listener, true);
    return () => document.removeEventListener("keydown", listener, true);
  }, []);
}
