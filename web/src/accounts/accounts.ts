/**
 * Describes roles, tokens and account changes in words. The server decides; this text only explains beforehand.
 */
import type { Account, Session, Token } from "../api/contract";

export type Role = Session["role"];
export type Scope = "read" | "steer" | "decide" | "administer";

export const ROLES: readonly { role: Role; may: string }[] = [
  { role: "viewer", may: "Reads missions, their events, diffs and reports." },
  { role: "operator", may: "Also starts, steers and answers missions, promotes, discards and rolls back." },
  { role: "admin", may: "Also manages users, tokens, configuration, trust and the store." },
];

const SCOPES: readonly { scope: Scope; allows: string; from: Role }[] = [
  { scope: "read", allows: "everything that a viewer may do", from: "viewer" },
  { scope: "steer", allows: "start, pause, resume, cancel, send, clarify, fork, continue, restore", from: "operator" },
  { scope: "decide", allows: "promote, discard, roll back, and answer questions for a permission or a decision", from: "operator" },
  { scope: "administer", allows: "the rest, which includes creating accounts", from: "admin" },
];

/** Returns the scopes that a token of a user with this role can have. */
export function scopesOf(role: Role): readonly (typeof SCOPES)[number][] {
  const rank = (of: Role) => ROLES.findIndex((known) => known.role === of);
  return SCOPES.filter(({ from }) => rank(from) <= rank(role));
}

/** Whether the session's user has an account with a password; the owner of the state directory has no account. */
export function hasPassword(session: Session): boolean {
  return !session.user.startsWith("os:");
}

export type TokenState = "valid" | "expired" | "revoked";

export function tokenState(token: Token, now: number): TokenState {
  if (token.revoked !== null) return "revoked";
  return Date.parse(token.expires) <= now ? "expired" : "valid";
}

/** Returns the valid tokens before the others, newest first within each group. */
export function sortTokens(tokens: readonly Token[], now: number): Token[] {
  const spent = (token: Token) => Number(tokenState(token, now) !== "valid");
  return [...tokens].sort((one, other) => spent(one) - spent(other) || other.created.localeCompare(one.created));
}

export const SHORTEST_PASSWORD = 12;

/** Returns an error message for a password that was typed twice, or "" if it is acceptable. */
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

/** Returns the changes that an account allows now, each with its consequence. */
export function changesOf(account: Account, now: number): AccountChange[] {
  const { name, disabled } = account;
  const changes: (AccountChange | false)[] = [
    { id: "role", label: "Change role", consequence: `It applies at once, also to open sessions and tokens of ${name}.` },
    {
      id: "password",
      label: "Set password",
      consequence: `All sessions of ${name} end, and a lock after failed logins is lifted. Its tokens stay valid.`,
    },
    !disabled &&
      isLocked(account, now) && { id: "unlock", label: "Lift lock", consequence: `${name} can log in again at once.` },
    disabled
      ? { id: "enable", label: "Enable", consequence: `${name} can log in again, and its unexpired tokens are valid again.` }
      : {
          id: "disable",
          label: "Disable",
          consequence: `All sessions of ${name} end now, and its tokens are invalid until it is enabled again.`,
          danger: true,
        },
    {
      id: "remove",
      label: "Remove",
      consequence: `The account is removed permanently, with its sessions and tokens. Entries of ${name} in the logs stay.`,
      danger: true,
    },
  ];
  return changes.filter((change) => change !== false);
}
