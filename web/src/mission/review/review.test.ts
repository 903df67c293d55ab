import { beforeEach, expect, it, vi } from "vitest";
import type { ChangeReview, ReviewFile, ReviewHunk } from "../../api/contract";
import { readPatch } from "../changes/patch";
import { current, keepDecisions, progressOf, readDecisions, reduce, type Act, type Decisions } from "./decisions";
import { messageOf, takenBack, wayToAgent } from "./finish";
import { keepBase, mergeNotes, readBase, sameNotes, type Notes } from "./notes";
import { linesOf, marksIn, orderFiles, pairLines, unitsOf } from "./units";

const hunk = (id: string, start = 1, more: Partial<ReviewHunk> = {}): ReviewHunk => ({
  id, old_start: start, old_lines: 1, new_start: start, new_lines: 2, reject: `a.py:${start}-${start + 1}`,
  attempt: 1, checkpoint: "c", trigger: "end", step: "execution", ...more,
});
const file = (path: string, hunks: ReviewHunk[], more: Partial<ReviewFile> = {}): ReviewFile => ({
  path, kind: "code", change: "modified", added: 1, removed: 1, binary: false, risk: 0, reasons: [], unread: null,
  tests: [], patch: "", truncated: false, hunks, ...more,
});
const FILES = [file("a.py", [hunk("1"), hunk("2", 20)]), file("b.py", [hunk("3")]), file("c.bin", [hunk("4", 0, { reject: null })])];
const UNITS = unitsOf(FILES);
const EMPTY: Decisions = { decided: {}, comments: {}, at: null, past: [] };
const after = (...acts: Act[]) => acts.reduce((state, act) => reduce(UNITS, state, act), EMPTY);
const accept: Act = { type: "decide", decision: "accepted" };
const reject: Act = { type: "decide", decision: "rejected" };

it("takes one key for a hunk: a decision goes on to the next one that is open", () => {
  const done = after(accept, reject, accept, accept);
  expect(done.decided).toEqual({ 1: "accepted", 2: "rejected", 3: "accepted", 4: "accepted" });
  expect(progressOf(UNITS, done)).toMatchObject({ total: 4, decided: 4, comments: 0 });
  expect(current(UNITS, done)?.id).toBe("4");
});

it("goes back to what was passed over", () => {
  expect(current(UNITS, after({ type: "move", by: 1 }, accept, accept, accept))?.id).toBe("1");
});

it("moves within bounds, by hunk and by file", () => {
  expect(current(UNITS, after({ type: "move", by: -1 }))?.id).toBe("1");
  expect(current(UNITS, after({ type: "nextFile" }))?.id).toBe("3");
  expect(current(UNITS, after({ type: "go", id: "4" }, { type: "move", by: 1 }))?.id).toBe("4");
});

it("undoes one step after the other, those on whole files too", () => {
  const whole = after(reject, { type: "acceptFile" });
  expect(whole.decided).toEqual({ 1: "rejected", 2: "accepted" });
  const once = reduce(UNITS, whole, { type: "undo" });
  expect(once.decided).toEqual({ 1: "rejected" });
  const twice = reduce(UNITS, once, { type: "undo" });
  expect(twice.decided).toEqual({});
  expect(current(UNITS, twice)?.id).toBe("1");
  expect(reduce(UNITS, twice, { type: "undo" })).toBe(twice);
});

it("gives a changed mind its old decision back", () => {
  const changed = after(accept, { type: "go", id: "1" }, reject, { type: "undo" });
  expect(changed.decided).toEqual({ 1: "accepted" });
});

it("counts no decision on what is no longer part of the change", () => {
  expect(progressOf(UNITS, { ...EMPTY, decided: { gone: "rejected", 1: "accepted" }, comments: { gone: "x" } })).toEqual({
    total: 4, decided: 1, rejected: [], comments: 0,
  });
  expect(current([], { ...EMPTY, at: "gone" })).toBeNull();
  expect(reduce([], EMPTY, accept)).toBe(EMPTY);
});

it("takes back files that are rejected whole, and hunks of others", () => {
  expect(takenBack(FILES, after(reject, accept, reject, reject))).toEqual({ files: ["b.py", "c.bin"], hunks: ["a.py:1-2"] });
  expect(takenBack(FILES, after(accept))).toEqual({ files: [], hunks: [] });
});

