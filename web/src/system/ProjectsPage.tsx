import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState, type SyntheticEvent } from "react";
import { ApiError, post } from "../api/client";
import type { ProjectList } from "../api/contract";
import { listQuery } from "../api/queries";
import { Button } from "../design/Button";
import { TextField } from "../design/Field";
import { Loaded } from "../design/states";
import { toast } from "../design/Toasts";
import { useCanAct } from "../mission/useCanAct";
import { DataTable, Page } from "./Page";

export default function ProjectsPage() {
  const canAct = useCanAct();
  return (
    <Page title="Projects">
      <Loaded query={useQuery(listQuery<ProjectList>("projects"))} label="Loading projects">
        {({ projects }) => (
          <DataTable
            caption="Registered repositories"
            heads={["Project", "Path", "Missions #"]}
            rows={projects.map(({ id, name, path, missions }) => [
              name,
              <code key="path">{path}</code>,
              <Link key="missions" to="/" search={{ project: id }} aria-label={`${missions} missions of ${name}`}>
                {missions}
              </Link>,
            ])}
            none="No repository is registered yet: run chargehand init in one."
          />
        )}
      </Loaded>
      {canAct && <AddProject />}
    </Page>
  );
}

function AddProject() {
  const client = useQueryClient();
  const [path, setPath] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<string>();
  const submit = async (event: SyntheticEvent) => {
    event.preventDefault();
    setBusy(true);
    setError(undefined);
    try {
      await post("/projects", { path: path.trim() });
      toast("The repository is registered.");
      setPath("");
      await client.invalidateQueries({ queryKey: ["projects"] });
    } catch (failure) {
      setError(failure instanceof ApiError ? `${failure.message} ${failure.hint}`.trim() : String(failure));
    }
    setBusy(false);
  };
  return (
    <form className="card stack" onSubmit={(event) => void submit(event)}>
      <h2>Register a repository</h2>
      <TextField
        label="Path on the machine of the server"
        placeholder="/srv/shop"
        value={path}
        error={error}
        required
        onChange={(event) => setPath(event.target.value)}
      />
      <div>
        <Button type="submit" busy={busy} disabled={!path.trim()}>
          Register
        </Button>
      </div>
    </form>
  );
}
