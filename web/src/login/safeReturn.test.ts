import { expect, it } from "vitest";
import { safeReturn } from "./safeReturn";

it("goes back to a page of ours and nowhere else", () => {
  expect(safeReturn("/missions/m-1?tab=plan#x")).toBe("/missions/m-1?tab=plan#x");
  for (const elsewhere of ["//evil.example", "/\\evil.example", "https://evil.example", "javascript:alert(1)", "", 7, null]) {
    expect(safeReturn(elsewhere)).toBe("/");
  }
});
