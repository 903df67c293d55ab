import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { remove } from "../api/client";
import type { CreatedToken, Token, TokenList } from "../api/contract";
import { listQuery } from "../api/queries";
import { Badge } from "../design/Badge";
import { Button } from "../design/Button";
import { Dialog } from "../design/Dialog";
import { Loaded } from "../design/states";
import { toast } from "../design/Toasts";
import { clock, plainText } from "../format";
import { DataTable } from "../system/Page";
import { useNow } from "../useNow";
import { sortTokens, tokenState, type Role, type TokenState } from "./accounts";
import { NewSecret } from "./NewSecret";
import { NewToken } from "./NewToken";
import { Refusal } from "./Refusal";
import { useSend } from "./useSend";

export function Tokens({ role }: { role: Role }) {
  const [made, setMade] = useState<CreatedToken>();
  const [leaving, setLeaving] = useState<Token>();
  return (
    <>
      <Loaded query={useQuery(listQuery<TokenList>("tokens"))} label="Loading your tokens">
        {({ tokens }) => <TokenTable tokens={tokens} onRevoke={setLeaving} />}
      </Loaded>
      <div role="status">{made && <NewSecret made={made} onClose={() => setMade(undefined)} />}</div>
      <NewToken role={role} onMade={setMade} />
      {leaving && <RevokeDialog token={leaving} onClose={() => setLeaving(undefined)} />}
    </>
  );
}

const LOOKS = {
  valid: { tone: "good", icon: "promoted", label: "Valid" },
  expired: { tone: "quiet", icon: "refused", label: "Expired" },
  revoked: { tone: "quiet", icon: "refused", label: "Revoked" },
} as const satisfies Record<TokenState, unknown>;

function TokenTable({ tokens, onRevoke }: { tokens: readonly Token[]; onRevoke: (token: Token) => void }) {
  const now = useNow();
  return (
    <DataTable
      caption="Your tokens"
      heads={["Token", "May", "State", "Until", "Last used", "Actions"]}
      rows={sortTokens(tokens, now).map((token) => {
        const state = tokenState(token, now);
        const { tone, icon, label } = LOOKS[state];
        const name = plainText(token.name);
        return [
          name,
          token.scopes.join(", "),
          <Badge key="state" tone={tone} icon={icon}>
            {label}
          </Badge>,
          clock(token.expires, 0),
          token.last_used === null ? "never" : clock(token.last_used, 0),
          state === "valid" ? (
            <Button key="revoke" kind="danger" aria-label={`Revoke ${name}`} onClick={() => onRevoke(token)}>
              Revoke
            </Button>
          ) : (
            ""
          ),
        ];
      })}
      none="You have no token yet. A program needs one to use the server in your name."
    />
  );
}

function RevokeDialog({ token, onClose }: { token: Token; onClose: () => void }) {
  const { send, busy, error } = useSend();
  const revoke = () =>
    send(async () => {
      await remove(`/tokens/${encodeURIComponent(token.id)}`);
      onClose();
      toast("The token is revoked.");
    });
  return (
    <Dialog title="Revoke this token?" onClose={onClose} alert>
      <p className="wrap">
        Every program that uses “{plainText(token.name)}” is refused from now on. A revoked token never counts again; make a new one
        instead.
      </p>
      <Refusal error={error} />
      <div className="dialog-actions">
        <Button onClick={onClose}>Back</Button>
        <Button kind="danger" busy={busy} onClick={() => void revoke()}>
          Revoke
        </Button>
      </div>
    </Dialog>
  );
}
