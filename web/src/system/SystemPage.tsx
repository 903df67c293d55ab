import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import type { Statistics, SystemView } from "../api/contract";
import { listQuery } from "../api/queries";
import { Loaded } from "../design/states";
import { Status } from "../design/Status";
import { bytes, count, duration, money, UNKNOWN } from "../format";
import { AlertsCard } from "./AlertsCard";
import { AuditCard } from "./AuditCard";
import { DataTable, Page } from "./Page";

const MIB = 1024 * 1024;
// Workers and the queue change without an event of any mission.
const LOOK_MS = 5000;

export default function SystemPage() {
  return (
    <Page title="System">
      <Loaded query={useQuery({ ...listQuery<SystemView>("system"), refetchInterval: LOOK_MS })} label="Loading the system">
        {(system) => <Now system={system} />}
      </Loaded>
      <AlertsCard />
      <Loaded query={useQuery(listQuery<Statistics>("stats"))} label="Loading figures">
        {(figures) => <Figures figures={figures} />}
      </Loaded>
      <AuditCard />
    </Page>
  );
}

function Now({ system }: { system: SystemView }) {
  const used = 1 - system.disk_free_mb / system.disk_total_mb;
  return (
    <>
      <div className="tiles">
        <Tile name="Running" value={String(system.running)} />
        <Tile name="In the queue" value={String(system.queued)} />
        <Tile name="Waiting for their tasks" value={String(system.sleeping)} />
        <div className="card tile">
          <span className="soft">Open questions</span>
          <Link to="/" search={{ status: "waiting" }} className="tile-value numbers">
            {system.open_questions}
          </Link>
        </div>
        <div className="card tile">
          <span className="soft" id="disk">
            Disk: {bytes(system.disk_free_mb * MIB)} free of {bytes(system.disk_total_mb * MIB)}
          </span>
          <meter aria-labelledby="disk" min={0} max={1} high={0.9} optimum={0} value={used} />
        </div>
      </div>
      <DataTable
        caption="Workers"
        heads={["Worker", "Role", "Process #", "Version", "Missions #"]}
        rows={system.workers.map((worker) => [worker.id, worker.role, worker.pid, worker.version, worker.missions])}
        none="No worker is alive: missions wait until one is. Start one with chargehand worker."
      />
      <p className="soft small wrap">
        Version {system.version}, state in <code>{system.home}</code>, {count(system.position, "event")} in all logs.{" "}
        <a href="/licenses.txt">Licenses of the packages in these pages</a>
      </p>
    </>
  );
}

function Tile({ name, value }: { name: string; value: string }) {
  return (
    <div className="card tile">
      <span className="soft">{name}</span>
      <span className="tile-value numbers">{value}</span>
    </div>
  );
}

function Figures({ figures: { missions, rates, attempts, causes } }: { figures: Statistics }) {
  const share = (rate: number | null) => (rate === null ? UNKNOWN : `${Math.round(rate * 100)} %`);
  return (
    <>
      <section className="card stack">
        <h2>How missions ended</h2>
        <p>
          {count(missions.ended, "mission")} ended: {share(rates.promotion)} promoted, {share(rates.engine_failure)} by a fault of
          the engine. Half took less than {duration(missions.seconds.p50)}. Attempts cost {money(attempts.cost.usd, attempts.cost.unknown === 0)} in all.
        </p>
        <ul className="row">
          {Object.entries(missions.by_status)
            .filter(([, number]) => number > 0)
            .map(([status, number]) => (
              <li key={status} className="row">
                <Status status={status} /> <span className="numbers">{number}</span>
              </li>
            ))}
        </ul>
      </section>
      <DataTable
        caption="Why missions did not succeed"
        heads={["Cause", "Missions #", "Attempts #", "Remedy"]}
        rows={causes.map((cause) => [cause.code ?? cause.class, cause.missions, cause.attempts, cause.remedy])}
        none="None has ended without success."
      />
    </>
  );
}
