/** Passkeys in the browser: the ceremonies of WebAuthn between this page, the device and the server. */
import { keepOpened, post } from "../api/client";
import type { OpenedSession, PasskeyOptions, RecoveryCodes, Session } from "../api/contract";

/** Returns whether this browser can have passkeys here: not at a plain address such as 127.0.0.1. */
export function hasPasskeys(host = location.hostname): boolean {
  return "PublicKeyCredential" in globalThis && isSecureContext && !/^[\d.]+$|:/.test(host);
}

/** Makes a passkey on the device and adds it to the account. */
export async function addPasskey(name: string): Promise<readonly string[]> {
  const { options } = await post<PasskeyOptions>("/session/passkey/new/options");
  const publicKey = PublicKeyCredential.parseCreationOptionsFromJSON(options as unknown as PublicKeyCredentialCreationOptionsJSON);
  const credential = await device(navigator.credentials.create({ publicKey }));
  return (await post<RecoveryCodes>("/session/passkey/new", { name, credential })).codes;
}

/** Opens a session by a passkey of the device, which must belong to the account `user` if that is given. */
export async function signInByPasskey(user?: string): Promise<Session> {
  const { options } = await post<PasskeyOptions>("/session/passkey/options");
  const publicKey = PublicKeyCredential.parseRequestOptionsFromJSON(options as unknown as PublicKeyCredentialRequestOptionsJSON);
  const credential = await device(navigator.credentials.get({ publicKey }));
  return keepOpened(await post<OpenedSession>("/session/passkey", { credential, ...(user === undefined ? {} : { user }) }));
}

async function device(asked: Promise<Credential | null>): Promise<unknown> {
  try {
    return ((await asked) as PublicKeyCredential).toJSON();
  } catch {
    // The browser does not say whether the person refused or there is no such passkey.
    throw new Error("The device gave no passkey.");
  }
}
