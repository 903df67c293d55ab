import type { TerminalRecord } from "../../api/contract";
import { terminalLine } from "./styles";

/** Turns records into the text of the terminal, with a heading where an attempt or its checks begin. */
export class TerminalText {
  private place = "";

  write(records: readonly TerminalRecord[]): string {
    return records.map((record) => this.one(record)).join("");
  }

  private one(record: TerminalRecord): string {
    if (record.kind === "reset") {
      this.place = "";
      return heading("The mission continues; new output follows");
    }
    if (record.kind === "dropped") return heading(record.count > 0 ? `${record.count} lines are left out here` : "Earlier output is left out here");
    if (record.kind !== "line") return "";
    const line = `${terminalLine(record.text)}\r\n`;
    const place = `${record.attempt} ${record.source}`;
    if (place === this.place) return line;
    this.place = place;
    const attempt = record.attempt === 0 ? "Before the first attempt" : `Attempt ${record.attempt}`;
    return heading(`${attempt}, ${record.source === "check" ? "checks" : "agent"}${record.kept ? " (kept)" : ""}`) + line;
  }
}

function heading(text: string): string {
  return `\u001b[1m── ${text} ──\u001b[0m\r\n`;
}