it("tells the agent in one message", () => {
  const state = after(reject, { type: "comment", id: "2", text: " why? " }, { type: "comment", id: "3", text: "x" }, { type: "comment", id: "3", text: " " });
  expect(messageOf(FILES, state)).toBe("The change was reviewed:\n- a.py:1-2 (rejected)\n- a.py:20-21: why?");
  expect(messageOf(FILES, after(accept))).toBe("");
  expect(reduce(UNITS, state, { type: "sent" }).comments).toEqual({});
  expect(wayToAgent("running", false)).toBe("send");
  expect(wayToAgent("waiting", false)).toBe("continue");
  expect(wayToAgent("waiting", true)).toBeNull();
});

it("reads the riskiest first, and tests after the code that they cover", () => {
  const files = [
    file("x.py", [], { risk: 0.6, tests: ["test_x.py"] }),
    file("test_y.py", [], { kind: "test", risk: 0.5 }),
    file("y.py", [], { risk: 0.3, tests: ["test_y.py"] }),
    file("test_x.py", [], { kind: "test", risk: 0 }),
  ];
  expect(orderFiles(files).map(({ path }) => path)).toEqual(["x.py", "test_x.py", "test_y.py", "y.py"]);
});

it("gives each hunk its lines and marks", () => {
  const both = file("a.py", [hunk("1"), hunk("2", 20)], { patch: "@@ -1,1 +1,1 @@\n-a\n+b\n@@ -20,0 +20,1 @@\n+c\n" });
  expect(linesOf(both).map((lines) => lines.map(({ text }) => text))).toEqual([["a", "b"], ["c"]]);
  const mark = { source: "check", code: "pytest", severity: "error", path: "a.py", message: "" } as const;
  const review = { marks: [{ ...mark, line: 21 }, { ...mark, line: 9 }, { ...mark, line: null }] } as unknown as ChangeReview;
  expect(marksIn(review, both, both.hunks[1] ?? null).map(({ line }) => line)).toEqual([21]);
  expect(marksIn(review, both, null).map(({ line }) => line)).toEqual([9, null]);
});

it("puts lines side by side", () => {
  const rows = pairLines(readPatch("@@ -1,4 +1,4 @@\n a\n-b\n-c\n+B\n d\n+e\n").slice(1));
  expect(rows.map(({ left, right }) => [left?.text, right?.text])).toEqual([["a", "a"], ["b", "B"], ["c", undefined], ["d", "d"], [undefined, "e"]]);
});

const kept = new Map<string, string>();
beforeEach(() => {
  kept.clear();
  vi.stubGlobal("localStorage", {
    getItem: (key: string) => kept.get(key) ?? null,
    setItem: (key: string, value: string) => kept.set(key, value),
    removeItem: (key: string) => kept.delete(key),
  });
});

it("merges what two tabs did: of each hunk what was done here, else what was done there", () => {
  const base: Notes = { decided: { 1: "accepted", 2: "accepted", 5: "rejected" }, comments: { 1: "a" } };
  const here: Notes = { decided: { 1: "rejected", 2: "accepted", 3: "accepted", 5: "rejected" }, comments: {} };
  const there: Notes = { decided: { 1: "accepted", 4: "rejected", 5: "rejected" }, comments: { 1: "a", 4: "b" } };
  const merged = mergeNotes(base, here, there);
  expect(merged).toEqual({ decided: { 1: "rejected", 3: "accepted", 4: "rejected", 5: "rejected" }, comments: { 4: "b" } });
  expect(sameNotes(merged, mergeNotes(there, merged, merged))).toBe(true);
  expect(sameNotes(merged, here)).toBe(false);
  expect(reduce(UNITS, after(reject), { type: "merged", notes: merged })).toMatchObject({ ...merged, past: [] });
});

it("remembers what the server had, so that nothing that was taken back elsewhere comes back", () => {
  const had: Notes = { decided: { 1: "rejected" }, comments: {} };
  keepBase("m-1", had);
  expect(mergeNotes(readBase("m-1"), had, { decided: {}, comments: {} }).decided).toEqual({});
  kept.set("review-base:m-2", "{nonsense");
  expect(readBase("m-2")).toEqual({ decided: {}, comments: {} });
});

it("keeps decisions for the next round, for each mission, whatever lies there", () => {
  keepDecisions("m-1", after(reject, { type: "comment", id: "2", text: "x" }));
  expect(readDecisions("m-1")).toEqual({ ...EMPTY, decided: { 1: "rejected" }, comments: { 2: "x" } });
  expect(readDecisions("m-2")).toEqual(EMPTY);
  kept.set("review:m-3", "{nonsense");
  expect(readDecisions("m-3")).toEqual(EMPTY);
  keepDecisions("m-1", EMPTY);
  expect(kept.has("review:m-1")).toBe(false);
});
