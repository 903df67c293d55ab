/** Parses a `text/event-stream` incrementally. */

export interface StreamMessage {
  id: string;
  event: string;
  data: string;
}

export class StreamParser {
  private rest = "";
  private message: StreamMessage = { id: "", event: "message", data: "" };

  /** Returns the messages that `piece` completes; comments only show that the stream is alive. */
  feed(piece: string): StreamMessage[] {
    const lines = (this.rest + piece).split(/\r\n|\n|\r(?=[^\n])/);
    this.rest = lines.pop() ?? "";
    return lines.flatMap((line) => this.take(line) ?? []);
  }

  private take(line: string): StreamMessage | null {
    if (line === "") return this.finish();
    const colon = line.indexOf(":");
    if (colon === 0) return null;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") this.message.data += this.message.data === "" ? value : `\n${value}`;
    else if (field === "event" || field === "id") this.message[field] = value;
    return null;
  }

  private finish(): StreamMessage | null {
    const done = this.message;
    this.message = { id: done.id, event: "message", data: "" };
    return done.data === "" && done.event === "message" ? null : done;
  }
}
