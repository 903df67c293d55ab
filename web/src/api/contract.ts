/** The server's documents by the names that the pages use. */
import type { components } from "./types";

type Documents = components["schemas"];

export type ListedMission = Documents["ListedMission"];
export type MissionDetails = Documents["MissionDetails"];
export type MissionDocument = Documents["MissionDocument"];
export type AttemptDetails = Documents["AttemptDetails"];
export type Verdict = Documents["Verdict"];
export type Reason = Documents["Reason"];
export type Question = Documents["Question"];
export type PlanDocument = Documents["PlanDocument"];
export type TaskDocument = Documents["TaskDocument"];
export type Checkpoint = Documents["Checkpoint"];
export type CheckpointsDocument = Documents["CheckpointsDocument"];
export type TranscriptLine = Documents["TranscriptDocument"];
export type MissionReport = Documents["MissionReport"];
export type LineCount = Documents["LineCount"];

export type Role = "viewer" | "operator" | "admin";

export interface Session {
  user: string;
  role: Role;
  csrf: string;
  expires: string;
  version: string;
  accounts: boolean;
}

export interface MissionPage {
  missions: ListedMission[];
  next: string | null;
  counts: Record<string, number>;
  position: number;
}

export interface EventLine {
  seq: number;
  time: string;
  type: string;
  step: string | null;
  text: string;
  payload: unknown;
  position?: number;
}

export interface EventPage {
  events: EventLine[];
  next: number | null;
  last_seq: number;
}

export interface TranscriptPage {
  lines: TranscriptLine[];
  next: number | null;
  total: number;
}

export interface ChangedFile {
  path: string;
  added: number | null;
  removed: number | null;
  binary: boolean;
}

export interface Changes {
  mission: string;
  old: string;
  new: string;
  files: ChangedFile[];
  patch: string;
  truncated: boolean;
}

export interface FileChange {
  path: string;
  patch: string;
  old_text: string | null;
  new_text: string | null;
  truncated: boolean;
}

/** One event of the feed over all missions. */
export interface FeedEvent {
  mission: string;
  project?: string;
  seq: number;
  time: string;
  type: string;
  step: string | null;
  text: string;
}
