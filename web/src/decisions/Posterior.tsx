import { useQuery } from "@tanstack/react-query";
import { useEffect, useId, useRef } from "react";
import type { BeliefNode, NetworkView, PosteriorView } from "../api/contract";
import { get } from "../api/client";
import { Select } from "../design/Field";
import { Loaded } from "../design/states";
import { plainText } from "../format";
import { Bars } from "../statistics/Bars";
import { posteriorSearch, type Evidence } from "./figures";

interface Props {
  network: NetworkView["network"];
  nodes: readonly BeliefNode[];
  node: BeliefNode;
  evidence: Evidence;
  onObserve: (node: string, state: string) => void;
}

/** The probability of each state of a node, and a choice of the observed state of each other node. */
export function Posterior({ network, nodes, node, evidence, onObserve }: Props) {
  const path = `/knowledge/${encodeURIComponent(network.name)}/posterior?number=${network.number}&${posteriorSearch(nodes, node.name, evidence)}`;
  const query = useQuery({
    queryKey: [path],
    queryFn: ({ signal }) => get<PosteriorView>(path, signal),
    // A person compares the bars before and after: those of another node would be wrong.
    placeholderData: (before) => (before?.targets[0] === node.name ? before : undefined),
    retry: false,
  });
  const title = useId();
  const place = useRef<HTMLElement>(null);
  // A graph may be taller than the screen, so that its click would change nothing that is seen.
  useEffect(() => {
    place.current?.scrollIntoView({ block: "nearest" });
  }, [node.name]);
  return (
    <section ref={place} className="stack" aria-labelledby={title}>
      <h3 id={title} className="wrap">
        Probabilities of {plainText(node.name)}
      </h3>
      {node.note && <p className="wrap soft small">{plainText(node.note)}</p>}
      <Loaded query={query} label="Computing the probabilities">
        {(posterior) => <States posterior={posterior} />}
      </Loaded>
      <fieldset className="network-evidence">
        <legend>Observed states of other nodes</legend>
        <div className="form-grid">
          {nodes
            .filter(({ name }) => name !== node.name)
            .map(({ name, states }) => (
              <Select
                key={name}
                label={plainText(name)}
                value={evidence.get(name) ?? ""}
                onChange={(state) => onObserve(name, state)}
                options={[{ value: "", label: "not observed" }, ...states.map((state) => ({ value: state, label: plainText(state) }))]}
              />
            ))}
        </div>
      </fieldset>
    </section>
  );
}

function States({ posterior: { outcomes, given } }: { posterior: PosteriorView }) {
  const bars = outcomes.map(({ states, probability }) => ({ label: plainText(states.join(", ")), value: probability, shown: `${(100 * probability).toFixed(1)} %` }));
  return (
    <>
      <Bars label="Probability of each state" bars={bars} most={1} />
      <p className="soft small wrap">{given.length > 0 ? `Given ${plainText(given.join(", "))}.` : "Nothing is observed."}</p>
    </>
  );
}
