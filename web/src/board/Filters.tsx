import { useNavigate } from "@tanstack/react-router";
import { useEffect, useEffectEvent, useState } from "react";
import type { MissionFilter } from "../api/queries";
import { Icon } from "../design/Icon";
import { lookOf } from "../design/Status";
import { SavedFilters } from "./SavedFilters";

const ORDER = ["waiting", "running", "paused", "planned", "promoted", "refused", "failed", "exhausted", "cancelled", "discarded"];

interface Props {
  filter: MissionFilter;
  counts: Record<string, number>;
}

export function Filters({ filter, counts }: Props) {
  const navigate = useNavigate({ from: "/" });
  const change = (part: MissionFilter) =>
    void navigate({ to: "/", search: (before) => ({ ...before, ...part }), replace: true, resetScroll: false });
  const all = Object.values(counts).reduce((sum, number) => sum + number, 0);
  const shown = [...ORDER, ...Object.keys(counts).filter((status) => !ORDER.includes(status))];
  return (
    <search className="filters">
      <SearchField value={filter.q ?? ""} onChange={(q) => change({ q: q || undefined })} />
      <div role="group" aria-label="Status" className="chips">
        <Chip label="All" number={all} pressed={!filter.status} onPress={() => change({ status: undefined })} />
        {shown
          .filter((status) => (counts[status] ?? 0) > 0 || status === filter.status)
          .map((status) => (
            <Chip
              key={status}
              status={status}
              label={lookOf(status).label}
              number={counts[status] ?? 0}
              pressed={filter.status === status}
              onPress={() => change({ status: filter.status === status ? undefined : status })}
            />
          ))}
      </div>
      <SavedFilters filter={filter} />
    </search>
  );
}

interface ChipProps {
  label: string;
  number: number;
  pressed: boolean;
  onPress: () => void;
  status?: string;
}

function Chip({ label, number, pressed, onPress, status }: ChipProps) {
  const look = status ? lookOf(status) : null;
  return (
    <button type="button" className="chip" aria-pressed={pressed} onClick={onPress}>
      {look && (
        <span className={`tone-${look.tone}`}>
          <Icon name={look.icon} />
        </span>
      )}
      {label} <span className="soft numbers">{number}</span>
    </button>
  );
}

const TYPING_MS = 250;

function SearchField({ value, onChange }: { value: string; onChange: (text: string) => void }) {
  const [text, setText] = useState(value);
  const [shown, setShown] = useState(value);
  // The address can change without typing in the field: by a saved filter or the browser's back button.
  if (value !== shown) {
    setShown(value);
    setText(value);
  }
  const settle = useEffectEvent(() => text !== value && onChange(text));
  useEffect(() => {
    const timer = setTimeout(() => settle(), TYPING_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <input
      type="search"
      className="input filter-search"
      aria-label="Search missions"
      placeholder="Search missions"
      value={text}
      onChange={(event) => setText(event.target.value)}
    />
  );
}
