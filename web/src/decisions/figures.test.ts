import { describe, expect, it } from "vitest";
import type { BeliefNode, ListedChoice, RecordedForecast } from "../api/contract";
import { curve, describeErrors, describeReplay, describeReproduced, describeSide, dotRadius, drawnNodes, findChosen, posteriorSearch } from "./figures";

const node = (name: string, parents: string[] = []): BeliefNode => ({ name, states: ["yes", "no"], parents, table: [], counts: [], note: "" });

function learned(chosen: string): NonNullable<ListedChoice["learned"]> {
  const candidates = ["a", "b"].map((name) => ({ name, chance: 0.5, price_usd: 1, value_usd: 2, known_costs: 3 }));
  return { policy: "p", chosen, worth_usd: 5, gain_usd: 1, outcomes: 9, is_guess: false, replayed: true, candidates, left_out: [], causes: {}, paths: [] };
}

describe("choices", () => {
  it("finds the chosen candidate, which need not be the best", () => {
    expect(findChosen(null)).toBeNull();
    expect(findChosen(learned("b"))?.name).toBe("b");
    expect(findChosen(learned(""))?.name).toBe("a");
    expect(findChosen(learned("gone"))).toBeNull();
  });

  it("says how many choices gave the same numbers", () => {
    const other = { mission: "m", line: 1, time: "", task: "", chosen: "", why: "", learned: null, has_evidence: true };
    expect(describeReplay({ same: 0, skipped: 0, different: [] })).toBe("There are no learned choices to compute.");
    expect(describeReplay({ same: 1, skipped: 0, different: [] })).toBe("1 of 1 learned choice gave the same numbers.");
    expect(describeReplay({ same: 1, skipped: 2, different: [other] })).toMatch(/^1 of 2 learned choices gave the same numbers. 2 could not/);
  });
});

describe("predictions", () => {
  it("draws a dot whose area is the number, and none too small to see", () => {
    expect(dotRadius(8, 8)).toBe(9);
    expect(dotRadius(2, 8)).toBe(4.5);
    expect(dotRadius(1, 10_000)).toBe(3);
  });

  it("compares the error with that of the plain rate, if an outcome is known", () => {
    const none = { bins: [], count: 0, open: 2, brier: null, rate_brier: null };
    expect(describeErrors(none)).toBe("0 with a known outcome, 2 open.");
    expect(describeErrors({ ...none, count: 9, brier: 0.2, rate_brier: 0.25 })).toContain("error 0.200, of the plain rate 0.250");
  });

  it("says why a forecast cannot be computed again", () => {
    const made = { seed: 7, reproduced: true } as RecordedForecast;
    expect(describeReproduced(made)).toBe("the same numbers");
    expect(describeReproduced({ ...made, reproduced: false })).toMatch(/^other numbers/);
    expect(describeReproduced({ ...made, reproduced: null })).toContain("another version");
    expect(describeReproduced({ ...made, seed: null, reproduced: null })).toContain("without a seed");
  });
});

it("shows the rate of a roll-out's side without outcomes as unknown", () => {
  expect(describeSide({ outcomes: 0, good: 0, projects: 0, rate: null })).toMatch(/^unknown/);
  expect(describeSide({ outcomes: 3, good: 2, projects: 1, rate: 2 / 3 })).toBe("67 %: 2 of 3 outcomes in 1 project");
});

describe("networks", () => {
  const nodes = [node("rain"), node("wet=&", ["rain", "gone"]), node("__proto__", ["wet=&"])];

  it("draws nodes after their known parents", () => {
    expect(drawnNodes(nodes)).toEqual([
      { id: "0", after: [] },
      { id: "1", after: ["0"] },
      { id: "2", after: ["1"] },
    ]);
  });

  it("draws an arrow through all its points", () => {
    const points = [{ x: 0, y: 0 }, { x: 2, y: 4 }, { x: 4, y: 4 }];
    expect(curve(points)).toBe("M0 0C1 0 1 4 2 4C3 4 3 4 4 4");
    expect(curve([])).toBe("");
  });

  it("asks with the evidence on other nodes, whatever they are called", () => {
    const evidence = new Map([["rain", "yes"], ["wet=&", "no"], ["__proto__", "unheard of"]]);
    const query = new URLSearchParams(posteriorSearch(nodes, "rain", evidence));
    expect(query.getAll("targets")).toEqual(["rain"]);
    expect(query.getAll("given")).toEqual(["wet=&=no"]);
    expect(posteriorSearch(nodes, "__proto__", new Map())).toBe("targets=__proto__");
  });
});
