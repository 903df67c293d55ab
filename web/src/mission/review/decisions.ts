/** A person's decisions and comments, by the id of the hunk, and their current hunk. */
import { readStored, writeStored } from "../../storage";
import type { Notes } from "./notes";
import type { Unit } from "./units";

export type Decision = "accepted" | "rejected";

interface Step {
  at: string | null;
  before: readonly (readonly [string, Decision | null])[];
}

export interface Decisions extends Notes {
  at: string | null;
  past: readonly Step[];
}

export type Act =
  | { type: "decide"; decision: Decision }
  | { type: "acceptFile" }
  | { type: "move"; by: 1 | -1 }
  | { type: "nextFile" }
  | { type: "go"; id: string }
  | { type: "comment"; id: string; text: string }
  | { type: "sent" }
  | { type: "merged"; notes: Notes }
  | { type: "undo" };

/** Returns the current hunk: the first undecided one if the person has not selected any. */
export function current(units: readonly Unit[], state: Decisions): Unit | null {
  const at = units.find(({ id }) => id === state.at) ?? units.find(({ id }) => !state.decided[id]);
  return at ?? units.at(-1) ?? null;
}

export function reduce(units: readonly Unit[], state: Decisions, act: Act): Decisions {
  const unit = current(units, state);
  const place = unit ? units.indexOf(unit) : -1;
  if (act.type === "undo") return undo(state);
  // The agent already has these comments; they are not sent again.
  if (act.type === "sent") return { ...state, comments: {} };
  // Undo in this tab does not undo the work of another tab.
  if (act.type === "merged") return { ...state, ...act.notes, past: [] };
  if (act.type === "go") return { ...state, at: act.id };
  if (act.type === "comment") return comment(state, act.id, act.text);
  if (!unit) return state;
  switch (act.type) {
    case "move":
      return { ...state, at: (units[place + act.by] ?? unit).id };
    case "nextFile":
      return { ...state, at: (after(units, state, place, (other) => other.path !== unit.path) ?? unit).id };
    case "decide":
      return decide(units, state, place, [unit.id], act.decision);
    case "acceptFile": {
      const left = units.filter(({ id, path }) => path === unit.path && !state.decided[id]).map(({ id }) => id);
      return left.length === 0 ? state : decide(units, state, place, left, "accepted");
    }
  }
}

function decide(units: readonly Unit[], state: Decisions, place: number, ids: readonly string[], decision: Decision): Decisions {
  const step = { at: units[place]?.id ?? null, before: ids.map((id) => [id, state.decided[id] ?? null] as const) };
  const decided = { ...state.decided, ...Object.fromEntries(ids.map((id) => [id, decision])) };
  const done = { ...state, decided, past: [...state.past, step] };
  return { ...done, at: (after(units, done, place, () => true) ?? units[place])?.id ?? null };
}

/** Returns the next undecided hunk that `fits`, searching from a place to the end and then from the start. */
function after(units: readonly Unit[], state: Decisions, place: number, fits: (unit: Unit) => boolean): Unit | undefined {
  const around = [...units.slice(place + 1), ...units.slice(0, Math.max(place, 0))];
  return around.find((unit) => !state.decided[unit.id] && fits(unit));
}

function undo(state: Decisions): Decisions {
  const step = state.past.at(-1);
  if (!step) return state;
  const changed = new Set(step.before.map(([id]) => id));
  const kept = Object.entries(state.decided).filter(([id]) => !changed.has(id));
  const back = step.before.flatMap(([id, decision]) => (decision ? [[id, decision] as const] : []));
  return { ...state, decided: Object.fromEntries([...kept, ...back]), at: step.at, past: state.past.slice(0, -1) };
}

function comment(state: Decisions, id: string, text: string): Decisions {
  const others = Object.entries(state.comments).filter(([other]) => other !== id);
  return { ...state, comments: Object.fromEntries(text.trim() ? [...others, [id, text.trim()]] : others) };
}

export interface Progress {
  total: number;
  decided: number;
  rejected: readonly Unit[];
  comments: number;
}

/** Returns the progress of a review; decisions on hunks that have left the change do not count. */
export function progressOf(units: readonly Unit[], { decided, comments }: Decisions): Progress {
  return {
    total: units.length,
    decided: units.filter(({ id }) => decided[id]).length,
    rejected: units.filter(({ id }) => decided[id] === "rejected"),
    comments: units.filter(({ id }) => comments[id]).length,
  };
}

const keyOf = (mission: string) => `review:${mission}`;

export function readDecisions(mission: string): Decisions {
  const none: Decisions = { decided: {}, comments: {}, at: null, past: [] };
  try {
    const kept = JSON.parse(readStored(keyOf(mission)) ?? "{}") as Partial<Decisions> | null;
    return { ...none, decided: kept?.decided ?? {}, comments: kept?.comments ?? {} };
  } catch {
    return none;
  }
}

export function keepDecisions(mission: string, { decided, comments }: Decisions): void {
  const empty = Object.keys(decided).length + Object.keys(comments).length === 0;
  writeStored(keyOf(mission), empty ? null : JSON.stringify({ decided, comments }));
}
