import { useEffect, useEffectEvent } from "react";
import { dialogIsOpen, isPlainKey, isWriting, KeySequence, opensPalette, takeEarlyKeys } from "./keys";
import type { Command, Open } from "./commands";

/** Runs commands by their keys, except while a person writes or a dialog is open. */
export function useShortcuts(commands: readonly Command[], open: (what: Open) => void): void {
  const press = useEffectEvent((event: KeyboardEvent, sequence: KeySequence) => {
    if (opensPalette(event)) {
      event.preventDefault();
      open("palette");
      return;
    }
    if (event.defaultPrevented || !isPlainKey(event) || isWriting(event.target) || dialogIsOpen()) return;
    const keys = sequence.press(event.key, event.timeStamp, commands.map((command) => command.keys));
    const command = keys ? commands.find((candidate) => candidate.keys === keys) : undefined;
    if (!command) return;
    event.preventDefault();
    command.run();
  });
  useEffect(() => {
    const sequence = new KeySequence();
    for (const event of takeEarlyKeys()) press(event, sequence);
    const listener = (event: KeyboardEvent) => press(event, sequence);
    document.addEventListener("keydown", listener);
    return () => document.removeEventListener("keydown", listener);
  }, []);
}
