import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { Feed, type Batch } from "./feed";
import type { Member, SharedStream } from "./sharing";

// The server's responses in order: a position for /missions; for /events, a stream that ends after its text.
let answers: (() => Response)[] = [];
let asked: string[] = [];

const position = (at: number) => () => new Response(JSON.stringify({ missions: [], counts: {}, next: null, position: at }));
const stream = (...messages: string[]) => () => new Response(messages.join(""));
const message = (id: number, event = "message") => `id: ${id}\nevent: ${event}\ndata: {"mission":"m","seq":${id},"type":"t"}\n\n`;

beforeEach(() => {
  vi.useFakeTimers();
  asked = [];
  vi.stubGlobal("window", new EventTarget());
  vi.stubGlobal("document", Object.assign(new EventTarget(), { hidden: false }));
  vi.stubGlobal("fetch", (url: string) => {
    asked.push(url.replace("/api/v1", ""));
    const answer = answers.shift();
    return answer ? Promise.resolve(answer()) : new Promise(() => undefined);
  });
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

const follow = (...given: (() => Response)[]) => followFrom(() => undefined, given);

async function followFrom(prepare: (feed: Feed) => void, given: (() => Response)[], shared: SharedStream | null = null) {
  answers = given;
  const feed = new Feed(shared);
  prepare(feed);
  const batches: Batch[] = [];
  const states: string[] = [];
  feed.onBatch((batch) => batches.push(batch));
  feed.onState(() => states.push(feed.state));
  const stop = new AbortController();
  void feed.follow(stop.signal);
  await vi.advanceTimersByTimeAsync(5000);
  stop.abort();
  return { batches, states };
}

it("goes on behind the last event that arrived when the stream ends", async () => {
  const { batches, states } = await follow(position(5), stream(message(6), message(7)), stream(message(8)));
  expect(asked).toEqual(["/missions?limit=1", "/events?after=5", "/events?after=7", "/events?after=8"]);
  expect(batches.flatMap(({ events }) => events.map(({ seq }) => seq))).toEqual([6, 7, 8]);
  expect(states).toEqual(["live", "reconnecting", "live", "reconnecting"]);
});

it("takes nothing as old where it begins behind what is shown", async () => {
  const { batches } = await followFrom((feed) => feed.begin(5), [stream(message(6))]);
  expect(asked).toEqual(["/events?after=5", "/events?after=6"]);
  expect(batches.filter(({ reset }) => reset)).toEqual([]);
});

it("takes all as old where the tab that leads had heard of more before this one listened", async () => {
  for (const [at, resets] of [[5, 0], [6, 1]] as const) {
    const shared = {
      pass: () => undefined,
      follow: (_: AbortSignal, member: Member) => {
        member.hear({ kind: "state", state: "live", position: at });
        return Promise.resolve();
      },
    };
    const { batches } = await followFrom((feed) => feed.begin(5), [], shared as unknown as SharedStream);
    expect(batches.filter(({ reset }) => reset)).toHaveLength(resets);
  }
});

it("takes all as old once, and again where the log is another one", async () => {
  const { batches } = await follow(position(90), stream(message(3, "reset")), position(3));
  expect(asked).toEqual(["/missions?limit=1", "/events?after=90", "/missions?limit=1", "/events?after=3"]);
  expect(batches.filter(({ reset }) => reset)).toHaveLength(2);
});

it("tries again where the server refuses or is away", async () => {
  const { states } = await follow(position(1), () => new Response("", { status: 503 }), stream(": beat\n\n"));
  expect(asked.slice(1, 3)).toEqual(["/events?after=1", "/events?after=1"]);
  expect(states[0]).toBe("reconnecting");
  expect(states).toContain("live");
});
