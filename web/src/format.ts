/** Amounts, times and names as people read them. An unknown value is shown as unknown, never as zero. */

export const UNKNOWN = "unknown";

/** Returns USD; `known` is false if parts of the sum are unknown. */
export function money(usd: number | null, known = true): string {
  if (usd === null) return UNKNOWN;
  const digits = usd !== 0 && Math.abs(usd) < 0.1 ? 4 : 2;
  return `${known ? "" : "≥ "}$${usd.toFixed(digits)}`;
}

/** Returns a share of 1 in whole percent. */
export function percent(share: number | null): string {
  return share === null ? UNKNOWN : `${Math.round(share * 100)} %`;
}

/** Returns seconds as `45 s`, `3 m 05 s`, `2 h 07 m` or `3 d 4 h`. */
export function duration(seconds: number | null): string {
  if (seconds === null) return UNKNOWN;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} m ${pad(whole % 60)} s`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)} h ${pad(Math.floor((whole % 3600) / 60))} m`;
  return `${Math.floor(whole / 86_400)} d ${Math.floor((whole % 86_400) / 3600)} h`;
}

/** Returns how long ago `iso` was at `now` (ms): `just now`, `5 m ago`, else the date. */
export function ago(iso: string, now: number): string {
  const seconds = (now - Date.parse(iso)) / 1000;
  if (Number.isNaN(seconds)) return UNKNOWN;
  if (seconds < 45) return "just now";
  if (seconds < 3600) return `${Math.round(seconds / 60)} m ago`;
  if (seconds < 86_400) return `${Math.round(seconds / 3600)} h ago`;
  return iso.slice(0, 10);
}

/** Returns the local time of day with seconds, and the date if it is not today. */
export function clock(iso: string, now: number): string {
  const time = new Date(iso);
  if (Number.isNaN(time.getTime())) return UNKNOWN;
  const hours = `${pad(time.getHours())}:${pad(time.getMinutes())}:${pad(time.getSeconds())}`;
  const today = new Date(now).toDateString() === time.toDateString();
  return today ? hours : `${time.getFullYear()}-${pad(time.getMonth() + 1)}-${pad(time.getDate())} ${hours}`;
}

export function bytes(count: number | null | undefined): string {
  if (count === null || count === undefined) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(1)} ${units[unit] ?? ""}`;
}

export function count(number: number, noun: string, plural = `${noun}s`): string {
  return `${number} ${number === 1 ? noun : plural}`;
}

/** Returns the last part of a path: the name by which a person knows a repository. */
export function baseName(path: string): string {
  const trimmed = path.replace(/\/+$/, "");
  return trimmed.slice(trimmed.lastIndexOf("/") + 1) || path;
}

export function shortCommit(commit: string | null): string {
  return commit === null ? UNKNOWN : commit.slice(0, 12);
}

export function firstLine(text: string): string {
  return text.trimStart().split("\n", 1)[0] ?? "";
}

// Escape sequences of terminals (CSI, OSC, two-character ones), then every other control byte except tab and
// newline, and the marks that reorder text on the screen.
const ESCAPES = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[ -/]*[0-~])/g;
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;

/** Returns text from agents and repositories without anything that a terminal or a browser would interpret. */
export function plainText(text: string): string {
  return text.replace(/\r\n/g, "\n").replace(ESCAPES, "").replace(CONTROLS, "");
}

function pad(value: number): string {
  return String(value).padStart(2, "0");
}
