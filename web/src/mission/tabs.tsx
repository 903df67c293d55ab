import { Link } from "@tanstack/react-router";
import { lazy, type ComponentType } from "react";
import type { MissionDetails } from "../api/contract";
import { Overview } from "./Overview";

export interface Tab {
  id: string;
  label: string;
  Panel: ComponentType<{ mission: MissionDetails }>;
  when?: (mission: MissionDetails) => boolean;
}

/** The tabs of a mission in order; each except the first is loaded when it is opened. */
export const TABS: readonly Tab[] = [
  { id: "overview", label: "Overview", Panel: Overview },
  { id: "plan", label: "Plan", Panel: lazy(() => import("./plan/PlanTab")), when: ({ tasks }) => tasks !== null },
  { id: "timeline", label: "Timeline", Panel: lazy(() => import("./TimelineTab")) },
  { id: "transcript", label: "Transcript", Panel: lazy(() => import("./TranscriptTab")), when: ({ attempts }) => attempts.length > 0 },
  { id: "terminal", label: "Terminal", Panel: lazy(() => import("./terminal/TerminalTab")) },
  { id: "changes", label: "Changes", Panel: lazy(() => import("./changes/ChangesTab")) },
  { id: "review", label: "Review", Panel: lazy(() => import("./review/ReviewTab")), when: ({ checkpoints }) => checkpoints.length > 0 },
  { id: "choices", label: "Choices", Panel: lazy(() => import("./choices/ChoicesTab")) },
  { id: "report", label: "Report", Panel: lazy(() => import("./ReportTab")) },
];

export function MissionTabs({ mission }: { mission: MissionDetails }) {
  return (
    <nav className="tabs" aria-label="Pages of the mission">
      {TABS.filter(({ when }) => when?.(mission) ?? true).map(({ id, label }) =>
        id === "overview" ? (
          <Link key={id} to="/missions/$id" params={{ id: mission.mission }} activeOptions={{ exact: true }} replace resetScroll={false}>
            {label}
          </Link>
        ) : (
          <Link key={id} to="/missions/$id/$tab" params={{ id: mission.mission, tab: id }} replace resetScroll={false}>
            {label}
          </Link>
        ),
      )}
    </nav>
  );
}
