/**
 * The secret of the session. It is kept in the storage of this origin, which no server on another port can read,
 * and only these scripts send it. A browser would send a cookie to every server on 127.0.0.1, whatever its port.
 */
import { readStored, writeStored } from "../storage";

// `public/early.js` reads it too.
const KEY = "chargehand.session";
// If the browser refuses storage, the session lasts as long as the page.
let own: string | null = null;

export function readSecret(): string | null {
  return readStored(KEY) ?? own;
}

export function keepSecret(secret: string | null): void {
  own = secret;
  writeStored(KEY, secret);
}

export function authorization(): Record<string, string> {
  const secret = readSecret();
  return secret === null ? {} : { Authorization: `Bearer ${secret}` };
}

/** The protocols of a WebSocket: the only request header that a page may set on one. */
export function socketProtocols(): string[] {
  return ["chargehand.terminal", `chargehand.session.${readSecret() ?? ""}`];
}
