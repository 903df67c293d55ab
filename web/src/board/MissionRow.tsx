import { Link } from "@tanstack/react-router";
import type { ListedMission } from "../api/contract";
import { Button } from "../design/Button";
import { Status } from "../design/Status";
import { ago, baseName, count, duration, firstLine, money, plainText } from "../format";
import { elapsed } from "../mission/facts";
import { useNow } from "../useNow";
import type { BoardRow } from "./rows";

interface Props {
  row: BoardRow;
  onToggle: (mission: string) => void;
}

export function MissionRow({ row: { mission, depth, tasks, expanded }, onToggle }: Props) {
  const title = firstLine(plainText(mission.request ?? "")) || mission.mission;
  return (
    <div className="board-row" data-depth={Math.min(depth, 2)}>
      <span className="board-fold">
        {tasks > 0 && (
          <Button
            kind="quiet"
            icon="chevron"
            className={expanded ? "fold open" : "fold"}
            aria-expanded={expanded}
            aria-label={`Tasks of ${title}`}
            onClick={() => onToggle(mission.mission)}
          />
        )}
      </span>
      <span className="board-status">
        <Status status={mission.status} rolledBack={mission.rolled_back} />
      </span>
      <span className="board-title">
        <Link to="/missions/$id" params={{ id: mission.mission }} className="cut" data-row>
          {mission.task !== null && <span className="soft mono">{mission.task} </span>}
          {title}
        </Link>
        <span className="cut small soft">{remark(mission, tasks)}</span>
      </span>
      <span className="board-project cut" title={mission.repository}>
        {baseName(mission.repository)}
      </span>
      <span className="board-agent cut soft">{worker(mission)}</span>
      <Amounts mission={mission} />
    </div>
  );
}

function Amounts({ mission }: { mission: ListedMission }) {
  const now = useNow();
  return (
    <>
      <span className="board-cost numbers">
        <span className="sr-only">Cost </span>
        {money(mission.cost_usd, mission.cost_known)}
      </span>
      <span className="board-time numbers">
        <span className="sr-only">Took </span>
        {duration(elapsed(mission, now))}
      </span>
      <time className="board-updated numbers soft" dateTime={mission.updated} title={mission.updated}>
        {ago(mission.updated, now)}
      </time>
    </>
  );
}

function worker(mission: ListedMission): string {
  const attempt = mission.attempts.at(-1);
  if (!attempt) return mission.role ?? "";
  return attempt.model ? `${attempt.agent} · ${attempt.model}` : attempt.agent;
}

/** The most important fact about a mission apart from its status, in one line. */
function remark(mission: ListedMission, tasks: number): string {
  const { question, waiting, waits, tasks: tally, reasons } = mission;
  if (mission.damaged) return "Its log is damaged: run chargehand audit verify.";
  if (question && !question.answer && !question.until) return `Asks: ${firstLine(plainText(question.text))}`;
  const first = waiting[0];
  if (first) return `${count(waiting.length, "task")} waiting for you: ${first.task}, ${plainText(first.message)}`;
  if (waits) return `Waits: ${plainText(waits.message)}`;
  if (tally) return `${tally.merged} of ${count(tally.total, "task")} merged`;
  if (tasks > 0) return count(tasks, "task");
  return plainText(reasons[0]?.message ?? mission.branch ?? mission.mission);
}
