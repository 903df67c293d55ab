import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import type { ConfigurationView, ProjectList } from "../api/contract";
import { listQuery } from "../api/queries";
import { Select, TextField } from "../design/Field";
import { Loaded } from "../design/states";
import { DataTable, Page } from "./Page";

export default function SettingsPage() {
  const [project, setProject] = useState("");
  const projects = useQuery(listQuery<ProjectList>("projects")).data?.projects ?? [];
  const query = useQuery(listQuery<ConfigurationView>(project ? `config?project=${encodeURIComponent(project)}` : "config"));
  return (
    <Page title="Settings">
      <p className="soft">
        The settings in force, with their sources. Change them with <code>chargehand config set KEY VALUE</code> on the machine of the server.
      </p>
      <Select
        label="As seen from"
        value={project}
        onChange={setProject}
        options={[{ value: "", label: "The server" }, ...projects.map(({ id, name }) => ({ value: id, label: name }))]}
      />
      <Loaded query={query} label="Loading settings">
        {(view) => <Values view={view} />}
      </Loaded>
    </Page>
  );
}

function Values({ view }: { view: ConfigurationView }) {
  const [wanted, setWanted] = useState("");
  const values = Object.entries(view.values as Record<string, unknown>).filter(([key]) => key.includes(wanted.trim().toLowerCase()));
  return (
    <>
      {view.notes.map((note) => (
        <p key={note} className="card warn wrap">
          {note}
        </p>
      ))}
      {view.untrusted.length > 0 && (
        <DataTable
          caption="Not in force until the project is trusted"
          heads={["Key", "Value", "Where", "Why"]}
          rows={view.untrusted.map(({ key, value, place, reason }) => [key, value, place, reason])}
          none=""
        />
      )}
      <TextField label="Find a key" type="search" value={wanted} onChange={(event) => setWanted(event.target.value)} />
      <DataTable
        caption="Values"
        heads={["Key", "Value", "From"]}
        rows={values.map(([key, value]) => [<code key="key">{key}</code>, shown(value), view.origins?.[key] ?? "default"])}
        none="No key matches."
      />
    </>
  );
}

function shown(value: unknown): string {
  if (value === null || value === undefined) return "not set";
  if (Array.isArray(value)) return value.length > 0 ? value.map(String).join(", ") : "none";
  return typeof value === "string" ? value : JSON.stringify(value);
}
