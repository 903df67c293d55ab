/**
 * The stream of events, followed by this tab or by another tab on its behalf. It reconnects and resumes by itself.
 */
import { get } from "../api/client";
import { authorization } from "../api/sessionSecret";
import type { EventLine, MissionPage } from "../api/contract";
import { Batcher } from "./batcher";
import { StreamParser, type StreamMessage } from "./parser";
import type { Passed, SharedStream } from "./sharing";

export type FeedState = "connecting" | "live" | "reconnecting";

export interface Batch {
  events: EventLine[];
  /** Events may have been missed: everything shown is stale. */
  reset: boolean;
}

// The server sends something every 15 s; two missed signals mean that the connection is dead, for example after
// sleep.
const SILENCE_MS = 32_000;
const HIDDEN_MS = 300_000;
const RETRIES_MS = [500, 1000, 2000, 4000, 8000];

export class Feed {
  state: FeedState = "connecting";
  private position: number | null = null;
  private failures = 0;
  private abort = new AbortController();
  private readonly stateListeners = new Set<() => void>();
  private readonly batchListeners = new Set<(batch: Batch) => void>();
  private readonly batcher = new Batcher<EventLine>((events) => this.tell({ events, reset: false }));

  readonly onState = (listener: () => void): (() => void) => subscribe(this.stateListeners, listener);
  readonly onBatch = (listener: (batch: Batch) => void): (() => void) => subscribe(this.batchListeners, listener);

  constructor(private readonly shared: SharedStream | null = null) {}

  /**
   * Starts after `position`, which everything shown is at least as new as. Without it, the feed asks the server for
   * a position and treats everything shown as stale.
   */
  readonly begin = (position: number): void => void (this.position ??= position);

  /** Follows the stream until `stop` is aborted, directly or through the tab that does so for all tabs. */
  follow(stop: AbortSignal): Promise<void> {
    const member = { lead: (signal: AbortSignal) => this.lead(signal), hear: (passed: Passed) => this.hear(passed), state: () => this.passedState() };
    return this.shared ? this.shared.follow(stop, member) : this.lead(stop);
  }

  private async lead(stop: AbortSignal): Promise<void> {
    const wake = () => this.hurry();
    const ended = () => stop.aborted;
    window.addEventListener("online", wake, { signal: stop });
    document.addEventListener("visibilitychange", () => void this.rest(stop), { signal: stop });
    stop.addEventListener("abort", () => this.abort.abort());
    while (!ended()) {
      this.abort = new AbortController();
      try {
        await this.connect(this.abort.signal);
      } catch {
        // Whatever ended the stream, the reaction is the same: try again.
      }
      if (ended()) return;
      this.become("reconnecting");
      await this.pause();
    }
  }

  private hear(passed: Passed): void {
    if (passed.kind === "message") {
      this.take(passed.message);
      if (passed.message.event === "reset") this.tell({ events: [], reset: true });
    } else if (passed.kind === "state") {
      // Events that arrived after this tab's first request and before it listened reached only the other tabs.
      if (this.position !== null && this.position < (passed.position ?? 0)) this.tell({ events: [], reset: true });
      this.position = Math.max(this.position ?? 0, passed.position ?? 0) || null;
      this.become(passed.state);
    }
  }

  private passedState(): Passed {
    return { kind: "state", state: this.state, position: this.position };
  }

  // A browser opens at most six connections to a server: a hidden tab does not keep one for long.
  private async rest(stop: AbortSignal): Promise<void> {
    if (document.hidden && !this.shared) {
      await new Promise((resolve) => setTimeout(resolve, HIDDEN_MS));
      if (document.visibilityState === "hidden" && !stop.aborted) this.abort.abort();
    } else this.hurry();
  }

  private hurry(): void {
    this.failures = 0;
    this.wakeUp();
  }

  private wakeUp: () => void = () => undefined;

  private pause(): Promise<void> {
    const delay = document.hidden && !this.shared ? 3_600_000 : (RETRIES_MS[this.failures] ?? 10_000);
    this.failures += 1;
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, delay);
      this.wakeUp = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  private async connect(signal: AbortSignal): Promise<void> {
    if (this.position === null) {
      this.position = (await get<MissionPage>("/missions?limit=1", signal)).position;
      this.tell({ events: [], reset: true });
    }
    const response = await fetch(`/api/v1/events?after=${this.position}`, { signal, credentials: "omit", headers: authorization() });
    if (response.status === 401) await get("/session", signal);
    if (!response.ok || !response.body) throw new Error(`the feed answered ${response.status}`);
    this.become("live");
    this.failures = 0;
    await this.read(response.body.pipeThrough(new TextDecoderStream()).getReader());
  }

  private async read(reader: ReadableStreamDefaultReader<string>): Promise<void> {
    const parser = new StreamParser();
    for (;;) {
      const silence = setTimeout(() => this.abort.abort(), SILENCE_MS);
      const { value, done } = await reader.read().finally(() => clearTimeout(silence));
      if (done) return;
      for (const message of parser.feed(value)) {
        this.shared?.pass({ kind: "message", message });
        this.take(message);
      }
      this.shared?.pass(this.passedState());
    }
  }

  private take(message: StreamMessage): void {
    if (message.event === "reset") {
      this.position = null;
      this.abort.abort();
      return;
    }
    if (/^\d+$/.test(message.id)) this.position = Number(message.id);
    if (message.data !== "") this.batcher.add(JSON.parse(message.data) as EventLine);
  }

  private tell(batch: Batch): void {
    for (const listener of this.batchListeners) listener(batch);
  }

  private become(state: FeedState): void {
    if (this.state === state) return;
    this.state = state;
    this.shared?.pass(this.passedState());
    for (const listener of this.stateListeners) listener();
  }
}

function subscribe<T>(listeners: Set<T>, listener: T): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}
