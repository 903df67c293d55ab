import { expect, it } from "vitest";
import type { MissionDetails } from "../api/contract";
import { ACTIONS, actionBody, actionsOf } from "./actions";
import { elapsed, isOpen } from "./facts";

const QUESTION = { id: "q", text: "?", options: [], answer: null, until: "", expired: false };

function mission(more: object): MissionDetails {
  return { status: "running", rolled_back: false, question: null, waiting: [], next: [], attempts: [], commit: null, tree: "t1", ...more } as unknown as MissionDetails;
}

const ids = (more: object) => actionsOf(mission(more)).map(({ id }) => id);

it("offers what fits the status and nothing else", () => {
  expect(ids({})).toEqual(["pause", "send", "cancel"]);
  expect(ids({ status: "paused" })).toEqual(["resume", "send", "cancel", "discard"]);
  expect(ids({ status: "promoted", commit: "c", attempts: [{ agent: "native" }] })).toEqual(["continue", "fork", "rollback"]);
  expect(ids({ status: "promoted", rolled_back: true, commit: "c", next: ["chargehand mission promote m  # again"] })).toEqual([
    "promote",
    "continue",
  ]);
});

it("offers no promotion while a question is open or a task waits", () => {
  expect(ids({ status: "waiting" })).toContain("promote");
  expect(ids({ status: "waiting", question: QUESTION })).not.toContain("promote");
  expect(ids({ status: "waiting", waiting: [{}] })).not.toContain("promote");
});

it("says the consequence of every action", () => {
  for (const action of ACTIONS) expect(action.consequence).toMatch(/\.$/);
});

it("sends only what was filled in, and the tree that was seen", () => {
  const [promote] = ACTIONS;
  const send = ACTIONS.find(({ id }) => id === "send");
  expect(promote && actionBody(promote, { reason: "" }, mission({}))).toEqual({ tree: "t1" });
  expect(send && actionBody(send, { text: "hi", critical: false }, mission({}))).toEqual({ text: "hi" });
});

it("counts the time of what runs, and shows no time where none is known", () => {
  const now = Date.parse("2026-01-01T00:01:00Z");
  expect(elapsed({ status: "running", seconds: 3, created: "2026-01-01T00:00:00Z" }, now)).toBe(60);
  for (const status of ["planned", "waiting", "paused", "promoted"]) {
    expect(elapsed({ status, seconds: 3, created: "2026-01-01T00:00:00Z" }, now)).toBe(3);
  }
  expect(elapsed({ status: "failed", seconds: null, created: "2026-01-01T00:00:00Z" }, now)).toBeNull();
});

it("knows a question that waits for the clock from one that waits for a person", () => {
  expect(isOpen({ ...QUESTION, until: "2026-01-01" } as never)).toBe(false);
  expect(isOpen(QUESTION as never)).toBe(true);
});
