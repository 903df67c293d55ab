/** Returns a random key, without `randomUUID`: a page that another machine serves without TLS does not have it. */
export function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
