import { expect, it } from "vitest";
import { pairLines } from "./pairs";
import { readPatch } from "./patch";

const PATCH = "@@ -1,4 +1,4 @@\n a\n-b\n-c\n+B\n d\n+e\n-f\n";

it("puts what was removed beside what was added in its place, and loses no line", () => {
  const lines = readPatch(PATCH);
  const rows = pairLines(lines);
  expect(rows.map((row) => [row.over?.text, row.old?.text, row.new?.text])).toEqual([
    ["@@ -1,4 +1,4 @@", undefined, undefined],
    [undefined, "a", "a"],
    [undefined, "b", "B"],
    [undefined, "c", undefined],
    [undefined, "d", "d"],
    [undefined, undefined, "e"],
    [undefined, "f", undefined],
  ]);
  const shown = new Set(rows.flatMap((row) => [row.over, row.old, row.new]).filter((line) => line !== null));
  expect(shown).toEqual(new Set(lines));
});
