import { useQuery } from "@tanstack/react-query";
import type { ForecastDocument } from "../../api/contract";
import { forecastQuery } from "../../api/queries";
import { duration, money, plainText } from "../../format";

type Quantity = NonNullable<ForecastDocument["at_start"]>["cost_usd"];

/** The forecast of a mission, with the amounts so far in its 80 % bands; nothing if decisions are not learned. */
export function ForecastCard({ mission }: { mission: string }) {
  const { data } = useQuery(forecastQuery(mission));
  if (data === undefined) return null;
  const made = data.forecast ?? data.plan ?? data.at_start;
  return (
    <section className="card stack">
      <h2>Forecast</h2>
      {data.summary.map((line) => (
        <p key={line} className="wrap">
          {plainText(line)}
        </p>
      ))}
      {made && (
        <ul className="bars" aria-label="80 % bands">
          <BandBar label="Cost" band={made.cost_usd} now={data.cost_usd} form={money} />
          <BandBar label="Time" band={made.seconds} now={data.seconds} form={duration} />
        </ul>
      )}
    </section>
  );
}

interface BandBarProps {
  label: string;
  band: Quantity;
  now: number | null;
  form: (amount: number | null) => string;
}

function BandBar({ label, band, now, form }: BandBarProps) {
  if (band === null) return null;
  const most = Math.max(band.high, now ?? 0, Number.MIN_VALUE) * 1.1;
  const at = (amount: number) => (100 * amount) / most;
  return (
    <li className="bar">
      <span>{label}</span>
      <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true" focusable="false">
        <rect width="100" height="10" className="bar-ground" />
        <rect x={at(band.low)} width={Math.max(at(band.high - band.low), 0.5)} height="10" className="band-range" />
        <rect x={at(band.middle) - 0.3} width="0.6" height="10" className="band-middle" />
        {now !== null && <rect y="3" width={at(now)} height="4" className="bar-value" />}
      </svg>
      <span className="numbers">
        {form(band.low)} to {form(band.high)}; so far {form(now)}
      </span>
    </li>
  );
}
