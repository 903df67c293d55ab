import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { ApiError, post } from "../../api/client";
import type { Accepted, MissionDetails, RestoreDocument } from "../../api/contract";
import { missionPath } from "../../api/queries";
import { Button } from "../../design/Button";
import { Dialog } from "../../design/Dialog";
import { toast } from "../../design/Toasts";
import { PlanOfRestore } from "../review/PlanOfRestore";
import type { Stop } from "./stops";

interface Props {
  mission: MissionDetails;
  stop: Stop;
  onClose: () => void;
}

/** Shows what a restore to a checkpoint would do, and does it once a person confirms. */
export function RestoreDialog({ mission, stop, onClose }: Props) {
  const client = useQueryClient();
  const path = `${missionPath(mission.mission)}/restore`;
  // The plan of the restore depends on the current tree.
  const last = mission.checkpoints.at(-1)?.commit ?? "";
  const [seen] = useState(last);
  const plan = useQuery({
    queryKey: ["mission", mission.mission, "restore", stop.id, last],
    queryFn: () => post<RestoreDocument>(path, { checkpoint: stop.id, dry_run: true }),
    retry: false,
  });
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const restore = async () => {
    setBusy(true);
    try {
      const done = await post<RestoreDocument | Accepted>(path, { checkpoint: stop.id });
      onClose();
      toast("accepted" in done ? "The restore is under way." : "Restored.");
      await client.invalidateQueries({ queryKey: ["mission", mission.mission] });
    } catch (failure) {
      setError(failure instanceof ApiError ? `${failure.message} ${failure.hint}`.trim() : String(failure));
      setBusy(false);
    }
  };
  return (
    <Dialog title="Restore this checkpoint?" onClose={onClose}>
      <div className="stack">
        <p>{stop.label}</p>
        <PlanOfRestore plan={plan} stale={seen !== last} />
        {error && (
          <p role="alert" className="card bad wrap">
            {error}
          </p>
        )}
        <div className="dialog-actions">
          <Button onClick={onClose}>Back</Button>
          <Button kind="primary" busy={busy} disabled={plan.data === undefined || seen !== last} onClick={() => void restore()}>
            Restore
          </Button>
        </div>
      </div>
    </Dialog>
  );
}
