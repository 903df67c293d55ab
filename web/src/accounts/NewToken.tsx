import { useState, type SyntheticEvent } from "react";
import { post } from "../api/client";
import type { CreatedToken } from "../api/contract";
import { Button } from "../design/Button";
import { TextField } from "../design/Field";
import { scopesOf, type Role, type Scope } from "./accounts";
import { Refusal } from "./Refusal";
import { useSend } from "./useSend";

export function NewToken({ role, onMade }: { role: Role; onMade: (made: CreatedToken) => void }) {
  const [name, setName] = useState("");
  const [days, setDays] = useState("90");
  const [scopes, setScopes] = useState<readonly Scope[]>(["read"]);
  const { send, busy, error } = useSend();
  const toggle = (scope: Scope) =>
    setScopes((before) => (before.includes(scope) ? before.filter((each) => each !== scope) : [...before, scope]));
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    void send(async () => {
      onMade(await post<CreatedToken>("/tokens", { name: name.trim(), scopes, days: Number(days) }));
      setName("");
    });
  };
  return (
    <form className="card stack" onSubmit={submit}>
      <h2>New token</h2>
      <div className="form-grid">
        <TextField
          label="What it is for"
          placeholder="nightly"
          value={name}
          required
          maxLength={100}
          autoComplete="off"
          onChange={(event) => setName(event.target.value)}
        />
        <TextField
          label="Days until it expires"
          type="number"
          min={1}
          max={3650}
          value={days}
          required
          onChange={(event) => setDays(event.target.value)}
        />
      </div>
      <fieldset className="scopes">
        <legend>What it may do</legend>
        {scopesOf(role).map(({ scope, allows }) => (
          <label key={scope}>
            <input type="checkbox" checked={scopes.includes(scope)} onChange={() => toggle(scope)} />
            <span>
              <b>{scope}</b>: <span className="soft">{allows}</span>
            </span>
          </label>
        ))}
        <p className="small soft">No scope includes another: to start and read missions, a token needs read and steer.</p>
      </fieldset>
      <Refusal error={error} />
      <div>
        <Button type="submit" busy={busy} disabled={!name.trim() || scopes.length === 0}>
          Create token
        </Button>
      </div>
    </form>
  );
}
