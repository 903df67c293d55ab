import { useMemo } from "react";
import type { BeliefNode } from "../api/contract";
import { Scroll } from "../design/Scroll";
import { plainText } from "../format";
import { layOutGraph, NODE_HEIGHT, NODE_WIDTH } from "../mission/plan/layout";
import { curve, drawnNodes, type Evidence } from "./figures";

// The arrow heads at the edge of the drawing need a little room.
const MARGIN = 8;

interface Props {
  nodes: readonly BeliefNode[];
  chosen: string;
  evidence: Evidence;
  onChoose: (name: string) => void;
}

/** The nodes of a belief network with arrows from their parents; a click chooses a node. */
export function NetworkGraph({ nodes, chosen, evidence, onChoose }: Props) {
  const drawn = useMemo(() => draw(nodes), [nodes]);
  return (
    <Scroll label="Graph of the network">
      <div className="network" role="group" aria-label="Nodes" style={{ width: drawn.width, height: drawn.height }}>
        <svg width={drawn.width} height={drawn.height} aria-hidden="true" focusable="false">
          <defs>
            <marker id="network-arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">
              <path d="M0 0L8 4L0 8z" className="network-head" />
            </marker>
          </defs>
          {drawn.lines.map((line) => (
            <path key={line} d={line} transform={`translate(${MARGIN} ${MARGIN})`} className="network-line" markerEnd="url(#network-arrow)" />
          ))}
        </svg>
        {nodes.map((node, place) => (
          <button
            key={node.name}
            type="button"
            className="network-node"
            aria-pressed={node.name === chosen}
            style={drawn.boxes[place]}
            onClick={() => onChoose(node.name)}
          >
            <strong className="cut">{plainText(node.name)}</strong>
            <span className="small network-states">{statesOf(node, evidence.get(node.name))}</span>
            {node.parents.length > 0 && <span className="sr-only">, depends on {plainText(node.parents.join(", "))}</span>}
          </button>
        ))}
      </div>
    </Scroll>
  );
}

function statesOf({ states }: BeliefNode, observed: string | undefined): string {
  return observed === undefined ? plainText(states.join(", ")) : `observed: ${plainText(observed)}`;
}

function draw(nodes: readonly BeliefNode[]) {
  const { places, routes } = layOutGraph(drawnNodes(nodes));
  const boxes = nodes.map((_, place) => {
    const { x, y } = places.get(String(place)) ?? { x: 0, y: 0 };
    return { left: x + MARGIN, top: y + MARGIN, width: NODE_WIDTH, height: NODE_HEIGHT };
  });
  const width = Math.max(...boxes.map(({ left }) => left), 0) + NODE_WIDTH + MARGIN;
  const height = Math.max(...boxes.map(({ top }) => top), 0) + NODE_HEIGHT + MARGIN;
  return { boxes, lines: routes.map(({ points }) => curve(points)), width, height };
}
