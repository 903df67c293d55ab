import { useSyncExternalStore } from "react";
import { Button } from "./Button";
import { Icon } from "./Icon";

interface Toast {
  id: number;
  text: string;
  bad: boolean;
}

let toasts: readonly Toast[] = [];
let last = 0;
const listeners = new Set<() => void>();

function set(next: readonly Toast[]): void {
  toasts = next;
  for (const listener of listeners) listener();
}

/** Shows a short notice; an error stays until it is closed. */
export function toast(text: string, bad = false): void {
  const id = ++last;
  set([...toasts.slice(-3), { id, text, bad }]);
  if (!bad) setTimeout(() => dismiss(id), 6000);
}

function dismiss(id: number): void {
  set(toasts.filter((entry) => entry.id !== id));
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function Toasts() {
  const shown = useSyncExternalStore(subscribe, () => toasts);
  return (
    <div className="toasts" role="region" aria-label="Notices" aria-live="polite">
      {shown.map((entry) => (
        <div key={entry.id} className="toast" role={entry.bad ? "alert" : undefined}>
          <Icon name={entry.bad ? "warning" : "promoted"} />
          <p>{entry.text}</p>
          <Button kind="quiet" icon="close" aria-label="Close notice" onClick={() => dismiss(entry.id)} />
        </div>
      ))}
    </div>
  );
}
