import { useQueryClient } from "@tanstack/react-query";
import { useRouter } from "@tanstack/react-router";
import { useEffect, useRef, useState, type SyntheticEvent } from "react";
import { ApiError, logIn } from "../api/client";
import { sessionQuery } from "../api/queries";
import { Button } from "../design/Button";
import { TextField } from "../design/Field";
import { Toasts } from "../design/Toasts";
import "./login.css";
import { safeReturn } from "./safeReturn";

export function LoginPage() {
  const { busy, error, enter } = useLogin();
  const submit = (event: SyntheticEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    void enter({ user: form.get("user"), password: form.get("password") });
  };
  return (
    <main className="login">
      <form className="card stack" onSubmit={submit}>
        <h1 className="row">
          <img src="/icon.svg" alt="" width="28" height="28" /> Sign in to Chargehand
        </h1>
        <p className="soft">
          On the machine of the server, <code>chargehand up</code> prints a link that signs you in once.
        </p>
        <TextField label="Name" name="user" autoComplete="username" required />
        <TextField label="Password" name="password" type="password" autoComplete="current-password" required />
        {error && (
          <p role="alert" className="card bad">
            {error}
          </p>
        )}
        <Button type="submit" kind="primary" busy={busy}>
          Sign in
        </Button>
      </form>
      <Toasts />
    </main>
  );
}

function useLogin() {
  const client = useQueryClient();
  const router = useRouter();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");

  const enter = async (credentials: unknown) => {
    setBusy(true);
    setError("");
    try {
      client.setQueryData(sessionQuery.queryKey, await logIn(credentials));
      const search: { back?: string } = router.state.location.search;
      router.history.replace(safeReturn(search.back));
    } catch (failure) {
      const { message, hint } = failure instanceof ApiError ? failure : { message: String(failure), hint: "" };
      setError(`${message} ${hint}`.trim());
    } finally {
      setBusy(false);
    }
  };

  // The code of a link is valid once, so it is removed from the address before anything else.
  const code = useRef(location.hash.slice(1));
  useEffect(() => {
    if (code.current === "") return;
    const given = code.current;
    code.current = "";
    history.replaceState(history.state, "", location.pathname + location.search);
    void enter({ code: given });
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, []);
  return { busy, error, enter };
}
