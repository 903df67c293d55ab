import { useState, type SyntheticEvent } from "react";
import { post } from "../api/client";
import { Button } from "../design/Button";
import { TextField } from "../design/Field";
import { toast } from "../design/Toasts";
import { passwordProblem, type Role } from "./accounts";
import { PasswordPair } from "./PasswordPair";
import { Refusal } from "./Refusal";
import { RoleSelect } from "./RoleSelect";
import { useSend } from "./useSend";

const NOTHING = { password: "", again: "" };

export function NewAccount() {
  const [name, setName] = useState("");
  const [role, setRole] = useState<Role>("viewer");
  const [pair, setPair] = useState(NOTHING);
  const [tried, setTried] = useState(false);
  const { send, busy, error } = useSend();
  // An account without a password is for a program, which uses tokens only.
  const problem = pair.password || pair.again ? passwordProblem(pair.password, pair.again) : "";
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    setTried(true);
    if (problem) return;
    void send(async () => {
      await post("/users", { name: name.trim(), role, ...(pair.password ? { password: pair.password } : {}) });
      toast(`Account ${name.trim()} created.`);
      setName("");
      setPair(NOTHING);
      setTried(false);
    });
  };
  return (
    <form className="card stack" onSubmit={submit}>
      <h2>Add an account</h2>
      <p className="soft">
        Tell the person the password yourself: it is not sent. Without a password no one can log in; a program uses the account with a
        token, which <code>chargehand token create NAME --user ACCOUNT</code> makes.
      </p>
      <div className="form-grid">
        <TextField
          label="Account name"
          placeholder="ann"
          hint="a-z, 0-9, '.', '_' and '-', a letter or digit first."
          value={name}
          required
          maxLength={64}
          autoComplete="off"
          onChange={(event) => setName(event.target.value)}
        />
        <RoleSelect value={role} onChange={setRole} />
      </div>
      <PasswordPair value={pair} onChange={setPair} problem={tried ? problem : ""} />
      <Refusal error={error} />
      <div>
        <Button type="submit" busy={busy} disabled={!name.trim()}>
          Add account
        </Button>
      </div>
    </form>
  );
}
