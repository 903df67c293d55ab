import { useQuery } from "@tanstack/react-query";
import type { MissionDetails, MissionReport } from "../api/contract";
import { missionPath, reportQuery } from "../api/queries";
import { Scroll } from "../design/Scroll";
import { Loaded } from "../design/states";
import { bytes, clock, plainText } from "../format";
import { useNow } from "../useNow";
import { ArtifactLink } from "./ArtifactLink";
import { DownloadButton } from "./DownloadButton";

export default function ReportTab({ mission }: { mission: MissionDetails }) {
  return (
    <Loaded query={useQuery(reportQuery(mission.mission))} label="Writing the report">
      {(report) => (
        <div className="stack">
          <p className="row">
            <DownloadButton path={`${missionPath(mission.mission)}/report?format=markdown`} name={`${mission.mission}.md`}>
              Download as Markdown
            </DownloadButton>
            {!report.final && <span className="soft">Not final: this is its present state.</span>}
          </p>
          <Events title="Decisions" events={report.decisions} none="No decision was needed." />
          <Events title="Interruptions" events={report.interruptions} none="Nothing interrupted it." />
          <Undo report={report} />
          <Evidence report={report} />
        </div>
      )}
    </Loaded>
  );
}

function Events({ title, events, none }: { title: string; events: MissionReport["decisions"]; none: string }) {
  const now = useNow();
  return (
    <section className="card stack">
      <h2>{title}</h2>
      {events.length === 0 && <p className="soft">{none}</p>}
      <ul className="stack">
        {events.map((event) => (
          <li key={`${event.time} ${event.kind}`} className="wrap">
            <time className="numbers soft">{clock(event.time, now)}</time> <strong>{event.identity ?? ""}</strong> {event.kind}{" "}
            {plainText(event.about)} {plainText(event.text)}
          </li>
        ))}
      </ul>
    </section>
  );
}

function Undo({ report: { undo } }: { report: MissionReport }) {
  return (
    <section className="card stack">
      <h2>How to undo it</h2>
      <p className="wrap">{undo.text}</p>
      {undo.commands.length > 0 && <pre className="code">{undo.commands.join("\n")}</pre>}
    </section>
  );
}

function Evidence({ report: { evidence } }: { report: MissionReport }) {
  return (
    <section className="card stack">
      <h2>Evidence</h2>
      {evidence.length === 0 && <p className="soft">There are no artifacts.</p>}
      <Scroll label="Evidence">
        <table className="table">
          <thead>
            <tr>
              <th scope="col">Artifact</th>
              <th scope="col">Kind</th>
              <th scope="col" className="number">
                Size
              </th>
            </tr>
          </thead>
          <tbody>
            {evidence.map((artifact) => (
              <tr key={artifact.id}>
                <td>
                  <ArtifactLink id={artifact.id} label={artifact.kind} />
                </td>
                <td>{artifact.kind}</td>
                <td className="number">{bytes(artifact.size)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </section>
  );
}
