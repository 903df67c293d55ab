/** A mission's output from the server; reconnects and resumes by itself. */
import { get } from "../../api/client";
import { missionPath } from "../../api/queries";
import { socketProtocols } from "../../api/sessionSecret";
import type { TerminalRecord } from "../../api/contract";

export type SocketState = "connecting" | "live" | "reconnecting" | "ended";

// The server sends something every 15 s; two missed signals mean that the connection is dead, for example after
// sleep.
const SILENCE_MS = 32_000;
const RETRIES_MS = [500, 1000, 2000, 4000, 8000];
const ENDED = 1000;

interface Listeners {
  onRecords: (records: TerminalRecord[]) => void;
  onState: (state: SocketState) => void;
}

export class TerminalSocket {
  private position = 0;
  private failures = 0;
  private socket: WebSocket | undefined;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private frame = 0;
  private waiting: TerminalRecord[] = [];
  private stopped = false;
  private ended = false;

  constructor(
    private readonly mission: string,
    private readonly listeners: Listeners,
  ) {}

  open(): void {
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}/api/v1${missionPath(this.mission)}/terminal?after=${this.position}`, socketProtocols());
    this.socket = socket;
    this.ended = false;
    this.listenFor(SILENCE_MS);
    socket.onopen = () => {
      this.failures = 0;
      this.listeners.onState("live");
    };
    socket.onmessage = ({ data }) => {
      this.listenFor(SILENCE_MS);
      this.take(JSON.parse(String(data)) as TerminalRecord);
    };
    socket.onclose = ({ code }) => this.closed(socket, code);
  }

  /** Reconnects after the end of the output, because the mission continues. */
  wake(): void {
    if (this.ended && !this.stopped) this.open();
  }

  close(): void {
    this.stopped = true;
    clearTimeout(this.timer);
    cancelAnimationFrame(this.frame);
    this.socket?.close();
  }

  private listenFor(ms: number): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.closed(this.socket, 0), ms);
  }

  // Many lines arrive at once: they are shown together, once per frame.
  private take(record: TerminalRecord): void {
    if (record.kind === "alive") return;
    if (record.kind === "reset" || record.position > 0) this.position = record.position;
    this.waiting.push(record);
    if (this.waiting.length > 1) return;
    // A hidden tab draws no frames and would collect records without limit.
    if (document.hidden) setTimeout(() => this.flush(), 250);
    else this.frame = requestAnimationFrame(() => this.flush());
  }

  private flush(): void {
    const records = this.waiting;
    this.waiting = [];
    if (!this.stopped) this.listeners.onRecords(records);
  }

  private closed(socket: WebSocket | undefined, code: number): void {
    if (this.stopped || socket !== this.socket) return;
    this.socket = undefined;
    socket?.close();
    clearTimeout(this.timer);
    if (code === ENDED) {
      this.ended = true;
      this.listeners.onState("ended");
      return;
    }
    this.listeners.onState("reconnecting");
    // A socket does not say why it was refused; if the session ended, this request leads to the login.
    if (this.failures === 0) void get("/session").catch(() => undefined);
    this.timer = setTimeout(() => this.open(), RETRIES_MS[this.failures] ?? 10_000);
    this.failures += 1;
  }
}
