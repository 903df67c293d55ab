import { expect, it } from "vitest";
import type { Account, Session, Token } from "../api/contract";
import { changesOf, hasPassword, passwordProblem, scopesOf, sortTokens, tokenState } from "./accounts";

const NOW = Date.parse("2026-03-01T12:00:00Z");
const token = (id: string, part: Partial<Token> = {}): Token => ({
  id,
  user: "ann",
  name: id,
  scopes: ["read"],
  created: "2026-02-01T00:00:00Z",
  expires: "2026-04-01T00:00:00Z",
  last_used: null,
  revoked: null,
  ...part,
});
const account = (part: Partial<Account> = {}): Account => ({
  name: "ann",
  role: "operator",
  disabled: false,
  has_password: true,
  created: "2026-02-01T00:00:00Z",
  locked_until: null,
  subjects: [],
  ...part,
});
const ids = (of: Account) => changesOf(of, NOW).map(({ id }) => id);

it("offers no scope that the role may not hold", () => {
  const names = (role: Session["role"]) => scopesOf(role).map(({ scope }) => scope);
  expect(names("viewer")).toEqual(["read"]);
  expect(names("operator")).toEqual(["read", "steer", "decide"]);
  expect(names("admin")).toEqual(["read", "steer", "decide", "administer"]);
});

it("knows a token that counts from one that does not, and shows the former first", () => {
  const tokens = [
    token("revoked", { revoked: "2026-02-02T00:00:00Z" }),
    token("expired", { expires: "2026-03-01T12:00:00Z" }),
    token("older"),
    token("newer", { created: "2026-02-20T00:00:00Z" }),
  ];
  expect(tokens.map((each) => tokenState(each, NOW))).toEqual(["revoked", "expired", "valid", "valid"]);
  expect(sortTokens(tokens, NOW).map(({ id }) => id)).toEqual(["newer", "older", "revoked", "expired"]);
});

it("counts the characters of a password as people do, and wants it twice", () => {
  expect(passwordProblem("elevenchars", "elevenchars")).toContain("at least 12");
  expect(passwordProblem("🐢".repeat(11), "🐢".repeat(11))).toContain("this one has 11");
  expect(passwordProblem("twelve chars", "twelve Chars")).toContain("not the same");
  expect(passwordProblem("twelve chars", "twelve chars")).toBe("");
});

it("asks no password of whom the state directory belongs to", () => {
  const rest = { expires: "", version: "", accounts: true, has_factor: false, must_enrol: false };
  const session = (user: string): Session => ({ user, role: "admin", ...rest });
  expect(hasPassword(session("os:ann"))).toBe(false);
  expect(hasPassword(session("ann"))).toBe(true);
});

it("offers what fits an account: a lock to lift only while there is one", () => {
  expect(ids(account())).toEqual(["role", "password", "disable", "remove"]);
  expect(ids(account({ locked_until: "2026-03-01T12:05:00Z" }))).toContain("unlock");
  expect(ids(account({ locked_until: "2026-03-01T11:55:00Z" }))).not.toContain("unlock");
  expect(ids(account({ disabled: true, locked_until: "2026-03-01T12:05:00Z" }))).toEqual(["role", "password", "enable", "remove"]);
});
