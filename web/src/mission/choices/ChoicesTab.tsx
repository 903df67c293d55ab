import { useQuery } from "@tanstack/react-query";
import type { ExplainedChoice, MissionDetails } from "../../api/contract";
import { choicesQuery } from "../../api/queries";
import { Scroll } from "../../design/Scroll";
import { Loaded } from "../../design/states";
import { clock, count, money, plainText } from "../../format";
import { useNow } from "../../useNow";
import "./choices.css";
import { ForecastCard } from "./ForecastCard";
import { StepTree } from "./StepTree";

type Learned = NonNullable<ExplainedChoice["learned"]>;

const LEFT_OUT: Record<Learned["left_out"][number]["reason"], string> = {
  tried: "was tried on this task",
  no_money: "costs more than the money left",
  price_unknown: "is too dear to try only to learn its price",
  worse: "is worse than the others at its price",
};

export default function ChoicesTab({ mission }: { mission: MissionDetails }) {
  const now = useNow();
  return (
    <Loaded query={useQuery(choicesQuery(mission.mission))} label="Reading the choices">
      {({ choices }) => (
        <div className="stack">
          {choices.some(({ learned }) => learned) && <ForecastCard mission={mission.mission} />}
          {choices.length === 0 && <p className="soft">No choice of agent or model is recorded with its reasons.</p>}
          {choices.map((choice) => (
            <section key={choice.line} className="card stack">
              <h2 className="wrap">
                {choice.task && `Task ${choice.task}: `}
                {plainText(choice.chosen)}
              </h2>
              <p className="wrap">
                <time className="numbers soft">{clock(choice.time, now)}</time> {plainText(choice.why)}
              </p>
              {choice.learned && <Candidates learned={choice.learned} />}
            </section>
          ))}
        </div>
      )}
    </Loaded>
  );
}

function Candidates({ learned }: { learned: Learned }) {
  const causes = Object.entries(learned.causes).sort(([, a], [, b]) => b - a);
  return (
    <>
      <Scroll label="Candidates">
        <table className="table" aria-label="Candidates">
          <thead>
            <tr>
              <th scope="col">Candidate</th>
              <th scope="col">Chance</th>
              <th scope="col" className="number">
                Price
              </th>
              <th scope="col" className="number">
                Value
              </th>
            </tr>
          </thead>
          <tbody>
            {learned.candidates.map(({ name, chance, price_usd, value_usd, known_costs }, place) => (
              <tr key={name} className={place === 0 ? "best" : undefined}>
                <th scope="row" className="wrap">
                  {plainText(name)}
                </th>
                <td>
                  <Chance of={chance} />
                </td>
                <td className="number">{known_costs > 0 || price_usd === 0 ? money(price_usd) : `about ${money(price_usd)}, assumed`}</td>
                <td className="number">{value_usd < 0 ? `-${money(-value_usd)}` : money(value_usd)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
      {learned.left_out.length > 0 && (
        <ul className="small">
          {learned.left_out.map(({ name, reason }) => (
            <li key={name} className="wrap">
              {plainText(name)} {LEFT_OUT[reason]}
            </li>
          ))}
        </ul>
      )}
      {learned.paths.length > 0 && <StepTree paths={learned.paths} />}
      {causes.length > 0 && (
        <div className="stack">
          <h3>Probable causes of the failure before it</h3>
          <dl className="causes">
            {causes.map(([cause, chance]) => (
              <div key={cause} className="row">
                <dt>{cause.replaceAll("_", " ")}</dt>
                <dd>
                  <Chance of={chance} />
                </dd>
              </div>
            ))}
          </dl>
        </div>
      )}
      <p className="soft small">
        A solved task is worth {money(learned.worth_usd)}; the choice is worth {money(learned.gain_usd)} more than the next best, by{" "}
        {count(learned.outcomes, "attempt")}
        {learned.is_guess && ", a guess"}. {replayed(learned.replayed)}
      </p>
    </>
  );
}

function Chance({ of }: { of: number }) {
  return (
    <span className="chance numbers">
      <meter min={0} max={1} value={of} aria-hidden="true" /> {Math.round(of * 100)} %
    </span>
  );
}

function replayed(same: boolean | null): string {
  if (same === null) return "To draw the steps after it, and to compute it again, the server needs the optional part chargehand[decisions].";
  return same ? "Computed again, it gives the same numbers." : "Computed again, it gives other numbers: it is of another version, or damaged.";
}
