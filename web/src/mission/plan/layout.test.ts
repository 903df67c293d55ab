import { expect, it } from "vitest";
import { layOut, NODE_HEIGHT, NODE_WIDTH } from "./layout";

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
