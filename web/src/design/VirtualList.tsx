import { useWindowVirtualizer } from "@tanstack/react-virtual";
import { useCallback, useEffect, useEffectEvent, useLayoutEffect, useRef, useState, type ReactNode } from "react";
import { dialogIsOpen, isPlainKey, isWriting } from "../shell/keys";

interface Props<T> {
  label: string;
  items: readonly T[];
  /**
   * Returns the key of an entry that can move; without it the index is the key. Pass a stable function: a new one
   * makes the list lay out everything again.
   */
  keyOf?: (item: T) => string;
  /** The height of an entry in px: of every entry, or an estimate if entries are `measured`. */
  height: number;
  measured?: boolean;
  className?: string;
  children: (item: T, index: number) => ReactNode;
  /** Called near the end of the list, to load more. */
  onEnd?: () => void;
  /** Called for a key that is pressed while an entry has the focus. */
  onKey?: (key: string, item: T) => void;
}

/**
 * A list of any length on the page that draws only visible entries. `j` and `k` move the focus between the
 * elements marked `data-row`.
 */
export function VirtualList<T>({ label, items, keyOf, height, measured = false, className = "", children, onEnd, onKey }: Props<T>) {
  const list = useRef<HTMLUListElement>(null);
  const [top, setTop] = useState(0);
  useLayoutEffect(() => setTop(list.current ? list.current.getBoundingClientRect().top + window.scrollY : 0), [items.length]);
  const getItemKey = useCallback((index: number) => (keyOf ? keyOf(items[index] as T) : index), [items, keyOf]);
  const virtual = useWindowVirtualizer({
    count: items.length,
    estimateSize: () => height,
    overscan: 12,
    scrollMargin: top,
    getItemKey,
  });
  useEffect(() => {
    virtual.measure();
  }, [virtual, height]);

  const shown = virtual.getVirtualItems();
  const last = shown.at(-1)?.index ?? 0;
  const reached = useEffectEvent(() => onEnd?.());
  useEffect(() => {
    if (last >= items.length - 10) reached();
  }, [last, items.length]);
  useRowKeys(list, items, (index) => virtual.scrollToIndex(index), onKey);

  return (
    <ul ref={list} aria-label={label} className={`virtual ${className}`} style={{ height: virtual.getTotalSize() }}>
      {shown.map(({ index, key, start }) => (
        <li
          key={key}
          ref={measured ? virtual.measureElement : undefined}
          data-index={index}
          aria-setsize={items.length}
          aria-posinset={index + 1}
          style={{ ...(measured ? {} : { height }), transform: `translateY(${start - top}px)` }}
        >
          {children(items[index] as T, index)}
        </li>
      ))}
    </ul>
  );
}

type ListRef = React.RefObject<HTMLUListElement | null>;

function useRowKeys<T>(list: ListRef, items: readonly T[], scrollTo: (index: number) => void, onKey?: (key: string, item: T) => void): void {
  const press = useEffectEvent((event: KeyboardEvent) => {
    if (event.defaultPrevented || !isPlainKey(event) || isWriting(event.target) || dialogIsOpen()) return;
    const focused = document.activeElement?.closest<HTMLElement>("[data-index]");
    const at = focused && list.current?.contains(focused) ? Number(focused.dataset["index"]) : -1;
    const item = items[at];
    if (item !== undefined) onKey?.(event.key, item);
    const step = { j: 1, k: -1 }[event.key];
    if (step === undefined || items.length === 0) return;
    const next = Math.max(0, Math.min(items.length - 1, at + step));
    scrollTo(next);
    focusRow(list, next);
  });
  useEffect(() => {
    const listener = (event: KeyboardEvent) => press(event);
    document.addEventListener("keydown", listener);
    return () => document.removeEventListener("keydown", listener);
  }, []);
}

// An entry may not be drawn before the list has scrolled to it.
function focusRow(list: ListRef, index: number, tries = 5): void {
  requestAnimationFrame(() => {
    const row = list.current?.querySelector<HTMLElement>(`[data-index="${index}"] [data-row]`);
    if (row) row.focus({ preventScroll: true });
    else if (tries > 0) focusRow(list, index, tries - 1);
  });
}
