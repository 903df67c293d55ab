import { useQuery } from "@tanstack/react-query";
import type { RolloutList, RolloutView } from "../api/contract";
import { listQuery } from "../api/queries";
import { CopyCommand } from "../design/CopyCommand";
import { Loaded } from "../design/states";
import { plainText } from "../format";
import { describeSide } from "./figures";

/** The roll-outs of models and policies, with the outcomes inside and outside and the verdict of their guard. */
export function Rollouts() {
  return (
    <Loaded query={useQuery(listQuery<RolloutList>("rollouts"))} label="Loading roll-outs">
      {({ rollouts }) => (
        <section className="card stack" aria-label="Roll-outs">
          <h2>Roll-outs</h2>
          {rollouts.length === 0 && <p className="soft">There are none: a roll-out is a table [rollouts.NAME] of your configuration.</p>}
          {rollouts.map((rollout) => (
            <Rollout key={rollout.name} rollout={rollout} />
          ))}
        </section>
      )}
    </Loaded>
  );
}

function Rollout({ rollout: { name, gives, percent: share, state, meaning, problem, raise_with, end_with } }: { rollout: RolloutView }) {
  return (
    <article className="stack rollout">
      <h3 className="wrap">{plainText(name)}</h3>
      {problem && <p className="wrap tone-warn">It changes no choice: {plainText(problem)}.</p>}
      <dl className="facts">
        <dt>Verdict</dt>
        <dd>{plainText(meaning)}</dd>
        <dt>Gives</dt>
        <dd>{plainText(gives)}</dd>
        <dt>Share</dt>
        <dd>
          {share} %: {state.members} of {state.known} projects with outcomes
        </dd>
        <dt>Good in it</dt>
        <dd>{describeSide(state.inside)}</dd>
        <dt>Good outside</dt>
        <dd>{describeSide(state.outside)}</dd>
        <Command what="Raise" command={raise_with} />
        <Command what="End" command={end_with} />
      </dl>
    </article>
  );
}

function Command({ what, command }: { what: string; command: string }) {
  if (command === "") return null;
  return (
    <>
      <dt>{what}</dt>
      <dd className="row rollout-command">
        <CopyCommand command={plainText(command)} />
      </dd>
    </>
  );
}
