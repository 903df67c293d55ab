import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState, type SyntheticEvent } from "react";
import { post, remove } from "../api/client";
import type { Enrolment, FactorList, RecoveryCodes } from "../api/contract";
import { factorsQuery, sessionQuery } from "../api/queries";
import { Button } from "../design/Button";
import { TextField } from "../design/Field";
import { Loaded } from "../design/states";
import { ConfirmFactor } from "./ConfirmFactor";
import { NewCodes } from "./NewCodes";
import { addPasskey, hasPasskeys } from "./passkeys";
import { Refusal } from "./Refusal";
import { useSend } from "./useSend";

/** The second factors of one's own account: list, add, remove, and recovery codes. */
export function SecondFactors() {
  const client = useQueryClient();
  const [enrolment, setEnrolment] = useState<Enrolment | null>(null);
  const [codes, setCodes] = useState<readonly string[]>([]);
  const { send, busy, error } = useSend();
  const reload = () => client.invalidateQueries({ queryKey: factorsQuery.queryKey });
  // Last: a page that waits for the factor replaces this one, and with it codes that are shown only once.
  const finish = () => {
    setCodes([]);
    void client.invalidateQueries({ queryKey: sessionQuery.queryKey });
  };
  const keep = (made: readonly string[]) => {
    setEnrolment(null);
    void reload();
    if (made.length > 0) setCodes(made);
    else finish();
  };
  const take = (name: string) =>
    void send(async () => {
      await remove(`/session/factors/${encodeURIComponent(name)}`);
      await reload();
      finish();
    });
  const renew = () =>
    void send(async () => {
      setCodes((await post<RecoveryCodes>("/session/recovery-codes")).codes);
      await reload();
    });
  return (
    <section className="card stack">
      <h2>Second factor</h2>
      <p className="soft">
        An authenticator app shows a code that you give after your password, and before changes of rights. A passkey of your device replaces both.
      </p>
      <Loaded query={useQuery(factorsQuery)} label="Loading your second factors">
        {(list: FactorList) => (
          <>
            {list.factors.map((factor) => (
              <div className="row" key={factor.name}>
                <b className="wrap">{factor.name}</b>
                <Button kind="quiet" aria-label={`Remove ${factor.name}`} busy={busy} onClick={() => take(factor.name)}>
                  Remove
                </Button>
              </div>
            ))}
            {list.factors.length > 0 && (
              <div className="row">
                <span>{list.recovery_left} recovery codes left</span>
                <Button kind="quiet" busy={busy} onClick={renew}>
                  Make new recovery codes
                </Button>
              </div>
            )}
          </>
        )}
      </Loaded>
      <Refusal error={error} />
      {codes.length > 0 && <NewCodes codes={codes} onClose={finish} />}
      {enrolment ? (
        <ConfirmFactor
          enrolment={enrolment}
          onClose={() => setEnrolment(null)}
          onDone={keep}
        />
      ) : (
        <Begin onBegun={setEnrolment} onAdded={keep} />
      )}
    </section>
  );
}

function Begin({ onBegun, onAdded }: { onBegun: (enrolment: Enrolment) => void; onAdded: (codes: readonly string[]) => void }) {
  const [name, setName] = useState("phone");
  const make = () => void send(async () => onAdded(await addPasskey(name)));
  const { send, busy, error } = useSend();
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    void send(async () => onBegun(await post<Enrolment>("/session/factors", { name })));
  };
  return (
    <form className="stack" onSubmit={submit}>
      <TextField label="Name of the device" required maxLength={40} value={name} onChange={(event) => setName(event.target.value)} />
      <Refusal error={error} />
      <div className="row">
        <Button type="submit" busy={busy}>
          Add an authenticator app
        </Button>
        {hasPasskeys() && (
          <Button busy={busy} onClick={make}>
            Add a passkey
          </Button>
        )}
      </div>
    </form>
  );
}
