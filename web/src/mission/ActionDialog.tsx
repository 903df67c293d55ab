import { useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState, type SyntheticEvent } from "react";
import { ApiError } from "../api/client";
import type { Accepted, MissionDetails, MissionDocument } from "../api/contract";
import { KeyedRequests } from "../api/keyed";
import { missionPath } from "../api/queries";
import { Button } from "../design/Button";
import { Dialog } from "../design/Dialog";
import { TextArea, TextField } from "../design/Field";
import { toast } from "../design/Toasts";
import { actionBody, type Action, type ActionField, type FieldName } from "./actions";
import { RollbackPreview } from "./RollbackPreview";

type Values = Partial<Record<FieldName, string | boolean>>;

interface Props {
  mission: MissionDetails;
  action: Action;
  onClose: () => void;
  given?: Values;
}

/** Explains the consequence of an action, collects its input and runs it. */
export function ActionDialog({ mission, action, onClose, given = {} }: Props) {
  const [values, setValues] = useState<Values>(given);
  const { run, busy, error } = useRun(mission, action, onClose);
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    void run(values);
  };
  return (
    <Dialog title={`${action.label}?`} onClose={onClose} alert={action.danger ?? false} keep>
      <form className="stack" onSubmit={submit}>
        <p>{action.consequence}</p>
        {action.id === "rollback" && <RollbackPreview mission={mission.mission} branch={mission.branch} />}
        {action.fields?.map((field) => (
          <ActionInput
            key={field.name}
            field={field}
            value={values[field.name]}
            onChange={(value) => setValues((before) => ({ ...before, [field.name]: value }))}
          />
        ))}
        {error && (
          <p role="alert" className="card bad wrap">
            {error}
          </p>
        )}
        <div className="dialog-actions">
          <Button onClick={onClose}>Back</Button>
          <Button type="submit" kind={action.danger ? "danger" : "primary"} busy={busy}>
            {action.label}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

function useRun(mission: MissionDetails, action: Action, onClose: () => void) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const [requests] = useState(() => new KeyedRequests());
  const run = async (values: Values) => {
    setBusy(true);
    setError("");
    try {
      const body = actionBody(action, values, mission);
      const made = await requests.post<MissionDocument | Accepted>(`${missionPath(mission.mission)}/${action.id}`, body);
      onClose();
      toast("accepted" in made ? `${action.label}: under way.` : `${action.label}: done.`);
      await client.invalidateQueries({ queryKey: ["mission", mission.mission] });
      // A fork or the follow-up of a promotion is another mission.
      if ("mission" in made && made.mission !== mission.mission) {
        await navigate({ to: "/missions/$id", params: { id: made.mission } });
      }
    } catch (failure) {
      setError(failure instanceof ApiError ? `${failure.message} ${failure.hint}`.trim() : String(failure));
      setBusy(false);
    }
  };
  return { run, busy, error };
}

interface InputProps {
  field: ActionField;
  value: string | boolean | undefined;
  onChange: (value: string | boolean) => void;
}

function ActionInput({ field: { name, label, kind, required = false, hint }, value, onChange }: InputProps) {
  if (kind === "check") {
    return (
      <label className="row">
        <input type="checkbox" name={name} checked={value === true} onChange={(event) => onChange(event.target.checked)} />
        {label}
      </label>
    );
  }
  const text = typeof value === "string" ? value : "";
  const common = { name, label, hint, required, value: text };
  if (kind === "text") return <TextArea {...common} rows={4} onChange={(event) => onChange(event.target.value)} />;
  return <TextField {...common} onChange={(event) => onChange(event.target.value)} />;
}
