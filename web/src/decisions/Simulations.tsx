import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import type { ForecastList, RecordedForecast } from "../api/contract";
import { listQuery } from "../api/queries";
import { Loaded } from "../design/states";
import { clock, duration, money, percent } from "../format";
import { DataTable } from "../system/Page";
import { useNow } from "../useNow";
import { describeReproduced } from "./figures";
import { NothingYet } from "./NothingYet";

const HEADS = ["Time", "Mission", "Chance", "Cost, 80 % band", "Time, 80 % band", "What happened", "Seed", "Samples #", "From its seed"];

/** The recorded forecasts of the newest missions, each computed again from its seed and its recorded beliefs. */
export function Simulations() {
  const now = useNow();
  return (
    <Loaded query={useQuery(listQuery<ForecastList>("forecasts?limit=40"))} label="Computing recorded forecasts again">
      {({ forecasts, learns, installed }) => (
        <DataTable
          caption="Simulations"
          heads={HEADS}
          rows={forecasts.map((made) => [
            <time key="time" dateTime={made.time} className="numbers">
              {clock(made.time, now)}
            </time>,
            <Mission key="mission" made={made} />,
            `${percent(made.chance)}${made.is_guess ? ", a guess" : ""}`,
            <BandText key="cost" band={made.cost_usd} now={made.spent_usd} form={money} />,
            <BandText key="span" band={made.seconds} now={made.used_seconds} form={duration} />,
            describeEnd(made),
            made.seed === null ? "not recorded" : String(made.seed),
            made.samples === 0 ? "not recorded" : made.samples.toLocaleString("en"),
            describeReproduced(made),
          ])}
          none="No forecast is recorded: one is made before the first attempt of a mission, and after each that another follows; of a plan before its first task."
        >
          {forecasts.length === 0 ? (
            <NothingYet learns={learns} installed={installed} none="" />
          ) : (
            <p className="soft small">The forecast of a plan is about all its unfinished tasks. It is made before the first one, and when tasks are added.</p>
          )}
        </DataTable>
      )}
    </Loaded>
  );
}

function describeEnd({ is_good, tasks }: RecordedForecast) {
  if (is_good === null) return "open";
  if (tasks) return is_good ? "all tasks got done" : "not all tasks got done";
  return is_good ? "an attempt passed" : "no attempt passed";
}

function Mission({ made: { mission, after, tasks } }: { made: RecordedForecast }) {
  return (
    <>
      <Link to="/missions/$id/$tab" params={{ id: mission, tab: "choices" }} className="mono">
        {mission}
      </Link>{" "}
      <span className="soft small">{after === 0 ? "at its start" : tasks ? `after ${after} ended tasks` : `after attempt ${after}`}</span>
    </>
  );
}

interface BandProps {
  band: RecordedForecast["cost_usd"];
  now: number | null;
  form: (amount: number | null) => string;
}

function BandText({ band, now, form }: BandProps) {
  if (band === null) return <>unknown</>;
  const most = Math.max(band.high, now ?? 0, Number.MIN_VALUE) * 1.05;
  const at = (amount: number) => (100 * amount) / most;
  return (
    <span className="chance-band">
      <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true" focusable="false">
        <rect width="100" height="10" className="bar-ground" />
        <rect x={at(band.low)} width={Math.max(at(band.high - band.low), 0.5)} height="10" className="band-range" />
        <rect x={at(band.middle) - 0.4} width="0.8" height="10" className="band-middle" />
        {now !== null && <rect y="3" width={at(now)} height="4" className="bar-value" />}
      </svg>
      <span className="numbers">
        {form(band.low)} to {form(band.high)}; so far {form(now)}
      </span>
    </span>
  );
}
