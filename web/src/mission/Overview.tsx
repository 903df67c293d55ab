import { Link } from "@tanstack/react-router";
import type { MissionDetails } from "../api/contract";
import { plainText } from "../format";
import { Attempts } from "./Attempts";
import { FeedbackCard } from "./choices/FeedbackCard";
import { Facts } from "./Facts";
import { Failures } from "./Failures";
import { Verdicts } from "./Verdicts";

export function Overview({ mission }: { mission: MissionDetails }) {
  const { failures, reverted, unread, damaged, reports } = mission;
  return (
    <div className="mission-columns">
      <div className="stack">
        {damaged.length > 0 && (
          <p className="card bad">
            Its log is damaged in {damaged.length} places, and no worker continues it. Run chargehand audit verify {mission.mission}.
          </p>
        )}
        <section className="card stack">
          <h2>Request</h2>
          <p className="wrap">{plainText(mission.request?.text ?? "It is not known any more.")}</p>
        </section>
        {failures.length > 0 && <Failures failures={failures} />}
        {reports.map(({ attempt, role, text }) => (
          <section key={attempt} className="card stack">
            <h2>Report of the {role}</h2>
            <pre className="wrap">{plainText(text)}</pre>
          </section>
        ))}
        {mission.attempts.length > 0 && <Attempts attempts={mission.attempts} />}
        {mission.attempts.some(({ status }) => status !== "running") && <FeedbackCard mission={mission} />}
        {mission.verdicts.length > 0 && <Verdicts verdicts={mission.verdicts} />}
        <Paths title="Reverted" paths={reverted.map(({ path, rule }) => ({ path, why: rule }))} />
        <Paths title="Changed, and opened by no check" paths={(unread ?? []).map((path) => ({ path, why: "unread" }))} />
        {mission.tasks && (
          <p>
            <Link to="/missions/$id/$tab" params={{ id: mission.mission, tab: "plan" }}>
              Its plan has {mission.tasks.total} tasks; {mission.tasks.merged} are merged.
            </Link>
          </p>
        )}
      </div>
      <Facts mission={mission} />
    </div>
  );
}

function Paths({ title, paths }: { title: string; paths: readonly { path: string; why: string }[] }) {
  if (paths.length === 0) return null;
  return (
    <section className="card stack">
      <h2>{title}</h2>
      <ul>
        {paths.map(({ path, why }) => (
          <li key={path} className="row">
            <code className="wrap">{plainText(path)}</code> <span className="soft small">{why}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}
