import { useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState, type SyntheticEvent } from "react";
import { post } from "../api/client";
import { Button } from "../design/Button";
import { TextField } from "../design/Field";
import { toast } from "../design/Toasts";
import { passwordProblem } from "./accounts";
import { PasswordPair } from "./PasswordPair";
import { Refusal } from "./Refusal";
import { useSend } from "./useSend";

export function OwnPassword({ user }: { user: string }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const [current, setCurrent] = useState("");
  const [pair, setPair] = useState({ password: "", again: "" });
  const [tried, setTried] = useState(false);
  const { send, busy, error } = useSend();
  const problem = passwordProblem(pair.password, pair.again);
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    setTried(true);
    if (problem) return;
    void send(async () => {
      await post("/session/password", { current, password: pair.password });
      toast("Your password is changed. Sign in with the new one.");
      client.clear();
      await navigate({ to: "/login" });
    });
  };
  return (
    <form className="card stack" onSubmit={submit}>
      <h2>Your password</h2>
      <p className="soft">The change ends all your sessions, including this one: sign in again with the new password. Your tokens stay valid.</p>
      <input type="text" name="username" autoComplete="username" value={user} readOnly hidden />
      <TextField
        label="Current password"
        type="password"
        autoComplete="current-password"
        required
        value={current}
        onChange={(event) => setCurrent(event.target.value)}
      />
      <PasswordPair value={pair} onChange={setPair} problem={tried ? problem : ""} />
      <Refusal error={error} />
      <div>
        <Button type="submit" busy={busy} disabled={!current}>
          Change password
        </Button>
      </div>
    </form>
  );
}
