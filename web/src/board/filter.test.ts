import { expect, it } from "vitest";
import { isEmpty, parseSaved, readFilter, sameFilter, withSaved } from "./filter";

it("reads a filter from an address and nothing else", () => {
  expect(readFilter({ status: "waiting", q: 42, project: "", other: "x", user: { a: 1 } })).toEqual({
    status: "waiting",
    q: "42",
  });
  expect(isEmpty(readFilter({ other: "x" }))).toBe(true);
});

it("knows equal filters, whatever is left out", () => {
  expect(sameFilter({ status: "failed", q: "" }, { status: "failed" })).toBe(true);
  expect(sameFilter({ status: "failed" }, {})).toBe(false);
});

it("keeps one filter under a name", () => {
  const saved = withSaved(withSaved([], { name: "mine", filter: {} }), { name: "mine", filter: { q: "a" } });
  expect(saved).toEqual([{ name: "mine", filter: { q: "a" } }]);
});

it("survives whatever stands in storage", () => {
  for (const text of [null, "", "{", "7", '[1,{"name":2},{"name":"a","filter":null}]']) expect(parseSaved(text)).toEqual([]);
  expect(parseSaved('[{"name":"a","filter":{"status":"failed","x":1}}]')).toEqual([
    { name: "a", filter: { status: "failed" } },
  ]);
});
