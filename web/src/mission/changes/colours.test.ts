import { expect, it } from "vitest";
import { coloursOf, partsOf, wordsOf } from "./colours";
import { colourLines, type Word } from "./grammar";
import { ENDINGS, languageOf } from "./languages";
import { readPatch } from "./patch";

const told = (words: readonly Word[]) => words.filter(([kind]) => kind !== "").map(([kind, text]) => `${kind}:${text}`);

it.each([
  ["a.py", `def f(x): return "a#b"  # why`, [["keyword:def", "name:f", "keyword:return", `string:"a#b"`, "comment:# why"]]],
  ["a.py", `x = """one\n def two\n"""\ny = 3`, [[`string:"""one`], ["string: def two"], [`string:"""`], ["number:3"]]],
  ["a.ts", "/* one\nlet two */ let s = 'it\\'s'", [["comment:/* one"], ["comment:let two */", "keyword:let", "string:'it\\'s'"]]],
  ["a.rs", "/* a /* b */\nc */ fn f() {}", [["comment:/* a ", "comment:/* b */"], ["comment:c */", "keyword:fn", "name:f"]]],
  ["q.sql", "select 1 -- why", [["keyword:select", "number:1", "comment:-- why"]]],
  ["Dockerfile", "# from\nFROM x", [["comment:# from"], ["keyword:FROM"]]],
])("%s: %s", async (path, text, expected) => {
  const lines = await colourLines(languageOf(path) ?? "", text);
  expect(lines.map((words) => words.map(([, part]) => part).join("")).join("\n")).toBe(text);
  expect(lines.map(told)).toEqual(expected);
});

it("has a grammar for each language that it names, and none for others", async () => {
  for (const language of new Set(ENDINGS.values())) expect((await colourLines(language, "a\n")).length).toBe(2);
  expect(["x/Makefile", "Gemfile", "CMakeLists.txt", "X.PY"].map(languageOf)).toEqual(["makefile", "ruby", "cmake", "python"]);
  expect([languageOf("notes.txt"), languageOf("none"), languageOf("a.constructor")]).toEqual([null, null, null]);
});

const PATCH = `@@ -1,3 +1,3 @@\n """one\n-old\n+new\n two"""\n@@ -9 +9 @@\n-a = 1\n+a = 2\n`;

async function coloured(patch: string, texts: Record<"old" | "new", string | null> | null) {
  const lines = readPatch(patch);
  const parts = partsOf(lines, texts);
  const colours = coloursOf(parts, await Promise.all(parts.map(({ text }) => colourLines("python", text))));
  return lines.map((line) => [told(wordsOf(colours, line, "old") ?? []), told(wordsOf(colours, line, "new") ?? [])]);
}

it("colours each side by its own hunk where the files are not known", async () => {
  expect(await coloured(PATCH, null)).toEqual([
    [[], []],
    [[`string:"""one`], [`string:"""one`]],
    [["string:old"], []],
    [[], ["string:new"]],
    [[`string:two"""`], [`string:two"""`]],
    [[], []],
    [["number:1"], []],
    [[], ["number:2"]],
  ]);
});

it("colours by the whole file where it is known, and not by another version of it", async () => {
  // The string begins before the hunk.
  const file = (word: string) => `x = """\n\n\n${word}\n\n"""\n`;
  const patch = "@@ -3,3 +3,3 @@\n \n-def a\n+def b\n \n";
  expect((await coloured(patch, { old: file("def a"), new: file("def b") })).slice(2, 4)).toEqual([[["string:def a"], []], [[], ["string:def b"]]]);
  expect((await coloured(patch, { old: file("def a"), new: file("def c") }))[3]).toEqual([[], []]);
  expect((await coloured(patch, null))[2]).toEqual([["keyword:def", "name:a"], []]);
});

it("leaves files without colours that are too large", () => {
  expect(partsOf(readPatch(PATCH), { old: "", new: "x".repeat(700_000) })).toEqual([]);
  expect(partsOf(readPatch(`@@ -0,0 +1,2 @@\n+${"y".repeat(700_000)}\n`), null)).toEqual([]);
});
