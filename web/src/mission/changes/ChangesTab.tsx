import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import type { DiffDocument, MissionDetails } from "../../api/contract";
import { changesQuery } from "../../api/queries";
import { Button } from "../../design/Button";
import { EmptyState, Loaded } from "../../design/states";
import { count } from "../../format";
import { CheckpointRange } from "./CheckpointRange";
import { FileList } from "./FileList";
import { FileDiff } from "./FileDiff";
import { useCanAct } from "../useCanAct";
import { RestoreDialog } from "./RestoreDialog";
import { stops, type Stop } from "./stops";
import "./changes.css";

interface Choice {
  from?: string;
  to?: string;
  file?: string;
}

export default function ChangesTab({ mission }: { mission: MissionDetails }) {
  const { from, to, file }: Choice = useSearch({ strict: false });
  const navigate = useNavigate();
  const places = stops(mission);
  const old = places.find(({ id }) => id === from)?.id ?? "base";
  const last = places.at(-1)?.id ?? "base";
  const now = places.find(({ id }) => id === to)?.id ?? last;
  const query = useQuery({ ...changesQuery(mission.mission, old, now), enabled: places.length > 1 });
  const change = (choice: Choice) =>
    void navigate({
      to: "/missions/$id/$tab",
      params: { id: mission.mission, tab: "changes" },
      search: (before: Choice) => ({ ...before, ...choice }),
      replace: true,
      resetScroll: false,
    });
  if (places.length < 2) return <EmptyState title="Nothing has changed yet." />;
  return (
    <div className="stack">
      <CheckpointRange stops={places} from={old} to={now} onChange={change} />
      <Restore mission={mission} stop={places.find(({ id }) => id === now)} />
      <Loaded query={query} label="Comparing">
        {(changes) => <Files mission={mission} changes={changes} from={old} to={now} file={file} onFile={(path) => change({ file: path })} />}
      </Loaded>
    </div>
  );
}

/** Offers to restore the selected tree if it is not the current one. */
function Restore({ mission, stop }: { mission: MissionDetails; stop: Stop | undefined }) {
  const [open, setOpen] = useState(false);
  const canAct = useCanAct();
  const last = mission.checkpoints.at(-1)?.commit;
  if (!canAct || !stop || stop.id === last || stop.id === "result" || last === undefined) return null;
  return (
    <div className="row">
      <Button icon="undone" onClick={() => setOpen(true)}>
        Restore {stop.label.split(",")[0]}…
      </Button>
      {open && <RestoreDialog mission={mission} stop={stop} onClose={() => setOpen(false)} />}
    </div>
  );
}

interface FilesProps {
  mission: MissionDetails;
  changes: DiffDocument;
  from: string;
  to: string;
  file: string | undefined;
  onFile: (path: string) => void;
}

function Files({ mission, changes, from, to, file, onFile }: FilesProps) {
  const chosen = changes.files.find(({ path }) => path === file) ?? changes.files[0];
  if (!chosen) return <EmptyState title="These two do not differ." />;
  const added = changes.files.reduce((sum, entry) => sum + (entry.added ?? 0), 0);
  const removed = changes.files.reduce((sum, entry) => sum + (entry.removed ?? 0), 0);
  return (
    <>
      <p className="numbers" role="status">
        {count(changes.files.length, "file")}, <span className="tone-good">+{added}</span> <span className="tone-bad">−{removed}</span>
      </p>
      <div className="changes">
        <FileList files={changes.files} chosen={chosen.path} onChoose={onFile} />
        <FileDiff key={chosen.path} mission={mission.mission} path={chosen.path} from={from} to={to} />
      </div>
    </>
  );
}
