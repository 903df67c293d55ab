import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState, type SyntheticEvent } from "react";
import { ApiError, post } from "../api/client";
import type { MissionDocument, ProjectList } from "../api/contract";
import { listQuery } from "../api/queries";
import { Button } from "../design/Button";
import { Dialog } from "../design/Dialog";
import { Select, TextArea } from "../design/Field";
import { Loaded } from "../design/states";
import { toast } from "../design/Toasts";
import { newKey } from "../newKey";
import { MissionLimits } from "./MissionLimits";
import { EMPTY, missionBody, problems, type Wish } from "./newMission";

export function NewMission({ onClose }: { onClose: () => void }) {
  const projects = useQuery(listQuery<ProjectList>("projects"));
  return (
    <Dialog title="New mission" onClose={onClose} keep>
      <Loaded query={projects} label="Loading projects">
        {({ projects: known }) =>
          known.length > 0 ? (
            <Form projects={known} onClose={onClose} />
          ) : (
            <>
              <p>
                No repository is registered yet. Run <code>chargehand init</code> in one, or add it on the page Projects.
              </p>
              <div className="dialog-actions">
                <Button onClick={onClose}>Close</Button>
              </div>
            </>
          )
        }
      </Loaded>
    </Dialog>
  );
}

function Form({ projects, onClose }: { projects: ProjectList["projects"]; onClose: () => void }) {
  const [wish, setWish] = useState<Wish>({ ...EMPTY, repo: projects[0]?.id ?? "" });
  const [tried, setTried] = useState(false);
  const { start, busy, error } = useStart(onClose);
  const found = tried ? problems(wish) : {};
  const change = (part: Partial<Wish>) => setWish((before) => ({ ...before, ...part }));
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    setTried(true);
    if (Object.keys(problems(wish)).length === 0) void start(wish);
  };
  return (
    <form className="stack" onSubmit={submit} noValidate>
      <TextArea
        label="What is to be done"
        rows={5}
        // A form is opened to be written in.
        // eslint-disable-next-line jsx-a11y/no-autofocus
        autoFocus
        required
        value={wish.request}
        error={found.request}
        onChange={(event) => change({ request: event.target.value })}
      />
      <Select
        label="Repository"
        value={wish.repo}
        onChange={(repo) => change({ repo })}
        options={projects.map(({ id, name, path }) => ({ value: id, label: `${name} (${path})` }))}
      />
      <MissionLimits wish={wish} problems={found} onChange={change} />
      {error && (
        <p role="alert" className="card bad wrap">
          {error}
        </p>
      )}
      <div className="dialog-actions">
        <Button onClick={onClose}>Cancel</Button>
        <Button type="submit" kind="primary" busy={busy}>
          Start mission
        </Button>
      </div>
    </form>
  );
}

function useStart(onClose: () => void) {
  const navigate = useNavigate();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  // Submitting twice, by a double click or after a lost response, creates one mission.
  const [key, setKey] = useState(newKey);
  const start = async (wish: Wish) => {
    setBusy(true);
    setError("");
    try {
      const made = await post<MissionDocument>("/missions", missionBody(wish, key));
      onClose();
      toast("The mission was started.");
      await navigate({ to: "/missions/$id", params: { id: made.mission } });
    } catch (failure) {
      const known = failure instanceof ApiError;
      // After a refusal a changed request may be sent; a request whose outcome is unknown must keep its key.
      if (known && failure.status >= 400 && failure.status < 500) setKey(newKey());
      setError(known ? `${failure.message} ${failure.hint}`.trim() : String(failure));
      setBusy(false);
    }
  };
  return { start, busy, error };
}
