/** What follows from a mission's document. */
import type { ListedMission, MissionDetails } from "../api/contract";

const LIVE = new Set(["planned", "running", "waiting", "paused"]);

export function isLive(status: string): boolean {
  return LIVE.has(status);
}

/** Returns the seconds that a mission took, so far where it is not over; null where that is not known. */
export function elapsed(mission: Pick<ListedMission | MissionDetails, "status" | "seconds" | "created">, now: number): number | null {
  if (mission.seconds !== null && !isLive(mission.status)) return mission.seconds;
  if (!isLive(mission.status)) return null;
  const begun = Date.parse(mission.created);
  return Number.isNaN(begun) ? null : Math.max(0, (now - begun) / 1000);
}
