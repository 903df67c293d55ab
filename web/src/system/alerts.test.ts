import { expect, test } from "vitest";
import type { AlertsDocument } from "../api/contract";
import { alertRows, trialText, watchNotice } from "./alerts";

const NOW = Date.parse("2026-01-02T00:00:00Z");
const ALERT = {
  rule: "disk_low",
  subject: "",
  text: "3 % of the disk is free.",
  raised: "2026-01-01T23:55:00.000+00:00",
  last: "2026-01-01T23:58:00.000+00:00",
  ended: null,
  value: 0.03,
  limit: 0.05,
  count: 1,
};

function alerts(more: Partial<AlertsDocument> = {}): AlertsDocument {
  return { looked: "2026-01-01T23:59:55+00:00", watched: true, raised: [], ended: [], channels: [], ...more };
}

test("what is raised comes first, then the last that ended", () => {
  const over = { ...ALERT, ended: "2026-01-01T21:00:00.000+00:00", count: 7, text: "A checkpoint took 3 s.\u202e" };
  const rows = alertRows(alerts({ raised: [ALERT], ended: Array(30).fill(over) as (typeof over)[] }), NOW);
  expect(rows).toHaveLength(11);
  expect(rows[0]).toEqual({ text: ALERT.text, raised: true, when: "5 m ago", count: 1 });
  expect(rows[1]).toEqual({ text: "A checkpoint took 3 s.", raised: false, when: "until 3 h ago", count: 7 });
});

test("what keeps alerts from being raised or told is said", () => {
  expect(watchNotice(alerts(), NOW)).toBe("");
  expect(watchNotice(alerts({ watched: false, looked: null }), NOW)).toBe("Thresholds are not checked now: this list may be out of date.");
  const channels = [
    { channel: "webhook", problem: "the answer was 404" },
    { channel: "mail", problem: null },
  ];
  expect(watchNotice(alerts({ channels }), NOW)).toBe("Notices by webhook do not arrive: the answer was 404.");
});

test("each way's trial is told, and that there is none", () => {
  const channels = [
    { channel: "webhook", problem: "the answer was 404\u202e" },
    { channel: "mail", problem: null },
  ];
  expect(trialText({ channels })).toBe("webhook: the answer was 404. mail: sent.");
  expect(trialText({ channels: [] })).toContain("No way for notices is configured.");
});
