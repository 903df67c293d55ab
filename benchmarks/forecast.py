"""Judges forecasts of missions on recorded outcomes: `python -m benchmarks.forecast [--orders N] [--plot FILE]`.

A mission tries up to three arms of a pool of six until one is green, in an order of its own. It is forecast before
its first attempt and after a red one, from the missions before it. Costs of 0 are unknown. Prints Markdown, and
writes the plot of reliability as SVG. Then a plan of 30 tasks is timed.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from statistics import fmean, median

import numpy as np
from msgspec import Struct

from benchmarks.routing import BENCHMARKS, DATA, candidates_of, shuffled
from chargehand.decisions.forecast_records import LogNormal, PlanProspect, TaskProspect
from chargehand.decisions.forecasting.attempts import end_attempts, sample_attempts
from chargehand.decisions.forecasting.plan import simulate_plan
from chargehand.decisions.routing.records import AttemptEnds, TaskBegins
from chargehand.decisions.routing.state import RouterState

_POOL, _ATTEMPTS, _SAMPLES, _EARLY, _BINS = 6, 3, 2000, 20, 10
_PLACES = (4, 30)


class Judged(Struct, frozen=True):
    """A forecast and what happened: the chance, whether it was solved, the band of the cost and the cost.

    `place` is the number of missions before it, `after` that of its red attempts, `base` the share solved of the
    missions before it that got as far.
    """

    place: int
    after: int
    chance: float
    base: float
    is_solved: bool
    low: float | None = None
    high: float | None = None
    cost: float | None = None


def judge(benchmark: str, seed: int) -> list[Judged]:
    """Return the forecasts along one order of a benchmark's tasks."""
    drawn, generator = random.Random(seed + 1), np.random.default_rng(seed)
    pool = drawn.sample(candidates_of(benchmark), _POOL)
    state, found = RouterState(), list[Judged]()
    rates = [[1, 2] for _ in range(_ATTEMPTS)]  # solved, and all, after so many red attempts
    for place, task in enumerate(shuffled(benchmark, seed)):
        arms = [each for each in pool if each.id in task]
        drawn.shuffle(arms)
        arms = arms[:_ATTEMPTS]
        if len(arms) < _ATTEMPTS:
            continue
        state = state.fold([TaskBegins(features={"kind": benchmark})], pool)
        outcomes = [task[each.id] for each in arms]
        tried = next((n for n, (ok, _) in enumerate(outcomes, 1) if ok), _ATTEMPTS)
        is_solved = any(ok for ok, _ in outcomes)
        for after in range(tried):
            if after:
                ok, cost = outcomes[after - 1]
                state = state.fold([AttemptEnds(arm=arms[after - 1].id, verdict="red", cost=cost)], pool)
            kind = state.belief(benchmark, pool)
            sampled = sample_attempts(kind, state.task, arms[after:], _SAMPLES, generator)
            ends = end_attempts(sampled)
            costs = [cost for _, cost in outcomes[after:tried]]
            known = [cost for cost in costs if cost is not None]
            has_cost = sampled.costs is not None and len(known) == len(costs)
            low, high = np.quantile(ends.costs, (0.1, 0.9)).tolist() if has_cost else (None, None)
            chance = float(ends.green.mean())
            base = rates[after][0] / rates[after][1]
            total = sum(known) if has_cost else None
            found.append(Judged(place, after, chance, base, is_solved, low, high, total))
        ok, cost = outcomes[tried - 1]
        ended = AttemptEnds(arm=arms[tried - 1].id, verdict="green" if ok else "red", cost=cost)
        state = state.fold([ended], pool)
        for rate in rates[:tried]:
            rate[0] += is_solved
            rate[1] += 1
    return found


def reliability(judged: Sequence[Judged]) -> list[tuple[float, float, int]]:
    """Return per non-empty tenth of the chance: mean forecast, share solved, number of forecasts."""
    bins: list[list[Judged]] = [[] for _ in range(_BINS)]
    for each in judged:
        bins[min(int(each.chance * _BINS), _BINS - 1)].append(each)
    return [(fmean(e.chance for e in some), fmean(e.is_solved for e in some), len(some)) for some in bins if some]


def _print_row(*cells: str) -> None:
    print("|", " | ".join(cells), "|", flush=True)


