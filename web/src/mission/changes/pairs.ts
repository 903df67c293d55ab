import type { DiffLine } from "./patch";

/** A row of a side-by-side view: the old and the new line; a `hunk` or a note spans both sides (`over`). */
export interface PairedLine {
  old: DiffLine | null;
  new: DiffLine | null;
  over: DiffLine | null;
}

/** Returns the rows of a side-by-side view: a removed line next to the added line that replaces it. */
export function pairLines(lines: readonly DiffLine[]): PairedLine[] {
  const rows: PairedLine[] = [];
  let removed: DiffLine[] = [];
  let added: DiffLine[] = [];
  const settle = () => {
    for (let at = 0; at < Math.max(removed.length, added.length); at += 1) rows.push({ old: removed[at] ?? null, new: added[at] ?? null, over: null });
    removed = [];
    added = [];
  };
  for (const line of lines) {
    if (line.kind === "removed") {
      // A removal after additions starts another change.
      if (added.length > 0) settle();
      removed.push(line);
    } else if (line.kind === "added") added.push(line);
    else {
      settle();
      rows.push(line.kind === "context" ? { old: line, new: line, over: null } : { old: null, new: null, over: line });
    }
  }
  settle();
  return rows;
}
