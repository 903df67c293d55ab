import { expect, it } from "vitest";
import { wordsOf } from "./colours";

it.each([
  ["a.py", `def f(x): return "a#b"  # why`, ["keyword:def", "keyword:return", "string:\"a#b\"", "comment:# why"]],
  ["a.ts", "const x = 12; // no", ["keyword:const", "number:12", "comment:// no"]],
  ["a.ts", "/* one */ let s = 'it\\'s'", ["comment:/* one */", "keyword:let", "string:'it\\'s'"]],
  ["a.sql", "x -- why", ["comment:-- why"]],
  ["Dockerfile", "# from", ["comment:# from"]],
])("%s: %s", (path, line, expected) => {
  const words = wordsOf(path)?.(line) ?? [];
  expect(words.map(([, text]) => text).join("")).toBe(line);
  expect(words.filter(([kind]) => kind !== "").map(([kind, text]) => `${kind}:${text}`)).toEqual(expected);
});

it("colours nothing that it does not know, and takes a long line in little time", () => {
  expect(wordsOf("notes.txt")).toBeNull();
  expect(wordsOf("none")).toBeNull();
  const line = `"${"\\".repeat(20_000)}`;
  expect(wordsOf("a.py")?.(line).length).toBeGreaterThan(0);
});
