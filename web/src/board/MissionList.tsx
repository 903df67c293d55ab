import { useWindowVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useEffectEvent, useLayoutEffect, useRef, useState } from "react";
import { dialogIsOpen } from "../shell/useShortcuts";
import { isPlainKey, isWriting } from "../shell/keys";
import { useNarrow } from "../useNarrow";
import { MissionRow } from "./MissionRow";
import type { BoardRow } from "./rows";

interface Props {
  rows: readonly BoardRow[];
  onToggle: (mission: string) => void;
  onEnd: () => void;
}

// A row has one height in each layout: nothing jumps while rows come and go.
const HEIGHT = 54;
const NARROW_HEIGHT = 96;

export function MissionList({ rows, onToggle, onEnd }: Props) {
  const list = useRef<HTMLUListElement>(null);
  const [top, setTop] = useState(0);
  useLayoutEffect(() => setTop(list.current?.offsetTop ?? 0), [rows.length]);
  const height = useNarrow() ? NARROW_HEIGHT : HEIGHT;
  const virtual = useWindowVirtualizer({
    count: rows.length,
    estimateSize: () => height,
    overscan: 12,
    scrollMargin: top,
    getItemKey: (index) => rows[index]?.mission.mission ?? index,
  });
  useEffect(() => virtual.measure(), [virtual, height]);

  const items = virtual.getVirtualItems();
  const last = items.at(-1)?.index ?? 0;
  const reached = useEffectEvent(onEnd);
  useEffect(() => {
    if (last >= rows.length - 10) reached();
  }, [last, rows.length]);
  useRowKeys(rows, (index) => virtual.scrollToIndex(index), onToggle);

  return (
    <ul ref={list} aria-label="Missions" className="board-list" style={{ height: virtual.getTotalSize() }}>
      {items.map(({ index, key, start }) => {
        const row = rows[index];
        return (
          row && (
            <li
              key={key}
              aria-setsize={rows.length}
              aria-posinset={index + 1}
              style={{ height, transform: `translateY(${start - top}px)` }}
            >
              <MissionRow row={row} onToggle={onToggle} />
            </li>
          )
        );
      })}
    </ul>
  );
}

function useRowKeys(rows: readonly BoardRow[], scrollTo: (index: number) => void, toggle: (mission: string) => void): void {
  const press = useEffectEvent((event: KeyboardEvent) => {
    if (!isPlainKey(event) || isWriting(event.target) || dialogIsOpen()) return;
    const focused = document.activeElement?.getAttribute("data-row");
    const at = rows.findIndex(({ mission }) => mission.mission === focused);
    const row = rows[at];
    if (event.key === "x" && row && row.tasks > 0) toggle(row.mission.mission);
    const step = { j: 1, k: -1 }[event.key];
    if (step === undefined || rows.length === 0) return;
    const next = Math.max(0, Math.min(rows.length - 1, at + step));
    scrollTo(next);
    focusRow(rows[next]?.mission.mission ?? "");
  });
  useEffect(() => {
    const listener = (event: KeyboardEvent) => press(event);
    document.addEventListener("keydown", listener);
    return () => document.removeEventListener("keydown", listener);
  }, []);
}

// The row may only be drawn once the list has scrolled to it.
function focusRow(mission: string, tries = 5): void {
  requestAnimationFrame(() => {
    const link = document.querySelector<HTMLElement>(`[data-row="${CSS.escape(mission)}"]`);
    if (link) link.focus({ preventScroll: true });
    else if (tries > 0) focusRow(mission, tries - 1);
  });
}
