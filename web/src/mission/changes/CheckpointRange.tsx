import { useId } from "react";
import type { Stop } from "./stops";

interface Props {
  stops: readonly Stop[];
  from: string;
  to: string;
  onChange: (choice: { from?: string; to?: string }) => void;
}

/** Two sliders over all trees of a mission: the one to compare from, and the one to compare to. */
export function CheckpointRange({ stops, from, to, onChange }: Props) {
  return (
    <div className="card range" role="group" aria-label="Compared checkpoints">
      <Scrubber label="From" stops={stops} value={from} onChange={(id) => onChange({ from: id })} />
      <Scrubber label="To" stops={stops} value={to} onChange={(id) => onChange({ to: id })} />
    </div>
  );
}

interface ScrubberProps {
  label: string;
  stops: readonly Stop[];
  value: string;
  onChange: (id: string) => void;
}

function Scrubber({ label, stops, value, onChange }: ScrubberProps) {
  const id = useId();
  const at = Math.max(0, stops.findIndex((stop) => stop.id === value));
  return (
    <>
      <label htmlFor={id}>{label}</label>
      <input
        id={id}
        type="range"
        min={0}
        max={stops.length - 1}
        step={1}
        value={at}
        aria-valuetext={stops[at]?.label}
        onChange={(event) => onChange(stops[Number(event.target.value)]?.id ?? value)}
      />
      <span className="soft small">{stops[at]?.label}</span>
    </>
  );
}
