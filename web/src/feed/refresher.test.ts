import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { Refresher } from "./refresher";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

it("asks once more for all that came while it asked and rested, and not before", async () => {
  const asked: [number, readonly string[]][] = [];
  const refresher = new Refresher((names) => {
    asked.push([Date.now() - began, names]);
    return new Promise((resolve) => setTimeout(resolve, 4_000));
  });
  const began = Date.now();
  for (let step = 0; step < 20; step += 1) {
    void refresher.add(["m", `m-${step % 2}`]);
    await vi.advanceTimersByTimeAsync(500);
  }
  await vi.advanceTimersByTimeAsync(20_000);
  expect(asked).toEqual([
    [0, ["m", "m-0"]],
    [8_000, ["m", "m-1", "m-0"]],
    [16_000, ["m", "m-0", "m-1"]],
  ]);
});

it("goes on after a refusal, at once where the answer was quick", async () => {
  let asked = 0;
  const refresher = new Refresher(() => {
    asked += 1;
    return Promise.reject(new Error("away"));
  });
  void refresher.add(["m"]);
  await vi.advanceTimersByTimeAsync(1);
  void refresher.add(["m"]);
  await vi.advanceTimersByTimeAsync(1);
  expect(asked).toBe(2);
});
