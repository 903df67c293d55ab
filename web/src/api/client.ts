/** Requests to the server: JSON in, JSON out, errors as `ApiError`. */
import { noteServerTime } from "../useNow";

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

let csrf = "";
let onSessionLost: () => void = () => undefined;

/** What the session said: the token goes with everything that changes something. */
export function rememberToken(token: string): void {
  csrf = token;
}

/** Who is told that the session ended while the page was open. */
export function whenSessionLost(listener: () => void): void {
  onSessionLost = listener;
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

async function send<T>(
  method: string,
  path: string,
  body?: unknown,
  signal?: AbortSignal,
  extra: Record<string, string> = {},
): Promise<T> {
  const headers: Record<string, string> = { Accept: "application/json", ...extra };
  if (method !== "GET") headers["X-CSRF-Token"] = csrf;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const init: RequestInit = { method, headers, credentials: "same-origin" };
  if (body !== undefined) init.body = JSON.stringify(body);
  if (signal) init.signal = signal;
  const response = await reach(path, init);
  noteServerTime(response.headers.get("date"));
  if (response.status === 204) return undefined as T;
  const text = await response.text();
  if (response.ok) return JSON.parse(text) as T;
  const refused = refusal(response.status, text);
  // Another tab logged in anew: this one has its cookie, but the token of before.
  if (refused.code === "csrf" && (await renewToken())) return send<T>(method, path, body, signal, extra);
  throw refused;
}

async function renewToken(): Promise<boolean> {
  const before = csrf;
  csrf = (await get<{ csrf: string }>("/session")).csrf;
  return csrf !== before;
}

// What `public/early.js` asked before this script had arrived, each for its first asker.
const asked = globalThis as { early?: Map<string, Promise<Response | null>> };

async function early(path: string): Promise<Response | null> {
  const begun = asked.early?.get(path);
  asked.early?.delete(path);
  const response = await begun;
  // A refusal may be older than the session.
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
    // A proxy answered in its own words; the status says enough.
  }
  const { code = `http_${status}`, message = `The server answered ${status}.`, hint = "" } = body.error ?? {};
  if (status === 401 && code === "login_needed") onSessionLost();
  return new ApiError(status, code, message, hint);
}
