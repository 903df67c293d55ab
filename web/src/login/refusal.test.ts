import { expect, test } from "vitest";
import { refusal } from "./refusal";

test("a code has words, and a text of the address is never shown", () => {
  expect(refusal("refused=account_missing")).toContain("No account");
  expect(refusal("refused=Call%20us%20at%200800")).toBe("The sign-in failed; the log of this server has the reason.");
  expect(refusal("refused=toString")).toContain("failed");
});

test("other fragments are no refusal", () => {
  expect(refusal("")).toBe("");
  expect(refusal("sign-in=refused=x")).toBe("");
});
