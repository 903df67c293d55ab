/** Returns a path of these pages, whatever the address says: nobody is sent to another site after a login. */
export function safeReturn(back: unknown): string {
  return typeof back === "string" && /^\/(?![/\\])/.test(back) ? back : "/";
}
