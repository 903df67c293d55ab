import { graphlib, layout } from "@dagrejs/dagre";

export const NODE_WIDTH = 230;
export const NODE_HEIGHT = 84;

export interface Point {
  x: number;
  y: number;
}

interface Drawn {
  id: string;
  after: readonly string[];
}

interface Route {
  from: string;
  to: string;
  points: readonly Point[];
}

/** Returns the upper left corner of each task, laid out from left to right in the order of the plan. */
export function layOut(tasks: readonly Drawn[]): Map<string, Point> {
  return layOutGraph(tasks).places;
}

/** Returns the upper left corner of each box, and the points of each arrow: it passes other boxes in a straight line. */
export function layOutGraph(boxes: readonly Drawn[]): { places: Map<string, Point>; routes: Route[] } {
  const graph = new graphlib.Graph();
  graph.setGraph({ rankdir: "LR", nodesep: 18, ranksep: 56 });
  graph.setDefaultEdgeLabel(() => ({}));
  const known = new Set(boxes.map(({ id }) => id));
  for (const { id } of boxes) graph.setNode(id, { width: NODE_WIDTH, height: NODE_HEIGHT });
  for (const { id, after } of boxes) {
    for (const before of after) if (known.has(before)) graph.setEdge(before, id);
  }
  layout(graph);
  const centre = (id: string) => graph.node(id) as Point;
  const places = boxes.map(({ id }) => [id, { x: centre(id).x - NODE_WIDTH / 2, y: centre(id).y - NODE_HEIGHT / 2 }] as const);
  const routes = graph.edges().map((edge) => {
    const { points } = graph.edge(edge) as { points: readonly Point[] };
    // Between the ends, every other point is the centre of a column of boxes; the others are between two columns.
    const passed = points.slice(1, -1).filter((_, place) => place % 2 === 1);
    const stops = [centre(edge.v), ...passed, centre(edge.w)].flatMap(({ x, y }) => [-1, 1].map((side) => ({ x: x + (side * NODE_WIDTH) / 2, y })));
    return { from: edge.v, to: edge.w, points: stops.slice(1, -1) };
  });
  return { places: new Map(places), routes };
}
