/** Returns a path of this site, whatever the address contains: a login must not redirect to another site. */
export function safeReturn(back: unknown): string {
  return typeof back === "string" && /^\/(?![/\\])/.test(back) ? back : "/";
}
