import type { StepPath } from "../../api/contract";
import { Scroll } from "../../design/Scroll";
import { money, percent, plainText } from "../../format";

type Step = StepPath["steps"][number];

/** The alternatives after a failure as a tree: each with the best steps that would follow while all fail. */
export function StepTree({ paths }: { paths: readonly StepPath[] }) {
  return (
    <div className="stack">
      <h3>What could be tried, and what after it</h3>
      <Scroll label="Decision tree">
        <ol className="step-tree" aria-label="Decision tree">
          {paths.map(({ steps }, place) => (
            <li key={place}>
              <ol className="step-path">
                {steps.map((step, depth) => (
                  <StepBox key={depth} step={step} depth={depth} isChosen={place === 0 && depth === 0} isEnd={depth === steps.length - 1} />
                ))}
              </ol>
            </li>
          ))}
        </ol>
      </Scroll>
      <p className="soft small">
        A row is one alternative, the best first. After it come the best steps while each before them fails: their chances are given that, and a
        value includes all that follows.
      </p>
    </div>
  );
}

interface BoxProps {
  step: Step;
  depth: number;
  isChosen: boolean;
  /** The last step of a path is a person, whose price is configured, or no further attempt. */
  isEnd: boolean;
}

function StepBox({ step: { name, reached, chance, price_usd, value_usd, known_costs }, depth, isChosen, isEnd }: BoxProps) {
  const price = known_costs > 0 || isEnd || price_usd === 0 ? money(price_usd) : `about ${money(price_usd)}`;
  return (
    <li className="step">
      {depth > 0 && <span className="step-fails small">{depth === 1 ? "fails" : "all fail"}: {percent(reached)}</span>}
      <span className={isChosen ? "step-box best" : "step-box"}>
        <strong className="wrap">{plainText(name)}</strong>
        {isChosen && <span className="sr-only"> (chosen)</span>}
        {chance > 0 && (
          <span className="numbers small">
            <meter min={0} max={1} value={chance} aria-hidden="true" /> {percent(chance)} for {price}
          </span>
        )}
        <span className="numbers small soft">value {signed(value_usd)}</span>
      </span>
    </li>
  );
}

function signed(usd: number): string {
  return usd < 0 ? `-${money(-usd)}` : money(usd);
}
