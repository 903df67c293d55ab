/** The outcome of a finished review: what is taken back, and the message to the agent. */
import type { ReviewFile } from "../../api/contract";
import type { Decisions } from "./decisions";

export interface TakenBack {
  files: string[];
  hunks: string[];
}

/**
 * Returns the arguments of a restore from the base: files if all their hunks are rejected, otherwise single hunks.
 */
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

/** Returns one message with all comments and rejections; "" if there are neither. */
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

/** Returns how a message can reach the agent: directly while it works, by another round once it has ended. */
export function wayToAgent(status: string, asks: boolean): "send" | "continue" | null {
  if (["planned", "running", "paused"].includes(status)) return "send";
  // Its question has to be answered first.
  return asks ? null : "continue";
}
