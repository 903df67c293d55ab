import { describe, expect, it } from "vitest";
import { terminalLine } from "./styles";

const ESC = "\u001b";

describe("terminalLine", () => {
  it.each([
    [`${ESC}]0;title\u0007text`, "text"],
    [`${ESC}]52;c;c2VjcmV0${ESC}\\text`, "text"],
    [`${ESC}]8;;http://evil.example${ESC}\\link${ESC}]8;;${ESC}\\`, "link"],
    [`${ESC}Pq#0;1${ESC}\\text`, "text"],
    [`${ESC}_Gf=100;AAAA${ESC}\\text`, "text"],
    [`a${ESC}[2J${ESC}[H${ESC}[?1049hb${ESC}[6n${ESC}c`, "ab"],
    [`${ESC}]0;never ended`, ""],
    [`text${ESC}`, "text"],
    [`text${ESC}[`, "text"],
    ["a\u0000\u0007\u0008\u009b31mb\u202ec", "a31mbc"],
    [`${ESC}${ESC}]0;x\u0007]0;y\u0007z`, "]0;yz"],
    [`${ESC}[8mhidden${ESC}[5m${ESC}[2m`, `${ESC}[0mhidden${ESC}[0m${ESC}[0m${ESC}[0m`],
    ["a\tb", "a\tb"],
  ])("%j is %j", (line, shown) => {
    expect(terminalLine(line)).toBe(shown);
  });

  it.each([
    ["31", "0;31"],
    ["1;32", "0;1;32"],
    ["91", "0;91"],
    ["41;37", "0;7;31"],
    ["38;5;196", "0;91"],
    ["38;2;0;128;0", "0;32"],
    ["38;2;0;128;0;1", "0;1;32"],
    ["38:5:12", "0;94"],
    ["4;48;5;0", "0;4;7;30"],
    ["38", "0"],
    ["9999999999", "0"],
  ])("SGR %s becomes %s", (given, code) => {
    expect(terminalLine(`${ESC}[${given}mx`)).toBe(`${ESC}[${code}mx${ESC}[0m`);
  });

  it("takes much, and any character in little time", () => {
    const line = `${ESC}]`.repeat(50_000);
    expect(terminalLine(line)).not.toContain(`${ESC}]`);
    for (let code = 0; code < 0x3000; code += 1) {
      const left = terminalLine(`${ESC}${String.fromCharCode(code)}`).replaceAll(`${ESC}[0m`, "");
      expect(left).not.toContain(ESC);
    }
  });
});
