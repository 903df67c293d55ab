import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import type { NetworkList, NetworkView } from "../api/contract";
import { listQuery } from "../api/queries";
import { Select } from "../design/Field";
import { Loaded } from "../design/states";
import { plainText } from "../format";
import type { Evidence } from "./figures";
import { NetworkGraph } from "./NetworkGraph";
import { Posterior } from "./Posterior";

// More boxes than this help no one, and take long to lay out.
const MOST_DRAWN = 150;

/** Belief networks: each as a graph, and the probabilities of a node's states given states of others. */
export function Networks() {
  const [chosen, setChosen] = useState("");
  return (
    <Loaded query={useQuery(listQuery<NetworkList>("knowledge"))} label="Loading belief networks">
      {({ networks }) => {
        const network = networks.find(({ name }) => name === chosen) ?? networks[0];
        return (
          <section className="card stack" aria-label="Belief networks">
            <h2>Belief networks</h2>
            {network ? (
              <>
                <div className="decisions-project">
                  <Select
                    label="Network"
                    value={network.name}
                    onChange={setChosen}
                    options={networks.map(({ name, number }) => ({ value: name, label: `${name}, ${number > 0 ? `version ${number}` : "shipped"}` }))}
                  />
                </div>
                <Network key={network.name} name={network.name} />
              </>
            ) : (
              <p className="soft">There are none.</p>
            )}
          </section>
        );
      }}
    </Loaded>
  );
}

function Network({ name }: { name: string }) {
  return (
    <Loaded query={useQuery(listQuery<NetworkView>(`knowledge/${encodeURIComponent(name)}`))} label="Loading the network">
      {(view) => <Nodes view={view} />}
    </Loaded>
  );
}

function Nodes({ view: { network, nodes, note } }: { view: NetworkView }) {
  const [chosen, setChosen] = useState("");
  const [evidence, setEvidence] = useState<Evidence>(new Map());
  const node = nodes.find(({ name }) => name === chosen);
  const observe = (name: string, state: string) => {
    const others = [...evidence].filter(([each]) => each !== name);
    setEvidence(new Map(state === "" ? others : [...others, [name, state]]));
  };
  return (
    <>
      {note && <p className="wrap soft small">{plainText(note)}</p>}
      {nodes.length <= MOST_DRAWN ? (
        <NetworkGraph nodes={nodes} chosen={chosen} evidence={evidence} onChoose={setChosen} />
      ) : (
        <p className="soft">The network has {nodes.length} nodes, too many to draw.</p>
      )}
      <div className="decisions-project">
        <Select
          label="Node"
          value={chosen}
          onChange={setChosen}
          options={[{ value: "", label: "Choose a node" }, ...nodes.map(({ name }) => ({ value: name, label: plainText(name) }))]}
        />
      </div>
      {node && <Posterior network={network} nodes={nodes} node={node} evidence={evidence} onObserve={observe} />}
    </>
  );
}
