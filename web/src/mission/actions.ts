/** The actions of a person on a mission: when each is possible, and its consequence. */
import type { MissionDetails } from "../api/contract";
import { isOpen } from "./facts";

export type FieldName = "text" | "reason" | "request" | "critical" | "step" | "to_end" | "at" | "model" | "reply";

export interface ActionField {
  name: FieldName;
  label: string;
  kind: "line" | "text" | "check";
  required?: boolean;
  hint?: string;
}

export interface Action {
  id: string;
  label: string;
  /** The consequence, shown before the action runs. */
  consequence: string;
  danger?: boolean;
  fields?: readonly ActionField[];
  /** Bound to the tree that the person saw: the server refuses if the mission has another tree by then. */
  bindsTree?: boolean;
  when: (mission: MissionDetails) => boolean;
}

const status = (...wanted: string[]) => (mission: MissionDetails) => wanted.includes(mission.status);
const offers = (mission: MissionDetails, command: string) =>
  mission.next.some((line) => line.startsWith(`chargehand mission ${command} `));

export const ACTIONS: readonly Action[] = [
  {
    id: "promote",
    label: "Promote",
    consequence:
      "The agent's result becomes a branch of the repository, with your approval. This cannot override a failed check.",
    fields: [{ name: "reason", label: "Why", kind: "line", hint: "It is recorded." }],
    bindsTree: true,
    when: (mission) => (mission.status === "waiting" && !isOpen(mission.question) && !mission.waiting.length) || offers(mission, "promote"),
  },
  {
    id: "resume",
    label: "Resume",
    consequence: "It continues from its last recorded step.",
    fields: [
      { name: "step", label: "Only until its next step", kind: "check" },
      { name: "to_end", label: "Ignore its remaining breakpoints", kind: "check" },
    ],
    when: (mission) => mission.status === "paused" || offers(mission, "resume"),
  },
  {
    id: "pause",
    label: "Pause",
    consequence: "It is frozen until it is resumed. Nothing is lost.",
    fields: [{ name: "reason", label: "Why", kind: "line", hint: "It is recorded." }],
    when: status("planned", "running"),
  },
  {
    id: "send",
    label: "Send a message",
    consequence: "The agent gets it with its next step, or with its next attempt if it cannot listen.",
    fields: [
      { name: "text", label: "Message", kind: "text", required: true },
      { name: "critical", label: "Critical: freeze the agent and ask me if it is not acknowledged in 10 s", kind: "check" },
    ],
    when: status("planned", "running", "paused"),
  },
  {
    id: "continue",
    label: "Continue",
    consequence: "Another attempt continues from its result; after a promotion, a new mission starts from its commit.",
    fields: [{ name: "request", label: "What is still to be done", kind: "text", required: true }],
    when: status("refused", "exhausted", "failed", "cancelled", "promoted"),
  },
  {
    id: "fork",
    label: "Fork",
    consequence: "A new mission takes over everything up to one reply and continues differently from there. This one stays as it is.",
    fields: [
      { name: "at", label: "Reply", kind: "line", hint: "As in the transcript, such as 1.4; empty: the last reply." },
      { name: "model", label: "Model from there on", kind: "line" },
      { name: "reply", label: "Reply to use instead of asking a model", kind: "text" },
    ],
    when: (mission) => mission.attempts.some((attempt) => attempt.agent === "native"),
  },
  {
    id: "rollback",
    label: "Roll back",
    consequence: "A new commit on its branch takes its changes back. Your own branches do not move.",
    danger: true,
    when: (mission) => mission.status === "promoted" && !mission.rolled_back && mission.commit !== null,
  },
  {
    id: "cancel",
    label: "Cancel",
    consequence: "It ends now, with all its tasks, without a promotion. Its work stays in its checkpoints.",
    danger: true,
    when: status("planned", "running", "waiting", "paused"),
  },
  {
    id: "discard",
    label: "Discard",
    consequence: "It is discarded. Its checkpoints stay until they are cleaned up.",
    danger: true,
    fields: [{ name: "reason", label: "Why", kind: "line", hint: "It is recorded." }],
    when: status("waiting", "paused", "refused", "failed", "exhausted", "cancelled"),
  },
];

export function actionsOf(mission: MissionDetails): Action[] {
  return ACTIONS.filter((action) => action.when(mission));
}

/** Returns the body of an action's request: filled fields only, and the tree that the person saw. */
export function actionBody(action: Action, values: Partial<Record<FieldName, string | boolean>>, mission: MissionDetails) {
  const given = (action.fields ?? []).flatMap(({ name }) => {
    const value = values[name];
    return value === undefined || value === "" || value === false ? [] : [[name, value] as const];
  });
  const tree = action.bindsTree && mission.tree !== null ? { tree: mission.tree } : {};
  return { ...Object.fromEntries(given), ...tree };
}
