/** Keyboard sequences such as `g b`: one key after the other, within a second and a half. */

export const PAUSE_MS = 1500;

export class KeySequence {
  private typed = "";
  private last = -Infinity;

  /** Returns which of `known` sequences `key` completes at `now` (ms), null where it completes none. */
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

/** Whether a key belongs to a control that is written in, and to no shortcut. */
export function isWriting(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement &&
    (target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName))
  );
}

/** Whether a dialog or a menu has the keys. */
export function dialogIsOpen(): boolean {
  return document.querySelector("dialog[open], [role=menu]") !== null;
}

/** Returns what was pressed before the pages stood, as `public/early.js` kept it; from now on nobody keeps anything. */
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
