import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import type { LearnedArm, ModelStatistics, ProjectList } from "../api/contract";
import { listQuery, search } from "../api/queries";
import { CopyCommand } from "../design/CopyCommand";
import { Select } from "../design/Field";
import { Loaded } from "../design/states";
import { money, percent, plainText } from "../format";
import { DataTable } from "../system/Page";

const CAPTION = "Agents and models";

/** The beliefs about each agent with its model in one project. */
export function Beliefs() {
  const [chosen, setChosen] = useState("");
  return (
    <Loaded query={useQuery(listQuery<ProjectList>("projects"))} label="Loading projects">
      {({ projects }) => {
        const project = projects.find(({ id }) => id === chosen) ?? projects[0];
        if (!project) return <DataTable caption={CAPTION} heads={[]} rows={[]} none="No repository is registered yet: run chargehand init in one." />;
        const options = projects.map(({ id, name }) => ({ value: id, label: plainText(name) }));
        return (
          <>
            <div className="decisions-project">
              <Select label="Project" value={project.id} onChange={setChosen} options={options} />
            </div>
            <ProjectBeliefs project={project.id} />
          </>
        );
      }}
    </Loaded>
  );
}

function ProjectBeliefs({ project }: { project: string }) {
  const query = useQuery(listQuery<ModelStatistics>(`stats/models?${search({ project })}`));
  return (
    <Loaded query={query} label="Loading the beliefs about agents and models">
      {({ learned, learns }) => (
        <DataTable
          caption={CAPTION}
          heads={["Agent and model", "Green", "Chance on a new task, with its 80 % band", "Expected price #"]}
          rows={learned.map((arm) => [
            plainText(arm.name),
            `${arm.good} of ${arm.attempts}`,
            <ChanceBand key="chance" arm={arm} />,
            money(arm.price_usd),
          ])}
          none={learns ? "No attempt of this project has ended by its own work." : "Choices are not learned from outcomes."}
        >
          {!learns && (
            <p className="row">
              Turn that on with <CopyCommand command="chargehand config set decisions.learned true" />
              (it needs the optional part chargehand[decisions]).
            </p>
          )}
        </DataTable>
      )}
    </Loaded>
  );
}

function ChanceBand({ arm: { chance, low, high } }: { arm: LearnedArm }) {
  return (
    <span className="chance-band">
      <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true" focusable="false">
        <rect width="100" height="10" className="bar-ground" />
        <rect x={100 * low} width={Math.max(100 * (high - low), 0.5)} height="10" className="band-range" />
        <rect x={Math.min(100 * chance, 99.2)} width="0.8" height="10" className="band-middle" />
      </svg>
      <span className="numbers">
        {percent(chance)} ({percent(low)} to {percent(high)})
      </span>
    </span>
  );
}
