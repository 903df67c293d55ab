import type { AttemptDetails } from "../api/contract";
import { Scroll } from "../design/Scroll";
import { Status } from "../design/Status";
import { bytes, duration, money, plainText } from "../format";
import { ArtifactLink } from "./ArtifactLink";

export function Attempts({ attempts }: { attempts: readonly AttemptDetails[] }) {
  return (
    <section className="card stack">
      <h2>Attempts</h2>
      <Scroll label="Attempts">
        <table className="table">
          <thead>
            <tr>
              <th scope="col">No.</th>
              <th scope="col">Status</th>
              <th scope="col">Verdict</th>
              <th scope="col">Agent</th>
              <th scope="col" className="number">
                Cost
              </th>
              <th scope="col" className="number">
                Time
              </th>
              <th scope="col" className="number">
                Memory
              </th>
              <th scope="col">Why</th>
            </tr>
          </thead>
          <tbody>
            {attempts.map((attempt) => (
              <AttemptRow key={attempt.id} attempt={attempt} />
            ))}
          </tbody>
        </table>
      </Scroll>
    </section>
  );
}

function AttemptRow({ attempt }: { attempt: AttemptDetails }) {
  return (
    <tr>
      <th scope="row">{attempt.number}</th>
      <td>
        <Status status={attempt.status} />
      </td>
      <td>{attempt.verdict ? <Status status={attempt.verdict} /> : <span className="soft">none</span>}</td>
      <td className="wrap">
        {attempt.agent}
        {attempt.model && <span className="soft"> · {attempt.model}</span>}
      </td>
      <td className="number">{money(attempt.cost_usd, attempt.cost_known)}</td>
      <td className="number">{attempt.seconds === null ? "running" : duration(attempt.seconds)}</td>
      <td className="number">{bytes(attempt.usage.peak_memory)}</td>
      <td className="wrap small">
        {attempt.reasons.map(({ code, message }) => (
          <p key={code + message}>{plainText(message)}</p>
        ))}
        {attempt.captured && <ArtifactLink id={attempt.captured} label={`failure snapshot of attempt ${attempt.number}`} />}
      </td>
    </tr>
  );
}
