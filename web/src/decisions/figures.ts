/** Logic of the page on decisions: which candidate was chosen, what a replay and a roll-out say, evidence in queries. */
import type { BeliefNode, ListedChoice, RecordedForecast, Reliability, ReplayedChoices, RolloutView } from "../api/contract";
import { count, percent, UNKNOWN } from "../format";
import type { Point } from "../mission/plan/layout";

type Learned = ListedChoice["learned"];
type Candidate = NonNullable<Learned>["candidates"][number];

/** The observed state of nodes, by name. A map: a node may be named as a property of all objects is. */
export type Evidence = ReadonlyMap<string, string>;

/** Returns the chosen candidate of a learned choice. A decision for no further attempt names none: its best one is it. */
export function findChosen(learned: Learned): Candidate | null {
  if (learned === null) return null;
  const found = learned.chosen === "" ? learned.candidates[0] : learned.candidates.find(({ name }) => name === learned.chosen);
  return found ?? null;
}

export function describeReplay({ same, skipped, different }: ReplayedChoices): string {
  const all = same + different.length;
  const left = skipped === 0 ? "" : ` ${skipped} could not be computed: of another version, or an optional part is not installed.`;
  return (all === 0 ? "There are no learned choices to compute." : `${same} of ${count(all, "learned choice")} gave the same numbers.`) + left;
}

export function describeSide({ outcomes, good, projects, rate }: RolloutView["state"]["inside"]): string {
  if (rate === null) return `${UNKNOWN}: there are no outcomes`;
  return `${percent(rate)}: ${good} of ${count(outcomes, "outcome")} in ${count(projects, "project")}`;
}

/** Returns the query for the distribution of `target`; evidence on the target itself, or on no node, does not count. */
export function posteriorSearch(nodes: readonly BeliefNode[], target: string, evidence: Evidence): string {
  const given = nodes.flatMap(({ name, states }) => {
    const state = evidence.get(name);
    return name !== target && state !== undefined && states.includes(state) ? [["given", `${name}=${state}`]] : [];
  });
  return new URLSearchParams([["targets", target], ...given]).toString();
}

/** Returns the nodes with their known parents for the layout, each by its place in the list: names may be anything. */
export function drawnNodes(nodes: readonly BeliefNode[]): { id: string; after: string[] }[] {
  const places = new Map(nodes.map(({ name }, place) => [name, String(place)]));
  return nodes.map(({ parents }, place) => ({ id: String(place), after: parents.flatMap((parent) => places.get(parent) ?? []) }));
}

/** Returns an SVG path through points that are ordered from left to right; it is level at each. */
export function curve(points: readonly Point[]): string {
  return points
    .map(({ x, y }, place) => {
      const before = points[place - 1];
      if (!before) return `M${x} ${y}`;
      const middle = (before.x + x) / 2;
      return `C${middle} ${before.y} ${middle} ${y} ${x} ${y}`;
    })
    .join("");
}

/** Returns the radius of a dot whose area grows with a count; the smallest is still seen. */
export function dotRadius(number: number, most: number): number {
  return Math.max(3, 9 * Math.sqrt(number / most));
}

export function describeErrors({ count: known, open, brier, rate_brier }: Reliability): string {
  const numbers = `${known} with a known outcome, ${open} open.`;
  if (brier === null || rate_brier === null) return numbers;
  return `${numbers} Mean squared error ${brier.toFixed(3)}, of the plain rate ${rate_brier.toFixed(3)}: smaller is better.`;
}

/** Returns whether a forecast's record gives its numbers again, and why not if that is unknown. */
export function describeReproduced({ seed, reproduced }: RecordedForecast): string {
  if (seed === null) return "not possible: of an earlier version, without a seed";
  if (reproduced === null) return "not possible: of another version, or an optional part is not installed";
  return reproduced ? "the same numbers" : "other numbers: its record was changed, or another version of numpy draws others";
}
