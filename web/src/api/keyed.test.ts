import { beforeEach, expect, it, vi } from "vitest";
import { KeyedRequests } from "./keyed";

let keys: string[] = [];
let answers: (() => Promise<Response>)[] = [];
const refused = (status: number, body: string) => () => Promise.resolve(new Response(body, { status }));
const done = refused(200, "{}");
const lost = () => Promise.reject(new TypeError("network"));

beforeEach(() => {
  keys = [];
  vi.stubGlobal("fetch", (_: string, { headers }: { headers: Record<string, string> }) => {
    keys.push(headers["Idempotency-Key"] ?? "");
    return answers.shift()?.();
  });
});

async function ask(requests: KeyedRequests, body: unknown): Promise<void> {
  await requests.post("/missions/m/send", body).catch(() => undefined);
}

it("asks with the same key again until somebody answers", async () => {
  const requests = new KeyedRequests();
  answers = [lost, refused(502, "<html>"), done, done];
  for (let step = 0; step < 4; step += 1) await ask(requests, { text: "a" });
  expect(new Set(keys.slice(0, 3)).size).toBe(1);
  expect(keys[3]).not.toBe(keys[0]);
});

it("asks anew for what was refused, and for anything else", async () => {
  const requests = new KeyedRequests();
  answers = [refused(503, '{"error":{"code":"store","message":"","hint":""}}'), done, lost, lost];
  await ask(requests, { text: "a" });
  await ask(requests, { text: "a" });
  await ask(requests, { text: "b" });
  await ask(requests, { text: "c" });
  expect(new Set(keys).size).toBe(4);
});
