import { expect, it } from "vitest";
import { readPatch } from "./patch";

const PATCH = `diff --git a/x.py b/x.py
index 1..2 100644
--- a/x.py
+++ b/x.py
@@ -3,3 +3,3 @@ def f():
 one
-two
+--- three
 four
\\ No newline at end of file
@@ -20 +20,2 @@
-old
+new
+
`;

it("numbers the lines of both sides", () => {
  expect(readPatch(PATCH).map(({ kind, old, new: now, text }) => [kind, old, now, text])).toEqual([
    ["hunk", null, null, "@@ -3,3 +3,3 @@ def f():"],
    ["context", 3, 3, "one"],
    ["removed", 4, null, "two"],
    ["added", null, 4, "--- three"],
    ["context", 5, 5, "four"],
    ["note", null, null, "No newline at end of file"],
    ["hunk", null, null, "@@ -20 +20,2 @@"],
    ["removed", 20, null, "old"],
    ["added", null, 20, "new"],
    ["added", null, 21, ""],
  ]);
});

it("says what has no lines", () => {
  expect(readPatch("diff --git a/x b/x\nBinary files a/x and b/x differ\n").map(({ text }) => text)).toEqual([
    "Binary files a/x and b/x differ",
  ]);
  const encoded = "diff --git a/x b/x\nindex 1..2 100644\nGIT binary patch\nliteral 3\nKcmZQ\n\nliteral 0\nHcmV?\n\n";
  expect(readPatch(encoded).map(({ text }) => text)).toEqual(["Binary files differ"]);
  expect(readPatch("")).toEqual([]);
});
