import { useQueryClient } from "@tanstack/react-query";
import { useRouter } from "@tanstack/react-router";
import { useEffect, useRef, useState, type SyntheticEvent } from "react";
import { hasPasskeys, signInByPasskey } from "../accounts/passkeys";
import { ApiError, logIn, SIGN_IN, signIn } from "../api/client";
import type { Session } from "../api/contract";
import { sessionQuery } from "../api/queries";
import { Button } from "../design/Button";
import { TextField } from "../design/Field";
import { Toasts } from "../design/Toasts";
import "./login.css";
import { refusal } from "./refusal";
import { safeReturn } from "./safeReturn";

/** The server's redirect after an external sign-in has the code behind this. */
const SIGNED_IN = "sign-in=";

export function LoginPage() {
  const { busy, error, needsFactor, enter, back } = useLogin();
  const { providers, hasPasswords } = offers();
  const submit = (event: SyntheticEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const credentials = { user: form.get("user"), password: form.get("password") };
    void enter(() => logIn({ ...credentials, second_factor: form.get("code") ?? "" }));
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
        {hasPasswords && (
          <>
            <TextField label="Name" name="user" autoComplete="username" required />
            <TextField label="Password" name="password" type="password" autoComplete="current-password" required />
            {needsFactor && <p role="status">Your password is right. Now give a code of your second factor.</p>}
            {needsFactor && (
              <TextField label="Code of your second factor, or a recovery code" name="code" autoComplete="one-time-code" required />
            )}
          </>
        )}
        {error && (
          <p role="alert" className="card bad">
            {error}
          </p>
        )}
        {hasPasswords && (
          <Button type="submit" kind="primary" busy={busy}>
            Sign in
          </Button>
        )}
        {hasPasskeys() && (
          <Button busy={busy} onClick={() => void enter(() => signInByPasskey())}>
            Sign in with a passkey
          </Button>
        )}
        {providers.map(({ name, title }) => (
          <a key={name} href={`/api/v1${SIGN_IN}/${name}?return=${encodeURIComponent(safeReturn(back))}`}>
            Sign in with {title}
          </a>
        ))}
      </form>
      <Toasts />
    </main>
  );
}

/** Returns the ways to sign in, which the server names in its page. */
function offers() {
  const named = [...document.querySelectorAll<HTMLMetaElement>("meta[name=chargehand-sign-in]")];
  return {
    providers: named.map((meta) => ({ name: meta.dataset["provider"] ?? "", title: meta.content })),
    hasPasswords: document.querySelector("meta[name=chargehand-no-passwords]") === null,
  };
}

function useLogin() {
  const client = useQueryClient();
  const router = useRouter();
  const [busy, setBusy] = useState(false);
  const [needsFactor, setNeedsFactor] = useState(false);
  const [error, setError] = useState(() => refusal(location.hash.slice(1)));

  const { back }: { back?: string } = router.state.location.search;

  const enter = async (open: () => Promise<Session>) => {
    setBusy(true);
    setError("");
    try {
      client.setQueryData(sessionQuery.queryKey, await open());
      router.history.replace(safeReturn(back));
    } catch (failure) {
      if (failure instanceof ApiError && failure.code === "factor_needed") {
        setNeedsFactor(true);
        return;
      }
      const { message, hint } = failure instanceof ApiError ? failure : { message: (failure as Error).message, hint: "" };
      setError(`${message} ${hint}`.trim());
    } finally {
      setBusy(false);
    }
  };

  // The code of a link is valid once, so it is removed from the address before anything else.
  const code = useRef(location.hash.slice(1));
  useEffect(() => {
    if (code.current === "" || refusal(code.current) !== "") return;
    const given = code.current;
    code.current = "";
    history.replaceState(history.state, "", location.pathname + location.search);
    void enter(() => (given.startsWith(SIGNED_IN) ? signIn(given.slice(SIGNED_IN.length)) : logIn({ code: given })));
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, []);
  return { busy, error, needsFactor, enter, back };
}
