import { useSyncExternalStore } from "react";

// How far the server's clock is ahead of this browser's (ms): the server's times are compared with its own clock.
let ahead = 0;
let now = Date.now();
const listeners = new Set<() => void>();
let timer: ReturnType<typeof setInterval> | undefined;

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  timer ??= setInterval(() => {
    now = Date.now() + ahead;
    for (const each of listeners) each();
  }, 1000);
  return () => {
    listeners.delete(listener);
    if (listeners.size > 0) return;
    clearInterval(timer);
    timer = undefined;
  };
}

/** Reads the server's time from a response. It has whole seconds, so a smaller difference is ignored. */
export function noteServerTime(date: string | null): void {
  const server = date === null ? Number.NaN : Date.parse(date);
  if (Number.isNaN(server)) return;
  const differs = server + 500 - Date.now();
  const wanted = Math.abs(differs) < 2000 ? 0 : differs;
  if (Math.abs(wanted - ahead) < 2000) return;
  ahead = wanted;
  now = Date.now() + ahead;
}

/** The server's time in ms, updated each second; all components that show it change at once. */
export function useNow(): number {
  return useSyncExternalStore(subscribe, () => now);
}
