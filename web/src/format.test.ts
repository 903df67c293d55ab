import { describe, expect, it } from "vitest";
import { ago, baseName, bytes, clock, duration, money, percent, plainText } from "./format";

describe("amounts", () => {
  it("never shows an unknown cost as zero", () => {
    expect(money(null)).toBe("unknown");
    expect(money(0)).toBe("$0.00");
    expect(money(0.0123)).toBe("$0.0123");
    expect(money(1.5, false)).toBe("≥ $1.50");
    expect([null, 0, 0.626].map(percent)).toEqual(["unknown", "0 %", "63 %"]);
  });

  it("shows durations in the two largest units", () => {
    expect([0.42, 9.96, 59.7, 185, 7620, 273_600].map(duration)).toEqual([
      "0.4 s",
      "10.0 s",
      "1 m 00 s",
      "3 m 05 s",
      "2 h 07 m",
      "3 d 4 h",
    ]);
    expect(duration(null)).toBe("unknown");
  });

  it("shows bytes in binary units", () => {
    expect([0, 1023, 1536, 3 * 1024 ** 3].map(bytes)).toEqual(["0 B", "1023 B", "1.5 KiB", "3.0 GiB"]);
    expect(bytes(null)).toBe("unknown");
  });
});

describe("times", () => {
  const now = Date.parse("2026-01-02T12:00:00Z");

  it("tells how long ago something was", () => {
    expect(ago("2026-01-02T11:59:40Z", now)).toBe("just now");
    expect(ago("2026-01-02T11:30:00Z", now)).toBe("30 m ago");
    expect(ago("2025-12-24T11:30:00Z", now)).toBe("2025-12-24");
    expect(ago("", now)).toBe("unknown");
  });

  it("shows a date only where the day is another one", () => {
    const noon = new Date(2026, 0, 2, 12).getTime();
    expect(clock(new Date(2026, 0, 2, 9, 5, 7).toISOString(), noon)).toBe("09:05:07");
    expect(clock(new Date(2026, 0, 1, 9, 5, 7).toISOString(), noon)).toBe("2026-01-01 09:05:07");
  });
});

describe("text of agents", () => {
  it("loses colours, cursor moves, links, controls and reordering marks", () => {
    expect(plainText("\u001b[31mred\u001b[0m \u001b]8;;http://x\u0007link\u001b]8;;\u0007\u001b[2J\u0007\u202eevil")).toBe(
      "red linkevil",
    );
  });

  it("keeps lines, tabs and letters of any script", () => {
    expect(plainText("a\tb\r\nçé 漢字 🙂\n")).toBe("a\tb\nçé 漢字 🙂\n");
  });
});

it("names a repository by the end of its path", () => {
  expect(["/srv/shop/", "shop", "/"].map(baseName)).toEqual(["shop", "shop", "/"]);
});
