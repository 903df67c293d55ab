import { useQueryClient } from "@tanstack/react-query";
import { useState, type SyntheticEvent } from "react";
import { patch, remove } from "../api/client";
import type { Account } from "../api/contract";
import { Button } from "../design/Button";
import { Dialog } from "../design/Dialog";
import { toast } from "../design/Toasts";
import { passwordProblem, type AccountChange, type Role } from "./accounts";
import { PasswordPair, type Pair } from "./PasswordPair";
import { Refusal } from "./Refusal";
import { RoleSelect } from "./RoleSelect";
import { useSend } from "./useSend";

interface Props {
  account: Account;
  change: AccountChange;
  /** The account belongs to the logged-in user. */
  own: boolean;
  onClose: () => void;
}

/** Explains the consequence of an account change, collects its input and sends it. */
export function AccountDialog({ account, change, own, onClose }: Props) {
  const client = useQueryClient();
  const [role, setRole] = useState(account.role as Role);
  const [pair, setPair] = useState<Pair>({ password: "", again: "" });
  const [tried, setTried] = useState(false);
  const { send, busy, error } = useSend();
  const problem = change.id === "password" ? passwordProblem(pair.password, pair.again) : "";
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    setTried(true);
    if (problem) return;
    void send(async () => {
      const path = `/users/${encodeURIComponent(account.name)}`;
      if (change.id === "remove") await remove(path);
      else await patch(path, fields(change, role, pair));
      onClose();
      toast(`${change.label} of ${account.name}: done.`);
      // The user's own rights have changed.
      if (own) await client.invalidateQueries({ queryKey: ["session"] });
    });
  };
  return (
    <Dialog title={`${change.label}: ${account.name}`} onClose={onClose} alert={change.danger ?? false} keep>
      <form className="stack" onSubmit={submit}>
        <p className="wrap">{change.consequence}</p>
        {own && <p className="card warn">This is the account that you are logged in with.</p>}
        {change.id === "role" && <RoleSelect value={role} onChange={setRole} />}
        {change.id === "password" && <PasswordPair value={pair} onChange={setPair} problem={tried ? problem : ""} />}
        <Refusal error={error} />
        <div className="dialog-actions">
          <Button onClick={onClose}>Back</Button>
          <Button type="submit" kind={change.danger ? "danger" : "primary"} busy={busy} disabled={change.id === "role" && role === account.role}>
            {change.label}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

function fields(change: AccountChange, role: Role, { password }: Pair) {
  if (change.id === "role") return { role };
  if (change.id === "password") return { password };
  return { disabled: change.id === "disable" };
}
