export interface Bar {
  label: string;
  value: number | null;
  /** The amount as text. It is authoritative; the bar only shows how the amounts compare. */
  shown: string;
}

/** Amounts as bars, each with its number; an unknown amount has no bar and is labelled as unknown. `most` fills a bar. */
export function Bars({ label, bars, most = longest(bars) }: { label: string; bars: readonly Bar[]; most?: number }) {
  return (
    <ul className="bars" aria-label={label}>
      {bars.map((bar) => (
        <li key={bar.label} className="bar">
          <span className="wrap">{bar.label}</span>
          <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true" focusable="false">
            <rect width="100" height="10" className="bar-ground" />
            <rect width={(100 * (bar.value ?? 0)) / most} height="10" className="bar-value" />
          </svg>
          <span className="numbers">{bar.shown}</span>
        </li>
      ))}
    </ul>
  );
}

const longest = (bars: readonly Bar[]) => Math.max(...bars.map(({ value }) => value ?? 0), Number.MIN_VALUE);
