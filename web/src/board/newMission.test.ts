import { expect, it } from "vitest";
import { EMPTY, missionBody, problems } from "./newMission";

it("sends only what was filled in, lists by line", () => {
  expect(missionBody({ ...EMPTY, request: " fix it ", repo: "p-1" }, "k")).toEqual({ request: "fix it", repo: "p-1", key: "k" });
  const all = { ...EMPTY, request: "x", repo: "p", agent: " native ", budget: "2.5", attempts: "3", allow: "src/**\n\n tests/** ", plan: true };
  expect(missionBody(all, "k")).toMatchObject({ agent: "native", budget: 2.5, attempts: 3, allow: ["src/**", "tests/**"], plan: "auto" });
});

it("pauses where that was asked for, and at no plan where there is none", () => {
  const wish = { ...EMPTY, request: "x", repo: "p", breakAt: ["plan", "step"] as const };
  expect(missionBody(wish, "k")["break_at"]).toEqual(["step"]);
  expect(missionBody({ ...wish, plan: true }, "k")["break_at"]).toEqual(["plan", "step"]);
});

it("names what is wrong, with the value", () => {
  expect(Object.keys(problems(EMPTY))).toEqual(["request", "repo"]);
  const wrong = problems({ ...EMPTY, request: "x", repo: "p", budget: "free", time: "soon", attempts: "0" });
  expect(Object.keys(wrong)).toEqual(["budget", "time", "attempts"]);
  expect(wrong.budget).toContain("free");
  expect(problems({ ...EMPTY, request: "x", repo: "p", budget: "0.5", time: "1.5h", attempts: "12" })).toEqual({});
});