def _print_rows(benchmark: str, judged: Sequence[Judged]) -> None:
    parts = {
        f"first {_EARLY} missions": [e for e in judged if not e.after and e.place < _EARLY],
        "later missions": [e for e in judged if not e.after and e.place >= _EARLY],
        "later, after a red attempt": [e for e in judged if e.after and e.place >= _EARLY],
    }
    for name, some in parts.items():
        priced = [(e.low, e.high, e.cost) for e in some if e.cost and e.low and e.high]
        covered = 100 * fmean(low <= cost <= high for low, high, cost in priced)
        width = median(high / low for low, high, _ in priced)
        brier = fmean((e.chance - e.is_solved) ** 2 for e in some)
        rate = fmean((e.base - e.is_solved) ** 2 for e in some)
        _print_row(
            benchmark, name, f"{covered:.0f} %", f"{width:.0f}", f"{brier:.3f}", f"{rate:.3f}", str(len(some))
        )


def draw_plot(curves: dict[str, list[tuple[float, float, int]]]) -> str:
    """Return the plot of observed shares over forecasts as SVG, with the diagonal of a perfect forecast."""
    size, edge = 300, 40
    colours = dict(zip(curves, ("#0072b2", "#d55e00"), strict=False))

    def at(x: float, y: float) -> str:
        return f"{edge + size * x:.1f},{edge / 2 + size * (1 - y):.1f}"

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size + 2 * edge} {size + 2 * edge}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="100%" height="100%" fill="white"/><polyline points="{at(0, 1)} {at(0, 0)} {at(1, 0)}" '
        'fill="none" stroke="#444"/>',
        f'<polyline points="{at(0, 0)} {at(1, 1)}" stroke="#999" stroke-dasharray="4" fill="none"/>',
        f'<text x="{edge + size / 2 - 40}" y="{size + edge + 10}">forecast chance</text>',
        f'<text transform="translate(15 {size / 2 + 60}) rotate(-90)">share promoted</text>',
    ]
    for number, (name, curve) in enumerate(curves.items()):
        points = " ".join(at(x, y) for x, y, _ in curve)
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colours[name]}" stroke-width="2"/>')
        lines.append(f'<text x="{edge + 15}" y="{edge + 15 * number}" fill="{colours[name]}">{name}</text>')
    return "\n".join([*lines, "</svg>", ""])


def plan_of(count: int, places: int) -> PlanProspect:
    """Return a plan of tasks that each start after up to three earlier ones."""
    drawn = random.Random(1)
    tasks = []
    for number in range(count):
        after = drawn.sample(range(number), min(number, drawn.randint(0, 3)))
        tasks.append(
            TaskProspect(
                id=f"t{number}",
                arm="arm",
                after=tuple(f"t{each}" for each in after),
                skill=1.5,
                skill_variance=0.1,
                cost=LogNormal(mean=-1.0, variance=0.1, spread=0.7),
                time=LogNormal(mean=5.0, variance=0.1, spread=0.7),
                attempts=2,
            )
        )
    return PlanProspect(tasks=tuple(tasks), places=places)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="benchmarks.forecast")
    parser.add_argument("--orders", type=int, default=20)
    parser.add_argument("--plot", type=Path)
    asked = parser.parse_args()
    if not DATA.is_file():
        parser.error(f"the outcomes are missing: {DATA}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the matrices are small: threads only cost
    _print_row("benchmark", "forecasts", "cost in 80 % band", "high / low", "Brier", "Brier of the rate", "number")
    _print_row(*["---"] * 7)
    curves = {}
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        for benchmark in BENCHMARKS:
            judged = [e for some in workers.map(judge, repeat(benchmark), range(asked.orders)) for e in some]
            _print_rows(benchmark, judged)
            curves[benchmark] = reliability([e for e in judged if not e.after])
    for benchmark, curve in curves.items():
        print(f"\n{benchmark}:\n")
        _print_row("forecast", *(f"{100 * x:.0f} %" for x, _, _ in curve))
        _print_row(*["---"] * (len(curve) + 1))
        _print_row("promoted", *(f"{100 * y:.0f} %" for _, y, _ in curve))
        _print_row("missions", *(str(count) for _, _, count in curve))
    if asked.plot:
        asked.plot.write_text(draw_plot(curves))
    print()
    for places in _PLACES:
        plan, taken = plan_of(30, places), []
        for _ in range(1 if asked.orders == 1 else 5):
            began = time.process_time()
            made = simulate_plan(plan, seed=1)
            taken.append(time.process_time() - began)
        print(f"30 tasks, {places} at once, {made.samples} samples: {min(taken):.2f} s of processor time")


if __name__ == "__main__":
    main()
