import type { FailureDocument } from "../api/contract";
import { Status } from "../design/Status";
import { plainText } from "../format";
import { ArtifactLink } from "./ArtifactLink";

export function Failures({ failures }: { failures: readonly FailureDocument[] }) {
  return (
    <section className="card stack">
      <h2>What failed</h2>
      {failures.map((failure) => (
        <div key={`${failure.kind} ${failure.name}`} className="stack failure">
          <div className="row">
            <Status status={failure.status} />
            <code className="wrap">{plainText(failure.name)}</code>
            {failure.artifact && <ArtifactLink id={failure.artifact} label={`All output of ${failure.name}`} />}
          </div>
          {failure.tests.map((test) => (
            <details key={test.name} open={failure.tests.length <= 3}>
              <summary className="mono wrap">{plainText(test.name)}</summary>
              <pre className="code">{plainText(test.lines.join("\n"))}</pre>
            </details>
          ))}
          {failure.tests.length === 0 && failure.lines.length > 0 && <pre className="code">{plainText(failure.lines.join("\n"))}</pre>}
        </div>
      ))}
    </section>
  );
}
