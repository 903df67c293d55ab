import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import type { ModelStatistics, Statistics } from "../api/contract";
import { listQuery } from "../api/queries";
import { Select } from "../design/Field";
import { Loaded } from "../design/states";
import { lookOf } from "../design/Status";
import { duration, money, UNKNOWN } from "../format";
import { DataTable, Page } from "../system/Page";
import { Bars, type Bar } from "./Bars";
import "./statistics.css";

const PERIODS = [
  { value: "", label: "All missions" },
  { value: "30d", label: "The last 30 days" },
  { value: "7d", label: "The last 7 days" },
  { value: "24h", label: "The last 24 hours" },
];

export default function StatisticsPage() {
  const [since, setSince] = useState("");
  const search = since === "" ? "" : `?since=${since}`;
  return (
    <Page title="Statistics">
      <div className="period">
        <Select label="Of" value={since} onChange={setSince} options={PERIODS} />
      </div>
      <Loaded query={useQuery(listQuery<Statistics>(`stats${search}`))} label="Loading how missions ended">
        {(figures) => <Missions figures={figures} />}
      </Loaded>
      <Loaded query={useQuery(listQuery<ModelStatistics>(`stats/models${search}`))} label="Loading how models did">
        {(figures) => <Models figures={figures} />}
      </Loaded>
    </Page>
  );
}

const share = (part: number, whole: number) => (whole > 0 ? `${Math.round((100 * part) / whole)} %` : UNKNOWN);

function Missions({ figures: { missions, attempts, agents } }: { figures: Statistics }) {
  const statuses = Object.entries(missions.by_status).filter(([, number]) => number > 0);
  const known = Object.entries(agents);
  return (
    <>
      <div className="charts">
        <Chart title={`Missions by status: ${missions.total} in total`} none="There are no missions." bars={statuses.map(([status, value]) => ({ label: lookOf(status).label, value, shown: String(value) }))} />
        <Chart
          title="Cost by agent"
          none="No attempt has ended."
          bars={known.map(([label, { cost }]) => ({ label, value: cost.usd, shown: money(cost.usd, cost.unknown === 0) }))}
        />
        <Chart title="Median time of an attempt, by agent" none="No attempt has ended." bars={known.map(([label, { seconds }]) => ({ label, value: seconds.p50, shown: duration(seconds.p50) }))} />
      </div>
      <DataTable
        caption="Outcomes"
        heads={["Status", "Missions #"]}
        rows={[...statuses.map(([status, number]) => [lookOf(status).label, number]), ["In all", missions.total]]}
        none="There are no missions."
      />
      <DataTable
        caption="By agent"
        heads={["Agent", "Ended #", "Succeeded #", "Share #", "Cost #", "Of unknown cost #", "Median time #"]}
        rows={[...known, ["In all", attempts] as const].map(([agent, { ended, succeeded, cost, seconds }]) => [
          agent,
          ended,
          succeeded,
          share(succeeded, ended),
          money(cost.usd, cost.unknown === 0),
          cost.unknown,
          duration(seconds.p50),
        ])}
        none="No attempt has ended."
      />
    </>
  );
}

function Models({ figures: { models } }: { figures: ModelStatistics }) {
  const none = "No model was asked.";
  return (
    <>
      <div className="charts">
        <Chart title="Cost by model" none={none} bars={models.map(({ model, cost }) => ({ label: model, value: cost.usd, shown: money(cost.usd, cost.unknown === 0) }))} />
        <Chart title="Median time of a call, by model" none={none} bars={models.map(({ model, seconds }) => ({ label: model, value: seconds.p50, shown: duration(seconds.p50) }))} />
      </div>
      <DataTable
        caption="By model"
        heads={["Model", "Provider", "Calls #", "Cost #", "Of unknown cost #", "Median time #", "Attempts #", "Green #"]}
        rows={models.map((model) => [
          model.upstream === model.model ? model.model : `${model.model} (${model.upstream})`,
          model.provider,
          model.calls,
          money(model.cost.usd, model.cost.unknown === 0),
          model.cost.unknown,
          duration(model.seconds.p50),
          model.attempts,
          share(model.verdicts["green"] ?? 0, model.attempts),
        ])}
        none={none}
      />
    </>
  );
}

function Chart({ title, bars, none }: { title: string; bars: readonly Bar[]; none: string }) {
  return (
    <section className="card stack">
      <h2>{title}</h2>
      {bars.length === 0 ? <p className="soft">{none}</p> : <Bars label={title} bars={bars} />}
    </section>
  );
}
