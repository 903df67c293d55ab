import { graphlib, layout } from "@dagrejs/dagre";

export const NODE_WIDTH = 230;
export const NODE_HEIGHT = 84;

interface Placed {
  x: number;
  y: number;
}

/** Returns the upper left corner of each task, laid out from left to right in the order of the plan. */
export function layOut(tasks: readonly { id: string; after: readonly string[] }[]): Map<string, Placed> {
  const graph = new graphlib.Graph();
  graph.setGraph({ rankdir: "LR", nodesep: 18, ranksep: 56 });
  graph.setDefaultEdgeLabel(() => ({}));
  const known = new Set(tasks.map(({ id }) => id));
  for (const { id } of tasks) graph.setNode(id, { width: NODE_WIDTH, height: NODE_HEIGHT });
  for (const { id, after } of tasks) {
    for (const before of after) if (known.has(before)) graph.setEdge(before, id);
  }
  layout(graph);
  return new Map(
    tasks.map(({ id }) => {
      const { x, y } = graph.node(id) as Placed;
      return [id, { x: x - NODE_WIDTH / 2, y: y - NODE_HEIGHT / 2 }];
    }),
  );
}
