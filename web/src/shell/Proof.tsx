import { useQuery } from "@tanstack/react-query";
import { useEffect, useState, type SyntheticEvent } from "react";
import { post, whenProofNeeded } from "../api/client";
import { hasPasskeys, signInByPasskey } from "../accounts/passkeys";
import { sessionQuery } from "../api/queries";
import { CodeField } from "../accounts/CodeField";
import { Refusal } from "../accounts/Refusal";
import { useSend } from "../accounts/useSend";
import { Button } from "../design/Button";
import { Dialog } from "../design/Dialog";

type Answer = (accepted: boolean) => void;

/** Asks for a code of the second factor when the server needs a fresh one; the refused request is then sent again. */
export function Proof() {
  const [answer, setAnswer] = useState<{ give: Answer } | null>(null);
  useEffect(() => whenProofNeeded(() => new Promise<boolean>((give) => setAnswer({ give }))), []);
  if (!answer) return null;
  const end = (accepted: boolean) => {
    setAnswer(null);
    answer.give(accepted);
  };
  return <ProofDialog end={end} />;
}

function ProofDialog({ end }: { end: Answer }) {
  const [code, setCode] = useState("");
  const { send, busy, error } = useSend();
  const user = useQuery(sessionQuery).data?.user;
  const prove = () =>
    void send(async () => {
      await signInByPasskey(user);
      end(true);
    });
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    void send(async () => {
      await post("/session/proof", { code });
      end(true);
    });
  };
  return (
    <Dialog title="Confirm that it is you" onClose={() => end(false)} keep>
      <form className="stack" onSubmit={submit}>
        <p>This change needs a code of your second factor, or a recovery code. It then counts for ten minutes.</p>
        <CodeField label="Code" value={code} onChange={setCode} />
        <Refusal error={error} />
        <div className="row">
          <Button type="submit" kind="primary" busy={busy} disabled={!code}>
            Confirm
          </Button>
          {hasPasskeys() && (
            <Button busy={busy} onClick={prove}>
              Use a passkey
            </Button>
          )}
          <Button onClick={() => end(false)}>Cancel</Button>
        </div>
      </form>
    </Dialog>
  );
}
