import { useQuery } from "@tanstack/react-query";
import { useState, type SyntheticEvent } from "react";
import { post } from "../../api/client";
import type { ChangeReview, MissionDetails, RestoreDocument, ReviewFile } from "../../api/contract";
import { missionPath } from "../../api/queries";
import { Button } from "../../design/Button";
import { Dialog } from "../../design/Dialog";
import { TextArea } from "../../design/Field";
import { count } from "../../format";
import { actionsOf } from "../actions";
import { isOpen } from "../facts";
import { useCanAct } from "../useCanAct";
import { progressOf, type Act, type Decisions } from "./decisions";
import { messageOf, takenBack, wayToAgent } from "./finish";
import { PlanOfRestore } from "./PlanOfRestore";
import type { Unit } from "./units";
import { useFinish } from "./useFinish";

interface Props {
  mission: MissionDetails;
  review: ChangeReview;
  files: readonly ReviewFile[];
  units: readonly Unit[];
  state: Decisions;
  act: (made: Act) => void;
  onClose: () => void;
}

/** Summarises the review, shows the exact plan of the restore, and carries it out. */
export function FinishDialog({ mission, review, files, units, state, act, onClose }: Props) {
  // The state when the dialog opened: a hunk that is taken back meanwhile no longer exists.
  const [seen] = useState(() => progressOf(units, state));
  const [tree] = useState(review.tree);
  const [back] = useState(() => takenBack(files, state));
  const [message, setMessage] = useState(() => messageOf(files, state));
  const promotable = actionsOf(mission).some(({ id }) => id === "promote");
  const [promote, setPromote] = useState(promotable);
  const way = wayToAgent(mission.status, isOpen(mission.question));
  const [tell, setTell] = useState(seen.comments > 0 && way !== null);
  const canAct = useCanAct();
  const asked = back.files.length + back.hunks.length > 0;
  const plan = useQuery({
    queryKey: ["restore-plan", review.mission, tree, back],
    queryFn: () => post<RestoreDocument>(`${missionPath(review.mission)}/restore`, { checkpoint: "base", ...back, dry_run: true }),
    enabled: asked && canAct,
    retry: false,
    staleTime: Infinity,
    gcTime: 0,
  });
  const { finish, busy, error, left } = useFinish(review.mission, tree, back, plan.data, (told) => {
    if (told) act({ type: "sent" });
    onClose();
  });
  const takes = asked && left === null;
  const stale = takes && plan.data !== undefined && plan.data.plan.source !== tree;
  const open = seen.total - seen.decided;
  const accepted = seen.decided - seen.rejected.length;
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    const reason = `Reviewed: ${accepted} of ${count(seen.total, "hunk")} accepted, ${seen.rejected.length} taken back.`;
    void finish({ promote, message: tell ? message.trim() : "", way, reason });
  };
  return (
    <Dialog title="Finish the review?" onClose={onClose} alert={takes}>
      <form className="stack" onSubmit={submit}>
        <p>
          {count(accepted, "hunk")} accepted, {seen.rejected.length} rejected, {open} not decided.
        </p>
        {open > 0 && <p className="card warn">Undecided hunks stay in the change as they are.</p>}
        {takes && <PlanOfRestore plan={plan} stale={stale} />}
        <label className="row">
          <input type="checkbox" checked={promote} disabled={!promotable} onChange={(event) => setPromote(event.target.checked)} />
          {asked ? "Promote the rest" : "Promote exactly the tree that you reviewed"}
        </label>
        {!promotable && <p className="small soft">It cannot be promoted in its present state.</p>}
        {asked && promote && <p className="small soft">The rest is judged again first, and is promoted only if green.</p>}
        <label className="row">
          <input type="checkbox" checked={tell} disabled={way === null} onChange={(event) => setTell(event.target.checked)} />
          {way === "send" ? "Send the agent a message" : "Start another round with a message"}
        </label>
        {tell && <TextArea label="Message to the agent" rows={5} required value={message} onChange={(event) => setMessage(event.target.value)} />}
        {error && (
          <p role="alert" className="card bad wrap">
            {error}
          </p>
        )}
        <div className="dialog-actions">
          <Button onClick={onClose}>Back</Button>
          <Button
            type="submit"
            kind={takes ? "danger" : "primary"}
            busy={busy}
            disabled={!canAct || stale || (takes && !plan.data) || !(takes || promote || tell)}
          >
            {label(takes, promote, tell)}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

function label(takes: boolean, promote: boolean, tell: boolean): string {
  if (takes) return promote ? "Take back and promote" : "Take back";
  if (promote) return "Promote";
  return tell ? "Send" : "Finish";
}
