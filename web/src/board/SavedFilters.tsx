import { useNavigate } from "@tanstack/react-router";
import { useState, type SyntheticEvent } from "react";
import type { MissionFilter } from "../api/queries";
import { Button } from "../design/Button";
import { Dialog } from "../design/Dialog";
import { TextField } from "../design/Field";
import { isEmpty, loadSaved, sameFilter, storeSaved, withSaved, type SavedFilter } from "./filter";

export function SavedFilters({ filter }: { filter: MissionFilter }) {
  const navigate = useNavigate();
  const [saved, setSaved] = useState(loadSaved);
  const [naming, setNaming] = useState(false);
  const keep = (next: SavedFilter[]) => {
    storeSaved(next);
    setSaved(next);
  };
  const current = saved.find((entry) => sameFilter(entry.filter, filter));
  return (
    <div role="group" aria-label="Saved filters" className="chips saved">
      {saved.map((entry) => (
        <button
          key={entry.name}
          type="button"
          className="chip"
          aria-pressed={entry === current}
          onClick={() => void navigate({ to: "/", search: entry === current ? {} : entry.filter })}
        >
          {entry.name}
        </button>
      ))}
      {current && (
        <Button kind="quiet" icon="close" onClick={() => keep(saved.filter((entry) => entry !== current))}>
          Forget “{current.name}”
        </Button>
      )}
      {!current && !isEmpty(filter) && (
        <Button kind="quiet" icon="plus" onClick={() => setNaming(true)}>
          Save filter
        </Button>
      )}
      {naming && (
        <NameDialog
          onClose={() => setNaming(false)}
          onName={(name) => {
            keep(withSaved(saved, { name, filter }));
            setNaming(false);
          }}
        />
      )}
    </div>
  );
}

function NameDialog({ onName, onClose }: { onName: (name: string) => void; onClose: () => void }) {
  const [name, setName] = useState("");
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    if (name.trim()) onName(name.trim());
  };
  return (
    <Dialog title="Save this filter" onClose={onClose}>
      <form className="stack" onSubmit={submit}>
        <TextField label="Name" hint="Kept in this browser." value={name} onChange={(event) => setName(event.target.value)} required />
        <div className="dialog-actions">
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" kind="primary">
            Save
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
