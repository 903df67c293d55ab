import type { ReactNode } from "react";
import type { MissionDetails } from "../api/contract";
import { bytes, count, duration, money, shortCommit, UNKNOWN } from "../format";
import { useNow } from "../useNow";
import { elapsed } from "./facts";

export function Facts({ mission }: { mission: MissionDetails }) {
  const { request, base, network } = mission;
  const now = useNow();
  // In a plan the limit applies to each task separately.
  const limit = (mission.tasks ? request?.plan_seconds : request?.seconds) ?? null;
  const facts: [string, ReactNode][] = [
    ["Cost", money(mission.cost_usd, mission.cost_known)],
    ["Budget", mission.budget_usd === null ? "no limit" : money(mission.budget_usd)],
    ["Time", duration(elapsed(mission, now))],
    ["Time limit", limit !== null && duration(limit)],
    ["Attempts", mission.tasks ? null : request ? `${mission.attempts.length} of ${request.attempts}` : String(mission.attempts.length)],
    ["Role", mission.role],
    ["Agent", request?.agent],
    ["Model", request?.model],
    ["Branch", mission.branch && <code className="wrap">{mission.branch}</code>],
    ["Commit", mission.commit && <code title={mission.commit}>{shortCommit(mission.commit)}</code>],
    ["Export", mission.export && stateOf(mission.export)],
    ["Applied", mission.applied && stateOf(mission.applied)],
    ["Base", base && <code title={base.commit}>{`${base.branch ?? base.revision} @ ${shortCommit(base.commit)}`}</code>],
    ["Sandbox", mission.tier && `${mission.tier.tier}: ${mission.tier.reason}`],
    ["Network", `${count(network.allowed, "request")} let through, ${network.refused} refused, ${bytes(network.bytes_in)} in`],
    ["Checkpoints", String(mission.checkpoints.length)],
    ["Repository", <span className="wrap">{mission.repository}</span>],
    ["Created", <Moment key="created" iso={mission.created} />],
    ["Updated", <Moment key="updated" iso={mission.updated} />],
  ];
  return (
    <aside className="card" aria-label="Facts">
      <dl className="facts">
        {facts
          .filter(([, value]) => value !== false && value !== null && value !== undefined && value !== "")
          .map(([name, value]) => (
            <div key={name} className="fact">
              <dt>{name}</dt>
              <dd className="numbers">{value}</dd>
            </div>
          ))}
      </dl>
    </aside>
  );
}

function stateOf({ state, reason }: { state: string; reason: string }): string {
  return reason ? `${state}: ${reason}` : state;
}

function Moment({ iso }: { iso: string }) {
  const time = new Date(iso);
  return (
    <time dateTime={iso} title={iso}>
      {Number.isNaN(time.getTime()) ? UNKNOWN : time.toLocaleString()}
    </time>
  );
}
