/** The colours of both sides of a change: by the whole file if it is known, otherwise hunk by hunk. */
import type { Word } from "./grammar";
import type { DiffLine } from "./patch";

export type Side = "old" | "new";
export type Colours = Readonly<Record<Side, ReadonlyMap<number, readonly Word[]>>>;
export type Texts = Readonly<Record<Side, string | null>>;
/** Consecutive lines, starting at number `first`. */
export interface Part {
  side: Side;
  first: number;
  text: string;
}

// Characters of all parts together: more would take a browser seconds.
const MOST = 600_000;

/** Returns the parts to parse, or no parts if they are too long; `lines` are those of the change. */
export function partsOf(lines: readonly DiffLine[], texts: Texts | null): Part[] {
  const parts = (["old", "new"] as const).flatMap((side) => {
    const whole = texts?.[side];
    return whole == null ? hunkParts(lines, side) : [{ side, first: 1, text: whole }];
  });
  return parts.reduce((sum, { text }) => sum + text.length, 0) > MOST ? [] : parts;
}

function hunkParts(lines: readonly DiffLine[], side: Side): Part[] {
  const parts: Part[] = [];
  let next = -1;
  for (const line of lines) {
    const number = line[side];
    if (number === null) continue;
    const last = parts.at(-1);
    if (last && number === next) last.text += `\n${line.text}`;
    else parts.push({ side, first: number, text: line.text });
    next = number + 1;
  }
  return parts;
}

/** Returns the colours of parts by line number; `coloured` has the lines of each part. */
export function coloursOf(parts: readonly Part[], coloured: readonly (readonly Word[])[][]): Colours {
  const sides = { old: new Map<number, readonly Word[]>(), new: new Map<number, readonly Word[]>() };
  parts.forEach(({ side, first }, at) => coloured[at]?.forEach((words, index) => sides[side].set(first + index, words)));
  return sides;
}

/**
 * Returns the words of a line, or `null` if its text differs from the coloured text: that was another version of
 * the file.
 */
export function wordsOf(colours: Colours | null, line: DiffLine, side: Side): readonly Word[] | null {
  const number = line[side];
  const words = number === null ? null : colours?.[side].get(number);
  return words && words.map(([, text]) => text).join("") === line.text ? words : null;
}
