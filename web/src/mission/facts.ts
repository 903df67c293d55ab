/** Facts derived from a mission's document. */
import type { ListedMission, MissionDetails, Question } from "../api/contract";

const LIVE = new Set(["planned", "running", "waiting", "paused"]);

export function isLive(status: string): boolean {
  return LIVE.has(status);
}

/** Whether a question waits for a person, and not for a time. */
export function isOpen(question: Question | null): question is Question {
  return question !== null && !question.answer && !question.expired && !question.until;
}

/**
 * Returns how long a mission took in seconds, as the server says, or has taken so far if it is running. Null if
 * unknown.
 */
export function elapsed(mission: Pick<ListedMission | MissionDetails, "status" | "seconds" | "created">, now: number): number | null {
  if (mission.status !== "running") return mission.seconds;
  const begun = Date.parse(mission.created);
  return Number.isNaN(begun) ? null : Math.max(0, (now - begun) / 1000);
}
