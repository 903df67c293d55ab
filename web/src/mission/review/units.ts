/** A review as what is decided on one by one: hunks in the order in which they are read. */
import type { ChangeReview, ReviewFile, ReviewHunk, ReviewMark } from "../../api/contract";
import { readPatch, type DiffLine } from "../changes/patch";

export interface Unit {
  id: string;
  path: string;
  hunk: ReviewHunk;
}

/** Returns the files by risk as they come, but the tests of a file right after it. */
export function orderFiles(files: readonly ReviewFile[]): ReviewFile[] {
  const byPath = new Map(files.map((file) => [file.path, file]));
  const covered = new Set(files.filter(({ kind }) => kind === "code").flatMap(({ tests }) => tests));
  const ordered = new Set<ReviewFile>();
  for (const file of files) {
    // A test that says something alarming by itself keeps its own place.
    if (file.kind === "test" && covered.has(file.path) && file.risk < ALARMING) continue;
    ordered.add(file);
    for (const path of file.tests) {
      const test = byPath.get(path);
      if (test) ordered.add(test);
    }
  }
  return [...ordered, ...files.filter((file) => !ordered.has(file))];
}

const ALARMING = 0.5;

export function unitsOf(files: readonly ReviewFile[]): Unit[] {
  return files.flatMap((file) => file.hunks.map((hunk) => ({ id: hunk.id, path: file.path, hunk })));
}

/** Returns the lines of each hunk of a file, none for what has no lines; the `@@` lines are left out. */
export function linesOf(file: ReviewFile): DiffLine[][] {
  const parts: DiffLine[][] = [];
  for (const line of readPatch(file.patch)) {
    if (line.kind === "hunk") parts.push([]);
    else parts.at(-1)?.push(line);
  }
  return file.hunks.map((_, index) => parts[index] ?? []);
}

/** Returns the marks of a file that stand in none of its hunks (`null`), or in this one. */
export function marksIn(review: ChangeReview, file: ReviewFile, hunk: ReviewHunk | null): ReviewMark[] {
  const inside = (line: number | null, { new_start, new_lines }: ReviewHunk) =>
    line !== null && line >= new_start && line < new_start + Math.max(new_lines, 1);
  return review.marks.filter(
    ({ path, line }) =>
      path === file.path && (hunk ? inside(line, hunk) : !file.hunks.some((each) => inside(line, each))),
  );
}

export interface Pair {
  left: DiffLine | null;
  right: DiffLine | null;
}

/** Returns lines side by side: what was removed beside what was added in its place. */
export function pairLines(lines: readonly DiffLine[]): Pair[] {
  const pairs: Pair[] = [];
  let waiting = 0;
  for (const line of lines) {
    const open = pairs[pairs.length - waiting];
    if (line.kind === "removed") {
      pairs.push({ left: line, right: null });
      waiting += 1;
    } else if (line.kind === "added" && waiting > 0 && open) {
      open.right = line;
      waiting -= 1;
    } else {
      pairs.push({ left: line.kind === "added" ? null : line, right: line });
      if (line.kind !== "added") waiting = 0;
    }
  }
  return pairs;
}
