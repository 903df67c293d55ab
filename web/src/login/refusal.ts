const REFUSED = "refused=";
// Words for codes: a text in the address would be whatever the author of a link wants people to read here.
const WORDS = new Map(
  Object.entries({
  login_failed: "This sign-in is not valid: it was used, has expired, or the provider refused it. Begin again.",
  account_missing: "No account here belongs to you. Ask an administrator to link one.",
  provider_failed: "The provider does not answer as expected. Try again later; the log of this server has the reason.",
  rate_limited: "Too many sign-ins from your address. Wait a minute.",
  }),
);

/** Returns the words for a refused sign-in that the server's redirect names in the fragment, "" without one. */
export function refusal(fragment: string): string {
  if (!fragment.startsWith(REFUSED)) return "";
  return WORDS.get(fragment.slice(REFUSED.length)) ?? "The sign-in failed; the log of this server has the reason.";
}
