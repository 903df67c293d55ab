import type { MissionDetails } from "../../api/contract";
import { count, shortCommit } from "../../format";

/** A tree that can be compared with another one. */
export interface Stop {
  id: string;
  label: string;
}

const TRIGGERS: Record<string, string> = {
  action: "after an act of the agent",
  files: "many files had changed",
  time: "after some time",
  end: "at the end of the attempt",
};

/** Returns the base, every checkpoint, and the result if there is one, oldest first. */
export function stops(mission: Pick<MissionDetails, "base" | "checkpoints" | "commit">): Stop[] {
  const { base, checkpoints, commit } = mission;
  return [
    { id: "base", label: `Base ${shortCommit(base?.commit ?? null)}` },
    ...checkpoints.map((checkpoint, index) => ({
      id: checkpoint.commit,
      label: `Checkpoint ${index + 1}, ${TRIGGERS[checkpoint.trigger] ?? checkpoint.trigger}, ${count(checkpoint.changed, "file")} changed`,
    })),
    ...(commit === null ? [] : [{ id: "result", label: "Result" }]),
  ];
}
