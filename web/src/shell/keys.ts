/** Keyboard sequences such as `g b`: one key after the other, within a second and a half. */

export const PAUSE_MS = 1500;

export class KeySequence {
  private typed = "";
  private last = -Infinity;

  /** Returns the sequence of `known` that `key` completes at `now` (ms), null if it completes none. */
  press(key: string, now: number, known: readonly string[]): string | null {
    const before = now - this.last <= PAUSE_MS && this.typed !== "" ? `${this.typed} ` : "";
    this.last = now;
    for (const candidate of [before + key, key]) {
      if (known.includes(candidate)) {
        this.typed = "";
        return candidate;
      }
      if (known.some((sequence) => sequence.startsWith(`${candidate} `))) {
        this.typed = candidate;
        return null;
      }
    }
    this.typed = "";
    return null;
  }
}

interface Typed {
  key: string;
  ctrlKey: boolean;
  metaKey: boolean;
  altKey: boolean;
}

/** Whether a key belongs to a text control and is not a shortcut. */
export function isWriting(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement &&
    (target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName))
  );
}

/** Whether a dialog or a menu receives the keys. */
export function dialogIsOpen(): boolean {
  return document.querySelector("dialog[open], [role=menu]") !== null;
}

/** Returns the keys that `public/early.js` recorded before the pages were ready, and ends the recording. */
export function takeEarlyKeys(kept = globalThis as { earlyKeys?: KeyboardEvent[] | null }): KeyboardEvent[] {
  const keys = kept.earlyKeys ?? [];
  kept.earlyKeys = null;
  return keys;
}

export function isPlainKey(event: Typed): boolean {
  return !event.ctrlKey && !event.metaKey && !event.altKey;
}

export function opensPalette(event: Typed): boolean {
  return (event.ctrlKey || event.metaKey) && !event.altKey && event.key.toLowerCase() === "k";
}
