import { describe, expect, it } from "vitest";
import type { TerminalRecord } from "../../api/contract";
import { TerminalText } from "./text";

const LINE: TerminalRecord = {
  kind: "line", position: 1, source: "agent", stream: "stdout", time: "", attempt: 1, text: "x", count: 0, kept: false,
  mission_status: "", attempt_status: "", ended: false,
};

describe("TerminalText", () => {
  it("has a heading where an attempt or its checks begin, and nothing for a mere status", () => {
    const text = new TerminalText();
    const first = text.write([LINE, LINE, { ...LINE, kind: "status" }, { ...LINE, source: "check" }]);
    expect(first.split("\r\n").map((line) => line.replace(/\u001b\[\d+m/g, ""))).toEqual([
      "── Attempt 1, agent ──", "x", "x", "── Attempt 1, checks ──", "x", "",
    ]);
    expect(text.write([{ ...LINE, source: "check" }])).toBe("x\r\n");
    expect(text.write([{ ...LINE, kind: "dropped", count: 7 }])).toContain("7 lines are left out");
  });
});
