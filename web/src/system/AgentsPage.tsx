import { useQuery } from "@tanstack/react-query";
import type { AgentList, ModelList, ModelStatistics, RoleList } from "../api/contract";
import { listQuery } from "../api/queries";
import { Badge } from "../design/Badge";
import { Loaded } from "../design/states";
import { duration, money, UNKNOWN } from "../format";
import { DataTable, Page } from "./Page";

export default function AgentsPage() {
  return (
    <Page title="Agents & models">
      <Loaded query={useQuery(listQuery<AgentList>("agents"))} label="Loading agents">
        {(list) => <Agents list={list} />}
      </Loaded>
      <Loaded query={useQuery(listQuery<ModelList>("models"))} label="Loading models">
        {(list) => <Models list={list} />}
      </Loaded>
      <Loaded query={useQuery(listQuery<ModelStatistics>("stats/models"))} label="Loading figures">
        {(figures) => <Figures figures={figures} />}
      </Loaded>
      <Loaded query={useQuery(listQuery<RoleList>("roles"))} label="Loading roles">
        {(list) => <Roles list={list} />}
      </Loaded>
    </Page>
  );
}

function Agents({ list }: { list: AgentList }) {
  return (
    <>
      <DataTable
        caption="Agents"
        heads={["Agent", "Kind", "Command", "Model", "From"]}
        rows={list.agents.map((agent) => [agent.name, agent.kind, agent.cli ?? agent.command.join(" "), agent.model ?? "as configured", agent.origin])}
        none="No agent is configured."
      />
      <DataTable
        caption="Found on this machine"
        heads={["Program", "Path", "Driven"]}
        rows={list.found.map((program) => [program.name, program.path, program.driven ? "yes" : "no"])}
        none="No other agent was found on the PATH of the server."
      />
    </>
  );
}

function Models({ list }: { list: ModelList }) {
  return (
    <DataTable
      caption="Models"
      heads={["Name", "Provider", "Model", "Address", "Key", "From"]}
      rows={list.models.map((model) => [
        model.name,
        model.provider,
        model.model,
        model.base_url ?? "",
        <Badge key="key" tone={model.key.found ? "good" : "warn"} icon={model.key.found ? "promoted" : "help"}>
          {model.key.found ? "found" : model.key.name === null ? "not needed" : "missing"}
        </Badge>,
        model.origin,
      ])}
      none="No model is configured. Run chargehand init, or set one with chargehand config edit."
    />
  );
}

function Figures({ figures }: { figures: ModelStatistics }) {
  const share = (part: number | undefined, whole: number) => (whole > 0 ? `${Math.round((100 * (part ?? 0)) / whole)} %` : UNKNOWN);
  return (
    <DataTable
      caption="How models did"
      heads={["Model", "Calls #", "Failed #", "Input tokens #", "Output tokens #", "Cost #", "Median time #", "Attempts #", "Green #"]}
      rows={figures.models.map((model) => [
        model.upstream === model.model ? model.model : `${model.model} (${model.upstream})`,
        model.calls,
        Object.values(model.errors).reduce((sum, number) => sum + number, 0),
        model.tokens.input.toLocaleString("en"),
        model.tokens.output.toLocaleString("en"),
        money(model.cost.usd, model.cost.unknown === 0),
        duration(model.seconds.p50),
        model.attempts,
        share(model.verdicts["green"], model.attempts),
      ])}
      none="No model was asked yet."
    />
  );
}

function Roles({ list }: { list: RoleList }) {
  return (
    <DataTable
      caption="Roles"
      heads={["Role", "What it does", "Changes files", "From"]}
      rows={list.roles.map((role) => [role.name, role.problem ?? role.role?.summary ?? "", role.role?.writes ? "yes" : "no", role.place])}
      none="There are no roles."
    />
  );
}
