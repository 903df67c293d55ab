/** Requests to the server: JSON in, JSON out, errors as `ApiError`. */
import { noteServerTime } from "../useNow";
import type { OpenedSession, Session } from "./contract";
import { authorization, keepSecret, readSecret } from "./sessionSecret";

export class ApiError extends Error {
  override readonly name = "ApiError";

  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly hint: string,
  ) {
    super(message);
  }
}

interface Body {
  error?: { code?: string; message?: string; hint?: string };
}

let onSessionLost: () => void = () => undefined;

/** Sets the listener that is called when the session ends while the page is open. */
export function whenSessionLost(listener: () => void): void {
  onSessionLost = listener;
}

let askProof: () => Promise<boolean> = () => Promise.resolve(false);

/** Sets the function that asks for a code of the second factor and returns whether one was accepted. */
export function whenProofNeeded(ask: () => Promise<boolean>): void {
  askProof = ask;
}

export function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return send<T>("GET", path, undefined, signal);
}

export function post<T>(path: string, body: unknown = {}, headers: Record<string, string> = {}): Promise<T> {
  return send<T>("POST", path, body, undefined, headers);
}

export function patch<T>(path: string, body: unknown): Promise<T> {
  return send<T>("PATCH", path, body);
}

export function put<T>(path: string, body: unknown): Promise<T> {
  return send<T>("PUT", path, body);
}

export function remove(path: string): Promise<unknown> {
  return send("DELETE", path);
}

/** Opens a session that replaces the last one; all tabs of this origin share it. */
export async function logIn(credentials: unknown): Promise<Session> {
  return keepOpened(await post<OpenedSession>("/session", credentials));
}

/** Keeps the secret of a session that was just opened. */
export function keepOpened(opened: OpenedSession): Session {
  keepSecret(opened.secret);
  return opened.session;
}

export const SIGN_IN = "/sign-in";

/** Opens the session of an external sign-in, which a cookie binds to this browser. */
export async function signIn(code: string): Promise<Session> {
  return keepOpened(await post<OpenedSession>(SIGN_IN, { code }));
}

/** Ends the session, and returns the page at which its provider ends the one there, if there is one. */
export async function logOut(): Promise<string | undefined> {
  const ended = (await remove("/session")) as { url: string } | undefined;
  keepSecret(null);
  return ended?.url;
}

/** Saves the response of a path as a file. A plain link would not send the session. */
export async function download(path: string, name: string): Promise<void> {
  const response = await request("GET", path, {});
  if (!response.ok) throw refusal(response.status, await response.text());
  const url = URL.createObjectURL(await response.blob());
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  // By then the browser has started to read the blob.
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

async function send<T>(
  method: string,
  path: string,
  body?: unknown,
  signal?: AbortSignal,
  extra: Record<string, string> = {},
): Promise<T> {
  const headers: Record<string, string> = { Accept: "application/json", ...extra };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const init: RequestInit = body === undefined ? {} : { body: JSON.stringify(body) };
  if (signal) init.signal = signal;
  const response = await request(method, path, headers, init);
  noteServerTime(response.headers.get("date"));
  if (response.status === 204) return undefined as T;
  const text = await response.text();
  if (response.ok) return JSON.parse(text) as T;
  const refused = refusal(response.status, text);
  if (refused.code === "proof_needed" && (await askProof())) return send<T>(method, path, body, signal, extra);
  throw refused;
}

/**
 * Sends a request with the session's secret; retries once if the session ended and another tab has logged in
 * meanwhile.
 */
async function request(method: string, path: string, headers: Record<string, string>, init: RequestInit = {}): Promise<Response> {
  const secret = readSecret();
  // Only the exchange after an external sign-in needs its cookie.
  const credentials = path === SIGN_IN ? "same-origin" : "omit";
  const ask = () => reach(path, { ...init, method, credentials, headers: { ...headers, ...authorization() } });
  const response = await ask();
  return response.status === 401 && readSecret() !== secret ? ask() : response;
}

// Requests that `public/early.js` sent before this script loaded. The first caller of a path takes its response.
const asked = globalThis as { early?: Map<string, Promise<Response | null>> };

async function early(path: string): Promise<Response | null> {
  const begun = asked.early?.get(path);
  asked.early?.delete(path);
  const response = await begun;
  // A refused request may be older than the session.
  return response?.ok ? response : null;
}

async function reach(path: string, init: RequestInit): Promise<Response> {
  const begun = init.method === "GET" ? await early(path) : null;
  if (begun) return begun;
  try {
    return await fetch(`/api/v1${path}`, init);
  } catch (failure) {
    if (failure instanceof DOMException && failure.name === "AbortError") throw failure;
    throw new ApiError(0, "unreachable", "The server does not answer.", "Start it again with: chargehand up");
  }
}

function refusal(status: number, text: string): ApiError {
  let body: Body = {};
  try {
    body = JSON.parse(text) as Body;
  } catch {
    // A proxy sent a response that is not JSON; the status says enough.
  }
  const { code = `http_${status}`, message = `The server answered ${status}.`, hint = "" } = body.error ?? {};
  if (status === 401 && code === "login_needed") onSessionLost();
  return new ApiError(status, code, message, hint);
}
