import { expect, it } from "vitest";
import { KeySequence, opensPalette, takeEarlyKeys } from "./keys";

const KNOWN = ["g b", "g p", "?", "b"];

it("completes a sequence, and a single key", () => {
  const keys = new KeySequence();
  expect(keys.press("g", 0, KNOWN)).toBeNull();
  expect(keys.press("b", 100, KNOWN)).toBe("g b");
  expect(keys.press("?", 200, KNOWN)).toBe("?");
});

it("forgets what was typed too long ago, and what leads nowhere", () => {
  const keys = new KeySequence();
  keys.press("g", 0, KNOWN);
  expect(keys.press("b", 2000, KNOWN)).toBe("b");
  keys.press("g", 3000, KNOWN);
  expect(keys.press("x", 3100, KNOWN)).toBeNull();
  expect(keys.press("p", 3200, KNOWN)).toBeNull();
});

it("begins anew where the second key begins a sequence itself", () => {
  const keys = new KeySequence();
  keys.press("g", 0, KNOWN);
  expect(keys.press("g", 100, KNOWN)).toBeNull();
  expect(keys.press("p", 200, KNOWN)).toBe("g p");
});

it("takes Ctrl-K and Cmd-K, not a bare k", () => {
  const plain = { key: "k", ctrlKey: false, metaKey: false, altKey: false };
  expect([plain, { ...plain, ctrlKey: true }, { ...plain, metaKey: true, key: "K" }].map(opensPalette)).toEqual([
    false,
    true,
    true,
  ]);
});

it("takes what was pressed before the pages stood, once", () => {
  const kept = { earlyKeys: [{ key: "g" }, { key: "b" }] as KeyboardEvent[] | null };
  expect(takeEarlyKeys(kept).map(({ key }) => key)).toEqual(["g", "b"]);
  expect([takeEarlyKeys(kept), kept.earlyKeys]).toEqual([[], null]);
  expect(takeEarlyKeys({})).toEqual([]);
});
