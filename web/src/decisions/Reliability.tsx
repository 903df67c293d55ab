import { useQuery } from "@tanstack/react-query";
import type { Reliability as Measured, ReliabilityDocument } from "../api/contract";
import { listQuery } from "../api/queries";
import { Scroll } from "../design/Scroll";
import { Loaded } from "../design/states";
import { count, percent } from "../format";
import { describeErrors } from "./figures";
import { NothingYet } from "./NothingYet";
import { ReliabilityPlot } from "./ReliabilityPlot";

const HEADS = ["Chance", "Number", "Mean", "Came true", "80 % interval"];

/** Predicted chances against what happened, of learned choices and of forecasts. */
export function Reliability() {
  return (
    <Loaded query={useQuery(listQuery<ReliabilityDocument>("choices/reliability"))} label="Comparing predictions with outcomes">
      {({ choices, forecasts, ...known }) => (
        <section className="card stack" aria-label="Reliability">
          <h2>Reliability</h2>
          <p className="soft small">
            A dot is a tenth of the chance; on the diagonal it came true as often as predicted. A larger dot has more predictions, its line is an 80 %
            interval. From the newest {count(known.missions, "mission")}.
          </p>
          <div className="reliability">
            <Predictions name="Learned choices" none="No learned choice has a known outcome yet." measured={choices} {...known} />
            <Predictions name="Forecasts" none="No forecast has a known outcome yet." measured={forecasts} {...known} />
          </div>
        </section>
      )}
    </Loaded>
  );
}

interface Props {
  name: string;
  none: string;
  measured: Measured;
  learns: boolean;
  installed: boolean;
}

function Predictions({ name, none, measured, learns, installed }: Props) {
  const { bins } = measured;
  return (
    <figure className="stack" aria-label={name}>
      <figcaption>
        <h3>{name}</h3>
        {bins.length > 0 && <span className="small">{describeErrors(measured)}</span>}
      </figcaption>
      {bins.length === 0 ? (
        <NothingYet learns={learns} installed={installed} none={none} />
      ) : (
        <>
          <ReliabilityPlot bins={bins} />
          <Scroll label={`${name} by chance`}>
            <table className="table">
              <caption className="sr-only">{name} by chance</caption>
              <thead>
                <tr>
                  {HEADS.map((head, column) => (
                    <th key={head} scope="col" className={column === 0 ? undefined : "number"}>
                      {head}
                    </th>
                  ))}
                </tr>
              </thead>
              <tbody>
                {bins.map(({ low, high, count: number, good, predicted, rate, rate_low, rate_high }) => (
                  <tr key={low}>
                    <th scope="row">
                      {percent(low)} to {percent(high)}
                    </th>
                    <td className="number">{number}</td>
                    <td className="number">{percent(predicted)}</td>
                    <td className="number">
                      {good} ({percent(rate)})
                    </td>
                    <td className="number">
                      {percent(rate_low)} to {percent(rate_high)}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Scroll>
        </>
      )}
    </figure>
  );
}
