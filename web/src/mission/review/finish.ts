/** What a finished review comes to: what is taken back, and what the agent is told. */
import type { ReviewFile } from "../../api/contract";
import type { Decisions } from "./decisions";

export interface TakenBack {
  files: string[];
  hunks: string[];
}

/** Returns what a restore from the base has to be given: files that are rejected whole, else their hunks. */
export function takenBack(files: readonly ReviewFile[], { decided }: Pick<Decisions, "decided">): TakenBack {
  const found: TakenBack = { files: [], hunks: [] };
  for (const { path, hunks } of files) {
    const rejected = hunks.filter(({ id }) => decided[id] === "rejected");
    if (rejected.length === 0) continue;
    const named = rejected.flatMap(({ reject }) => (reject === null ? [] : [reject]));
    if (rejected.length === hunks.length || named.length < rejected.length) found.files.push(path);
    else found.hunks.push(...named);
  }
  return found;
}

/** Returns one message of all comments and of what was rejected; "" where there is neither. */
export function messageOf(files: readonly ReviewFile[], { decided, comments }: Pick<Decisions, "decided" | "comments">): string {
  const lines = files.flatMap(({ path, hunks }) =>
    hunks.flatMap(({ id, new_start, new_lines }) => {
      const rejected = decided[id] === "rejected";
      const text = comments[id];
      if (!rejected && !text) return [];
      const place = new_start > 0 ? `${path}:${new_start}${new_lines > 1 ? `-${new_start + new_lines - 1}` : ""}` : path;
      return [`- ${place}${rejected ? " (rejected)" : ""}${text ? `: ${text}` : ""}`];
    }),
  );
  return lines.length === 0 ? "" : ["The change was reviewed:", ...lines].join("\n");
}

/** Returns how the agent can be told something: a message while it works, another round once it has ended. */
export function wayToAgent(status: string, asks: boolean): "send" | "continue" | null {
  if (["planned", "running", "paused"].includes(status)) return "send";
  // What it asks has to be answered first.
  return asks ? null : "continue";
}
