/**
 * One stream for all tabs of a browser. A browser opens at most six connections to a server; with one stream per
 * tab no connection would remain for requests. The tab that has the lock follows the stream and passes messages
 * on; when it closes, the next tab takes over.
 */
import type { FeedState } from "./feed";
import type { StreamMessage } from "./parser";

const NAME = "chargehand.feed";
// If the leading tab is silent for this long, the browser may have stopped its scripts.
const SILENCE_MS = 40_000;
const LOOK_MS = 5_000;

export type Passed =
  | { kind: "hello" }
  | { kind: "state"; state: FeedState; position: number | null }
  | { kind: "message"; message: StreamMessage };

export interface Member {
  /** Follows the stream itself until `signal` is aborted. */
  lead: (signal: AbortSignal) => Promise<void>;
  hear: (passed: Passed) => void;
  state: () => Passed;
}

export class SharedStream {
  private leads = false;
  private heard = Date.now();
  private channel: BroadcastChannel | undefined;

  /** Whether the browser supports it: it has locks only on loopback or over TLS. */
  static isPossible(): boolean {
    return "locks" in navigator && typeof BroadcastChannel !== "undefined";
  }

  /** Sends to all other tabs if this one leads. */
  pass(passed: Passed): void {
    if (this.leads) this.channel?.postMessage(passed);
  }

  /** Leads or listens until `stop` is aborted. */
  async follow(stop: AbortSignal, member: Member): Promise<void> {
    const channel = new BroadcastChannel(NAME);
    this.channel = channel;
    channel.onmessage = ({ data }: MessageEvent<Passed>) => {
      if (data.kind === "hello") this.pass(member.state());
      else if (!this.leads) {
        this.heard = Date.now();
        member.hear(data);
      }
    };
    channel.postMessage({ kind: "hello" } satisfies Passed);
    const watch = setInterval(() => {
      if (this.leads || document.hidden) this.heard = Date.now();
      else if (Date.now() - this.heard > SILENCE_MS) void this.claim(stop, member, { steal: true });
    }, LOOK_MS);
    while (!stop.aborted) await this.claim(stop, member, { signal: stop });
    clearInterval(watch);
    channel.close();
  }

  private async claim(stop: AbortSignal, member: Member, options: LockOptions): Promise<void> {
    const lost = new AbortController();
    let had = false as boolean;
    try {
      await navigator.locks.request(NAME, options, async () => {
        this.leads = had = true;
        await member.lead(AbortSignal.any([stop, lost.signal]));
      });
    } catch {
      // The page was left, or another tab took the lock: this tab listens again.
    }
    lost.abort();
    if (had) this.leads = false;
    this.heard = Date.now();
  }
}
