import { readFileSync } from "node:fs";
import { afterEach, expect, it, vi } from "vitest";
import { fetchMissionPage } from "./queries";
import { ApiError, get, logIn, post, signIn, whenSessionLost } from "./client";
import { keepSecret } from "./sessionSecret";

afterEach(() => vi.unstubAllGlobals());

const json = (body: unknown, status = 200) => () => Promise.resolve(new Response(JSON.stringify(body), { status }));
const refusal = (code: string, status: number) => json({ error: { code, message: `no: ${code}`, hint: "a hint" } }, status);

function serve(...answers: (() => Promise<Response>)[]) {
  const asked: { url: string; token: string | null; cookies: RequestCredentials | undefined }[] = [];
  vi.stubGlobal("fetch", (url: string, init: RequestInit) => {
    asked.push({ url, token: new Headers(init.headers).get("Authorization"), cookies: init.credentials });
    return answers.shift()?.() ?? Promise.reject(new TypeError("Failed to fetch"));
  });
  return asked;
}

it("takes code, message and hint from a refusal", async () => {
  serve(refusal("not_cancellable", 409));
  await expect(get("/x")).rejects.toMatchObject({ status: 409, code: "not_cancellable", message: "no: not_cancellable", hint: "a hint" });
});

it("says so where nobody answers, or something else than the server does", async () => {
  serve();
  await expect(get("/x")).rejects.toMatchObject({ code: "unreachable" });
  serve(() => Promise.resolve(new Response("<h1>Bad gateway</h1>", { status: 502 })));
  await expect(get("/x")).rejects.toBeInstanceOf(ApiError);
});

it("tells once that the session ended", async () => {
  const lost = vi.fn();
  whenSessionLost(lost);
  serve(refusal("login_needed", 401), refusal("login_failed", 401));
  await expect(get("/x")).rejects.toThrow();
  await expect(post("/session", {})).rejects.toThrow();
  expect(lost).toHaveBeenCalledTimes(1);
});

it("sends the secret of the login, and no cookie", async () => {
  const asked = serve(json({ secret: "chs_one", session: { user: "ines" } }), json({ ok: true }));
  await expect(logIn({ code: "x" })).resolves.toEqual({ user: "ines" });
  await expect(post("/missions/m/pause")).resolves.toEqual({ ok: true });
  expect(asked.map(({ token }) => token)).toEqual([null, "Bearer chs_one"]);
  expect(new Set(asked.map(({ cookies }) => cookies))).toEqual(new Set(["omit"]));
  keepSecret(null);
});

it("sends the cookie of an external sign-in with its code only", async () => {
  const asked = serve(json({ secret: "chs_one", session: { user: "ines" } }), json({ ok: true }));
  await expect(signIn("x")).resolves.toEqual({ user: "ines" });
  await expect(post("/missions/m/pause")).resolves.toEqual({ ok: true });
  expect(asked.map(({ url, token, cookies }) => [url, token, cookies])).toEqual([
    ["/api/v1/sign-in", null, "same-origin"],
    ["/api/v1/missions/m/pause", "Bearer chs_one", "omit"],
  ]);
  keepSecret(null);
});

it("asks again where another tab logged in meanwhile, and only then", async () => {
  keepSecret("chs_old");
  const asked = serve(
    () => {
      keepSecret("chs_new");
      return refusal("login_needed", 401)();
    },
    json({ ok: true }),
  );
  await expect(post("/missions/m/pause")).resolves.toEqual({ ok: true });
  expect(asked.map(({ token }) => token)).toEqual(["Bearer chs_old", "Bearer chs_new"]);
  serve(refusal("login_needed", 401), json({ ok: true }));
  await expect(post("/missions/m/pause")).rejects.toMatchObject({ code: "login_needed" });
  keepSecret(null);
});

// Runs `public/early.js` as a browser that opens `path`. Its requests are answered; those of the pages are not.
async function open(path: string, ...answers: (() => Promise<Response>)[]) {
  return openWith("chs_one", path, ...answers);
}

async function openWith(secret: string | null, path: string, ...answers: (() => Promise<Response>)[]) {
  vi.stubGlobal("early", undefined);
  vi.stubGlobal("window", globalThis);
  vi.stubGlobal("localStorage", { getItem: (key: string) => (key === "chargehand.session" ? secret : null) });
  vi.stubGlobal("document", new EventTarget());
  vi.stubGlobal("location", new URL(path, "http://chargehand.test"));
  const asked = serve(...answers);
  await import(`data:text/javascript,${encodeURIComponent(`${readFileSync("public/early.js", "utf8")}//${path} ${secret}`)}`);
  return asked.map(({ url }) => url.replace("/api/v1", ""));
}

it("takes what was asked before the pages had arrived, each once", async () => {
  expect(await open("/", json({ user: "c" }), json({ position: 7 }))).toEqual(["/session", "/missions?limit=50"]);
  await expect(fetchMissionPage({}, null)).resolves.toEqual({ position: 7 });
  await expect(get("/session")).resolves.toEqual({ user: "c" });
  await expect(get("/session")).rejects.toMatchObject({ code: "unreachable" });
});

it("asks again where what was asked early was refused or found nobody", async () => {
  await open("/missions/m-1", refusal("login_needed", 401));
  serve(json({ user: "later" }), json({ position: 8 }));
  await expect(get("/session")).resolves.toEqual({ user: "later" });
  await expect(get("/missions?limit=1")).resolves.toEqual({ position: 8 });
});

it("asks nothing early for the login, and no missions for a filter that it does not read", async () => {
  expect(await open("/login")).toEqual([]);
  expect(await open("/?status=waiting")).toEqual(["/session"]);
  expect(await openWith(null, "/")).toEqual([]);
});
