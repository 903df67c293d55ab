/** The units of a review: hunks in reading order, each decided separately. */
import type { ChangeReview, ReviewFile, ReviewHunk, ReviewMark } from "../../api/contract";
import { readPatch, type DiffLine } from "../changes/patch";

export interface Unit {
  id: string;
  path: string;
  hunk: ReviewHunk;
}

/** Returns the files in the given order (by risk), but a file's tests right after it. */
export function orderFiles(files: readonly ReviewFile[]): ReviewFile[] {
  const byPath = new Map(files.map((file) => [file.path, file]));
  const covered = new Set(files.filter(({ kind }) => kind === "code").flatMap(({ tests }) => tests));
  const ordered = new Set<ReviewFile>();
  for (const file of files) {
    // A test that is risky by itself keeps its place.
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

/** Returns the lines of each hunk of a file, without the `@@` lines; a hunk without lines has an empty list. */
export function linesOf(file: ReviewFile): DiffLine[][] {
  const parts: DiffLine[][] = [];
  for (const line of readPatch(file.patch)) {
    if (line.kind === "hunk") parts.push([]);
    else parts.at(-1)?.push(line);
  }
  return file.hunks.map((_, index) => parts[index] ?? []);
}

/** Returns the marks in this hunk of a file, or those outside all its hunks (`null`). */
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

/** Returns lines side by side: a removed line next to the added line that replaces it. */
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
