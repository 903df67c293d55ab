import type { CheckResult, Verdict } from "../api/contract";
import { Scroll } from "../design/Scroll";
import { Status } from "../design/Status";
import { duration, plainText, shortCommit } from "../format";
import { ArtifactLink } from "./ArtifactLink";

const SCOPES = { base: "Before: the base", attempt: "Result of an attempt", merged: "Merged with the branch" } as const;

export function Verdicts({ verdicts }: { verdicts: readonly Verdict[] }) {
  return (
    <section className="card stack">
      <h2>Verdicts</h2>
      {verdicts.map((verdict, index) => (
        <details key={`${verdict.tree} ${index}`} open={index === verdicts.length - 1}>
          <summary>
            <Status status={verdict.status} /> {SCOPES[verdict.scope]} <span className="mono soft small">tree {shortCommit(verdict.tree)}</span>
          </summary>
          <Checks checks={verdict.checks} />
          <Findings verdict={verdict} />
        </details>
      ))}
    </section>
  );
}

function Checks({ checks }: { checks: readonly CheckResult[] }) {
  if (checks.length === 0) return <p className="soft">No check ran.</p>;
  return (
    <Scroll label="Checks">
      <table className="table">
        <thead>
          <tr>
            <th scope="col">Check</th>
            <th scope="col">Result</th>
            <th scope="col" className="number">
              Tests
            </th>
            <th scope="col" className="number">
              Time
            </th>
            <th scope="col">Output</th>
          </tr>
        </thead>
        <tbody>
          {checks.map((check) => (
            <tr key={check.name}>
              <th scope="row" className="wrap mono">
                {plainText(check.name)}
              </th>
              <td>
                <Status status={check.status} />
              </td>
              <td className="number">{check.tests ?? "unknown"}</td>
              <td className="number">{duration(check.seconds)}</td>
              <td>{check.artifact && <ArtifactLink id={check.artifact} label={`output of ${check.name}`} />}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function Findings({ verdict }: { verdict: Verdict }) {
  if (verdict.findings.length === 0) return null;
  return (
    <ul className="stack findings">
      {verdict.findings.map((finding) => (
        <li key={`${finding.rule} ${finding.path} ${finding.message}`} className="wrap">
          <strong>{finding.severity}</strong> <code>{plainText(finding.path)}</code>
          {finding.line !== null && `:${finding.line}`} {plainText(finding.message)} <span className="soft small">{finding.rule}</span>
        </li>
      ))}
    </ul>
  );
}
