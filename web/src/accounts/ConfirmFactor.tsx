import { useState, type SyntheticEvent } from "react";
import { post } from "../api/client";
import type { Enrolment, RecoveryCodes } from "../api/contract";
import { Button } from "../design/Button";
import { CodeField } from "./CodeField";
import { Refusal } from "./Refusal";
import { useSend } from "./useSend";

/** Shows the secret of a new factor, and takes its first code. */
export function ConfirmFactor({ enrolment, onClose, onDone }: { enrolment: Enrolment; onClose: () => void; onDone: (codes: readonly string[]) => void }) {
  const [code, setCode] = useState("");
  const { send, busy, error } = useSend();
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    const path = `/session/factors/${encodeURIComponent(enrolment.name)}/confirm`;
    void send(async () => onDone((await post<RecoveryCodes>(path, { code })).codes));
  };
  return (
    <form className="stack" onSubmit={submit}>
      <p>Scan this with your authenticator app, or type the secret into it. Then give the code that it shows.</p>
      <img src={enrolment.picture} alt={`QR code of the secret ${enrolment.secret}`} width="205" height="205" />
      <code className="code" aria-label="Secret">
        {enrolment.secret}
      </code>
      <CodeField label="First code" value={code} onChange={setCode} numeric />
      <Refusal error={error} />
      <div className="row">
        <Button type="submit" kind="primary" busy={busy} disabled={!code}>
          Confirm
        </Button>
        <Button onClick={onClose}>Cancel</Button>
      </div>
    </form>
  );
}
