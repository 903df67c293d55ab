/** Notes of a review that two tabs or browsers write: the server's version, and local changes since. */
import { readStored, writeStored } from "../../storage";
import type { Decision } from "./decisions";

export interface Notes {
  decided: Readonly<Record<string, Decision>>;
  comments: Readonly<Record<string, string>>;
}

const keyOf = (mission: string) => `review-base:${mission}`;

/**
 * Returns the server's notes as this browser last read them: a note that the server has lost since was withdrawn
 * elsewhere.
 */
export function readBase(mission: string): Notes {
  try {
    const kept = JSON.parse(readStored(keyOf(mission)) ?? "{}") as Partial<Notes> | null;
    return { decided: kept?.decided ?? {}, comments: kept?.comments ?? {} };
  } catch {
    return { decided: {}, comments: {} };
  }
}

export function keepBase(mission: string, { decided, comments }: Notes): void {
  const empty = Object.keys(decided).length + Object.keys(comments).length === 0;
  writeStored(keyOf(mission), empty ? null : JSON.stringify({ decided, comments }));
}

/** Merges the changes of both sides since `base`; on a conflict the local one wins. */
export function mergeNotes(base: Notes, here: Notes, there: Notes): Notes {
  return { decided: merge(base.decided, here.decided, there.decided), comments: merge(base.comments, here.comments, there.comments) };
}

export function sameNotes(one: Notes, other: Notes): boolean {
  return same(one.decided, other.decided) && same(one.comments, other.comments);
}

type Part<T> = Readonly<Record<string, T>>;

function merge<T extends string>(base: Part<T>, here: Part<T>, there: Part<T>): Part<T> {
  const changed = Object.keys({ ...base, ...here }).filter((id) => here[id] !== base[id]);
  const mine = changed.flatMap((id) => (here[id] === undefined ? [] : [[id, here[id]] as const]));
  const theirs = Object.entries(there).filter(([id]) => !changed.includes(id));
  return Object.fromEntries([...theirs, ...mine]);
}

function same<T>(one: Part<T>, other: Part<T>): boolean {
  const ids = Object.keys(one);
  return ids.length === Object.keys(other).length && ids.every((id) => one[id] === other[id]);
}
