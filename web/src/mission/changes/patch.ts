/** Parses a unified diff into numbered lines; lines of unknown form are kept as context. */

export type LineKind = "hunk" | "context" | "added" | "removed" | "note";

export interface DiffLine {
  kind: LineKind;
  old: number | null;
  new: number | null;
  text: string;
}

const HUNK = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@/;

export function readPatch(patch: string): DiffLine[] {
  const lines: DiffLine[] = [];
  let before = 0;
  let after = 0;
  let inHunk = false;
  const rows = patch.split("\n");
  if (rows.at(-1) === "") rows.pop();
  for (const row of rows) {
    const hunk = HUNK.exec(row);
    if (hunk) {
      before = Number(hunk[1]);
      after = Number(hunk[2]);
      inHunk = true;
      lines.push({ kind: "hunk", old: null, new: null, text: row });
    } else if (!inHunk || row.startsWith("diff --git ")) {
      inHunk = false;
      // The view shows most of the lines before the first hunk in the file's header. These appear only here.
      const text = row.startsWith("GIT binary") ? "Binary files differ" : row;
      if (/^(Binary files|old mode|new mode|rename |similarity )/.test(text)) lines.push({ kind: "note", old: null, new: null, text });
    } else if (row.startsWith("+")) lines.push({ kind: "added", old: null, new: after++, text: row.slice(1) });
    else if (row.startsWith("-")) lines.push({ kind: "removed", old: before++, new: null, text: row.slice(1) });
    else if (row.startsWith("\\")) lines.push({ kind: "note", old: null, new: null, text: row.slice(2) });
    else lines.push({ kind: "context", old: before++, new: after++, text: row.slice(1) });
  }
  return lines;
}
