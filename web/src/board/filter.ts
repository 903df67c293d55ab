/** The board's filter as encoded in the address, and the filters that a person saves. */
import type { MissionFilter } from "../api/queries";
import { readStored, writeStored } from "../storage";

const FIELDS = ["status", "project", "user", "since", "q"] as const;
const SAVED = "chargehand.filters";

export interface SavedFilter {
  name: string;
  filter: MissionFilter;
}

/** Accepts only known fields, and only text: an address may contain anything. */
export function readFilter(search: Record<string, unknown>): MissionFilter {
  const filter: MissionFilter = {};
  for (const field of FIELDS) {
    const value = search[field];
    if ((typeof value === "string" || typeof value === "number") && value !== "") filter[field] = String(value);
  }
  return filter;
}

export function isEmpty(filter: MissionFilter): boolean {
  return FIELDS.every((field) => !filter[field]);
}

export function sameFilter(one: MissionFilter, other: MissionFilter): boolean {
  return FIELDS.every((field) => (one[field] ?? "") === (other[field] ?? ""));
}

/** Returns the saved filters with one more; it replaces a filter saved under the same name. */
export function withSaved(saved: readonly SavedFilter[], added: SavedFilter): SavedFilter[] {
  return [...saved.filter(({ name }) => name !== added.name), added];
}

export function loadSaved(): SavedFilter[] {
  return parseSaved(readStored(SAVED));
}

export function storeSaved(saved: readonly SavedFilter[]): void {
  writeStored(SAVED, saved.length > 0 ? JSON.stringify(saved) : null);
}

export function parseSaved(text: string | null): SavedFilter[] {
  if (text === null) return [];
  try {
    const entries: unknown = JSON.parse(text);
    return Array.isArray(entries) ? entries.flatMap((entry: unknown) => readEntry(entry) ?? []) : [];
  } catch {
    return [];
  }
}

function readEntry(entry: unknown): SavedFilter | null {
  if (typeof entry !== "object" || entry === null) return null;
  const { name, filter } = entry as { name?: unknown; filter?: unknown };
  if (typeof name !== "string" || typeof filter !== "object" || filter === null) return null;
  return { name, filter: readFilter(filter as Record<string, unknown>) };
}
