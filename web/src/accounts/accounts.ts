/** What roles, tokens and changes of accounts come to, in words. The server decides; this only says it beforehand. */
import type { Account, Session, Token } from "../api/contract";

export type Role = Session["role"];
export type Scope = "read" | "steer" | "decide" | "administer";

export const ROLES: readonly { role: Role; may: string }[] = [
  { role: "viewer", may: "Reads missions, their events, diffs and reports." },
  { role: "operator", may: "Also starts, steers and answers missions, promotes, discards and rolls back." },
  { role: "admin", may: "Also manages users, tokens, configuration, trust and the store." },
];

const SCOPES: readonly { scope: Scope; allows: string; from: Role }[] = [
  { scope: "read", allows: "what a viewer may", from: "viewer" },
  { scope: "steer", allows: "start, pause, resume, cancel, send, clarify, fork, continue, restore", from: "operator" },
  { scope: "decide", allows: "promote, discard, roll back, and answer what permits or decides something", from: "operator" },
  { scope: "administer", allows: "the rest; whoever has it can make an account for themselves", from: "admin" },
];

/** Returns the scopes that a token of somebody with this role can have. */
export function scopesOf(role: Role): readonly (typeof SCOPES)[number][] {
  const rank = (of: Role) => ROLES.findIndex((known) => known.role === of);
  return SCOPES.filter(({ from }) => rank(from) <= rank(role));
}

/** Whether a session is of an account with a password, and not of the person whose state directory it is. */
export function hasPassword(session: Session): boolean {
  return !session.user.startsWith("os:");
}

export type TokenState = "valid" | "expired" | "revoked";

export function tokenState(token: Token, now: number): TokenState {
  if (token.revoked !== null) return "revoked";
  return Date.parse(token.expires) <= now ? "expired" : "valid";
}

/** Returns tokens that count before those that do not, the newest first among each. */
export function sortTokens(tokens: readonly Token[], now: number): Token[] {
  const spent = (token: Token) => Number(tokenState(token, now) !== "valid");
  return [...tokens].sort((one, other) => spent(one) - spent(other) || other.created.localeCompare(one.created));
}

export const SHORTEST_PASSWORD = 12;

/** Returns what is wrong with a password that was written twice, "" where nothing is. */
export function passwordProblem(password: string, again: string): string {
  const length = Array.from(password).length;
  if (length < SHORTEST_PASSWORD) return `A password has at least ${SHORTEST_PASSWORD} characters, this one has ${length}.`;
  return password === again ? "" : "The two are not the same.";
}

export interface AccountChange {
  id: "role" | "unlock" | "disable" | "enable" | "password" | "remove";
  label: string;
  consequence: string;
  danger?: boolean;
}

export function isLocked(account: Account, now: number): boolean {
  return account.locked_until !== null && Date.parse(account.locked_until) > now;
}

/** Returns what can be done with an account now, each with what it comes to. */
export function changesOf(account: Account, now: number): AccountChange[] {
  const { name, disabled } = account;
  const changes: (AccountChange | false)[] = [
    { id: "role", label: "Change role", consequence: `It counts at once, for open sessions and tokens of ${name} too.` },
    {
      id: "password",
      label: "Set password",
      consequence: `All sessions of ${name} end, and a lock after failed logins is lifted. Its tokens go on.`,
    },
    !disabled &&
      isLocked(account, now) && { id: "unlock", label: "Lift lock", consequence: `${name} can log in again at once.` },
    disabled
      ? { id: "enable", label: "Enable", consequence: `${name} can log in again, and its tokens that are still valid count.` }
      : {
          id: "disable",
          label: "Disable",
          consequence: `All sessions of ${name} end now, and its tokens count no more until it is enabled again.`,
          danger: true,
        },
    {
      id: "remove",
      label: "Remove",
      consequence: `The account goes for good, with all its sessions and tokens. What ${name} did stays in the logs.`,
      danger: true,
    },
  ];
  return changes.filter((change) => change !== false);
}
