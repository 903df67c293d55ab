import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { Batcher } from "./batcher";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

it("hands over a burst as one batch once it is quiet", () => {
  const batches: number[][] = [];
  const batcher = new Batcher<number>((batch) => batches.push(batch), 250, 1000);
  batcher.add(1);
  batcher.add(2);
  vi.advanceTimersByTime(249);
  expect(batches).toEqual([]);
  vi.advanceTimersByTime(1);
  expect(batches).toEqual([[1, 2]]);
});

it("waits no longer than its limit where it never gets quiet", () => {
  const batches: number[][] = [];
  const batcher = new Batcher<number>((batch) => batches.push(batch), 250, 1000);
  for (let step = 0; step < 20; step += 1) {
    batcher.add(step);
    vi.advanceTimersByTime(100);
  }
  expect(batches[0]).toHaveLength(10);
});
