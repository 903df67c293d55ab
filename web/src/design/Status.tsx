import { Badge, type Tone } from "./Badge";
import type { IconName } from "./Icon";

interface Look {
  tone: Tone;
  icon: IconName;
  label: string;
}

const LOOKS: Record<string, Look> = {
  planned: { tone: "quiet", icon: "planned", label: "Planned" },
  running: { tone: "info", icon: "running", label: "Running" },
  waiting: { tone: "warn", icon: "waiting", label: "Needs you" },
  paused: { tone: "warn", icon: "paused", label: "Paused" },
  promoted: { tone: "good", icon: "promoted", label: "Promoted" },
  refused: { tone: "bad", icon: "refused", label: "Refused" },
  failed: { tone: "bad", icon: "failed", label: "Failed" },
  exhausted: { tone: "bad", icon: "warning", label: "Exhausted" },
  cancelled: { tone: "quiet", icon: "close", label: "Cancelled" },
  discarded: { tone: "quiet", icon: "close", label: "Discarded" },
  rolled_back: { tone: "quiet", icon: "undone", label: "Rolled back" },
  // Attempts, verdicts, checks and tasks
  succeeded: { tone: "good", icon: "promoted", label: "Succeeded" },
  passed: { tone: "good", icon: "promoted", label: "Passed" },
  green: { tone: "good", icon: "promoted", label: "Green" },
  merged: { tone: "good", icon: "promoted", label: "Merged" },
  done: { tone: "good", icon: "promoted", label: "Done" },
  red: { tone: "bad", icon: "failed", label: "Red" },
  error: { tone: "bad", icon: "failed", label: "Error" },
  timed_out: { tone: "bad", icon: "warning", label: "Timed out" },
  lost: { tone: "bad", icon: "warning", label: "Lost" },
  degraded: { tone: "warn", icon: "warning", label: "Degraded" },
  missing: { tone: "warn", icon: "help", label: "Missing" },
  blocked: { tone: "warn", icon: "warning", label: "Blocked" },
  held: { tone: "warn", icon: "paused", label: "Held" },
  pending: { tone: "quiet", icon: "planned", label: "Pending" },
};

/** Returns the look of a status; a status that this version does not know is shown by its name. */
export function lookOf(status: string): Look {
  const known = LOOKS[status];
  if (known) return known;
  const words = status.replaceAll("_", " ");
  return { tone: "quiet", icon: "planned", label: words.charAt(0).toUpperCase() + words.slice(1) };
}

export function Status({ status, rolledBack = false }: { status: string; rolledBack?: boolean }) {
  const look = lookOf(rolledBack ? "rolled_back" : status);
  return (
    <Badge tone={look.tone} icon={look.icon}>
      {look.label}
    </Badge>
  );
}
