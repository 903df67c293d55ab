import { expect, it } from "vitest";
import { layOut, layOutGraph, NODE_HEIGHT, NODE_WIDTH } from "./layout";

it("puts each task right of those it comes after, and none upon another", () => {
  const places = layOut([
    { id: "a", after: [] },
    { id: "b", after: ["a"] },
    { id: "c", after: ["a", "gone"] },
    { id: "d", after: ["b", "c"] },
  ]);
  const at = (id: string) => places.get(id) ?? { x: NaN, y: NaN };
  expect(at("b").x).toBeGreaterThan(at("a").x + NODE_WIDTH);
  expect(at("d").x).toBeGreaterThan(at("c").x + NODE_WIDTH);
  expect(Math.abs(at("b").y - at("c").y)).toBeGreaterThan(NODE_HEIGHT);
});

it("leads an arrow around the box between its ends", () => {
  const { places, routes } = layOutGraph([
    { id: "a", after: [] },
    { id: "b", after: ["a"] },
    { id: "c", after: ["a", "b"] },
  ]);
  expect(routes.map(({ from, to }) => from + to).sort()).toEqual(["ab", "ac", "bc"]);
  const between = places.get("b") ?? { x: NaN, y: NaN };
  const long = routes.find(({ from, to }) => from + to === "ac")?.points ?? [];
  // From the right side of `a`, along all of `b`, to the left side of `c`.
  expect(long.map(({ x }) => x)).toEqual([NODE_WIDTH, between.x, between.x + NODE_WIDTH, places.get("c")?.x]);
  expect(long[1]?.y).toBe(long[2]?.y);
  const passed = long[1]?.y ?? NaN;
  expect(passed < between.y || passed > between.y + NODE_HEIGHT).toBe(true);
});
