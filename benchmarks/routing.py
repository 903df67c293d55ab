"""Compares the router with simple policies on recorded outcomes: `python -m benchmarks.routing [--orders N]`.

Each benchmark in the data is judged with a prior that leaves it out. Tasks come in random orders; a policy sees
only the outcomes of the attempts that it chose. Costs of 0 are unknown. Prints Markdown.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import math
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from msgspec import Struct

from chargehand.decisions.routing.records import (
    AttemptEnds,
    HistoryRecord,
    RouterBudget,
    RouterCandidate,
    TaskBegins,
    Verdict,
)
from chargehand.decisions.routing.router import PriorRow, choose_from, forecast, prepare
from chargehand.decisions.routing.state import RouterState

DATA = Path(__file__).parents[2] / "shared/data/agent_outcomes.csv.gz"
BENCHMARKS = ("swt-bench", "gaia")
WORTHS = (1.0, 3.0, 10.0, 30.0, 100.0)
ATTEMPTS = 4
# Adapters of other programs, whose recorded costs are wrong.
_WRONG_COSTS = "acp-"

Outcome = tuple[bool, float | None]
Tasks = list[dict[str, Outcome]]


class Line(NamedTuple):
    """One recorded outcome."""

    benchmark: str
    agent: str
    model: str
    task: str
    outcome: Outcome


class Run(Struct, frozen=True):
    """One order of a benchmark's tasks under a policy: per task solved or not, its cost, and whether it was wrong.

    `wrong` are tasks whose green verdict was false; `arms` the arms that were tried, in order.
    """

    solved: tuple[bool, ...]
    costs: tuple[float, ...]
    wrong: tuple[bool, ...] = ()
    arms: tuple[tuple[str, ...], ...] = ()


class Noise(NamedTuple):
    """The rates of wrong verdicts."""

    false_green: float = 0.0
    false_red: float = 0.0


EXACT = Noise()


@cache
def read_lines(data: Path = DATA) -> tuple[Line, ...]:
    """Return the recorded outcomes whose costs can be used."""
    found = []
    with gzip.open(data, "rt", newline="") as file:
        for row in csv.DictReader(file):
            if row["resolved"] and not row["agent"].startswith(_WRONG_COSTS):
                cost = float(row["cost_usd"] or 0)
                outcome = (float(row["resolved"]) > 0, cost if cost > 0 else None)
                found.append(Line(row["benchmark"], row["agent"], row["model"], row["instance"], outcome))
    return tuple(found)


@cache
def read_tasks(benchmark: str) -> Tasks:
    """Return per task the outcome of each arm that tried it."""
    tasks: dict[str, dict[str, Outcome]] = {}
    for line in read_lines():
        if line.benchmark == benchmark:
            tasks.setdefault(line.task, {})[f"{line.agent}/{line.model}"] = line.outcome
    return [tasks[name] for name in sorted(tasks)]


@cache
def candidates_of(benchmark: str, *, with_prior: bool = True) -> tuple[RouterCandidate, ...]:
    """Return the arms of a benchmark, with a prior from the other benchmarks."""
    pairs = sorted({(line.agent, line.model) for line in read_lines() if line.benchmark == benchmark})
    arms = [RouterCandidate(id=f"{agent}/{model}", agent=agent, model=model) for agent, model in pairs]
    rows = [
        PriorRow(
            kind=line.benchmark, agent=line.agent, model=line.model, solved=line.outcome[0], cost=line.outcome[1]
        )
        for line in read_lines()
        if line.benchmark != benchmark
    ]
    return prepare(rows if with_prior else (), arms)


def shuffled(benchmark: str, seed: int) -> Tasks:
    """Return the tasks of a benchmark in a random order."""
    tasks = list(read_tasks(benchmark))
    random.Random(seed).shuffle(tasks)
    return tasks


def run_router(
    benchmark: str,
    seed: int,
    budget: RouterBudget,
    *,
    with_prior: bool = True,
    noise: Noise = EXACT,
    tasks: Tasks | None = None,
) -> Run:
    """Run one order under the router."""
    arms = candidates_of(benchmark, with_prior=with_prior)
    drawn, state = random.Random(seed + 1), RouterState(budget.false_green, budget.false_red)
    solved, costs, wrong, tried = [], [], [], []
    for task in tasks if tasks is not None else shuffled(benchmark, seed):
        state = state.fold([TaskBegins(features={"kind": benchmark})], arms)
        free = [each for each in arms if each.id in task]
        is_solved, is_wrong, spent = False, False, 0.0
        names: list[str] = []
        for _ in range(budget.attempts):
            chosen = choose_from(state, state.task, free, budget, drawn.getrandbits(32)).chosen
            if chosen is None:
                break
            ok, cost = task[chosen]
            is_green = drawn.random() >= noise.false_red if ok else drawn.random() < noise.false_green
            spent += cost or 0.0
            names.append(chosen)
            ended = AttemptEnds(arm=chosen, verdict="green" if is_green else "red", cost=cost)
            state = state.fold([ended], arms)
            if is_green:
                is_solved, is_wrong = ok, not ok
                break
        solved.append(is_solved)
        wrong.append(is_wrong)
        costs.append(spent)
        tried.append(tuple(names))
    return Run(tuple(solved), tuple(costs), tuple(wrong), tuple(tried))


class Simple:
    """The counts of a simple policy, and its rule for the next arm."""

    def __init__(self, rule: str, arms: Sequence[str], seed: int) -> None:
        self.rule, self.random = rule, random.Random(seed + 1)
        self.good = dict.fromkeys(arms, 0)
        self.bad = dict.fromkeys(arms, 0)
        self.costs: dict[str, list[float]] = {arm: [] for arm in arms}

    def pick(self, free: Sequence[str]) -> str:
        """Return the next arm of those not yet tried."""
        if self.rule == "epsilon-greedy 0.1":
            if self.random.random() < 0.1:
                return self.random.choice(free)
            rate = {arm: (self.good[arm] + 1) / (self.good[arm] + self.bad[arm] + 2) for arm in free}
            return max(free, key=lambda arm: (rate[arm], self.random.random()))
        drawn = {arm: self.random.betavariate(self.good[arm] + 1, self.bad[arm] + 1) for arm in free}
        if self.rule == "Thompson":
            return max(free, key=drawn.__getitem__)
        price = {arm: fmean(self.costs[arm]) if self.costs[arm] else 1e-3 for arm in free}
        if self.rule == "ratio Thompson":
            return max(free, key=lambda arm: drawn[arm] / price[arm])
        return min(free, key=lambda arm: (price[arm], self.random.random()))  # price ladder

    def learn(self, arm: str, ok: bool, cost: float | None) -> None:
        """Count an outcome."""
        (self.good if ok else self.bad)[arm] += 1
        if cost:
            self.costs[arm].append(cost)


RULES = ("Thompson", "epsilon-greedy 0.1", "ratio Thompson", "price ladder")


def run_simple(benchmark: str, seed: int, rule: str, attempts: int) -> Run:
    """Run one order under a simple policy, until green or so many attempts."""
    policy = Simple(rule, [each.id for each in candidates_of(benchmark)], seed)
    solved, costs = [], []
    for task in shuffled(benchmark, seed):
        free, ok, spent = list(task), False, 0.0
        for _ in range(attempts):
            arm = policy.pick(free)
            free.remove(arm)
            ok, cost = task[arm]
            policy.learn(arm, ok, cost)
            spent += cost or 0.0
            if ok:
                break
        solved.append(ok)
        costs.append(spent)
    return Run(tuple(solved), tuple(costs))


def run_fixed(benchmark: str, seed: int, arms: Sequence[str], noise: Noise = EXACT) -> Run:
    """Run one order under a fixed sequence of arms, until green."""
    drawn = random.Random(seed + 1)
    solved, costs, wrong = [], [], []
    for task in shuffled(benchmark, seed):
        is_solved, is_wrong, spent = False, False, 0.0
        for arm in arms:
            if arm not in task:
                continue
            ok, cost = task[arm]
            spent += cost or 0.0
            if drawn.random() >= noise.false_red if ok else drawn.random() < noise.false_green:
                is_solved, is_wrong = ok, not ok
                break
        solved.append(is_solved)
        wrong.append(is_wrong)
        costs.append(spent)
    return Run(tuple(solved), tuple(costs), tuple(wrong))


@cache
def find_cascade(benchmark: str, worth: float = 30.0) -> tuple[str, ...]:
    """Return the best sequence in hindsight of up to four arms of the frontier, cheapest first."""
    tasks = read_tasks(benchmark)
    found = {each.id: [task[each.id] for task in tasks if each.id in task] for each in candidates_of(benchmark)}
    rates = {arm: fmean(ok for ok, _ in outcomes) for arm, outcomes in found.items()}
    prices = {arm: fmean(cost or 0.0 for _, cost in outcomes) for arm, outcomes in found.items()}
    frontier = [
        arm
        for arm in sorted(prices, key=prices.__getitem__)
        if all(rates[arm] > rates[other] for other in prices if prices[other] < prices[arm])
    ]

    def value(sequence: Sequence[str]) -> float:
        run = run_fixed(benchmark, 0, sequence)
        return worth * fmean(run.solved) - fmean(run.costs)

    return max((each for size in range(1, ATTEMPTS + 1) for each in combinations(frontier, size)), key=value)


class Row(Struct, frozen=True):
    """Mean rate and cost of a policy over orders, with standard errors, over all tasks and parts of the stream."""

    name: str
    rate: float
    rate_error: float
    cost: float
    cost_error: float
    first: tuple[float, float]
    last: tuple[float, float]
    wrong: float


def summarise(name: str, runs: Sequence[Run]) -> Row:
    """Return a row of the table."""
    rates, costs = [fmean(run.solved) for run in runs], [fmean(run.costs) for run in runs]
    spread = math.sqrt(len(runs))

    def part(cut: slice) -> tuple[float, float]:
        return fmean(fmean(run.solved[cut]) for run in runs), fmean(fmean(run.costs[cut]) for run in runs)

    return Row(
        name=name,
        rate=fmean(rates),
        rate_error=stdev(rates) / spread if len(runs) > 1 else 0.0,
        cost=fmean(costs),
        cost_error=stdev(costs) / spread if len(runs) > 1 else 0.0,
        first=part(slice(20)),
        last=part(slice(-100, None)),
        wrong=fmean(fmean(run.wrong) if run.wrong else 0.0 for run in runs),
    )


def rate_at(curve: Sequence[tuple[float, float]], cost: float) -> float:
    """Return the rate of a curve of (cost, rate) at a cost: linear between points, the last one beyond them.

    Money may be left unspent, so a dearer point never counts for less than a cheaper one.
    """
    points = sorted(curve)
    best, before = 0.0, (0.0, 0.0)
    for point in points:
        if point[0] > cost:
            share = (cost - before[0]) / (point[0] - before[0])
            return max(best, before[1] + share * (point[1] - before[1]))
        best, before = max(best, point[1]), point
    return best


def fallen(benchmark: str, seed: int, budget: RouterBudget) -> tuple[float, float]:
    """Return the share of the most used arm before its fall and in tasks 26 to 50 after it.

    From a third of the stream on the arm solves only two thirds of what it solved before (81 to 54 %).
    """
    tasks, drawn = shuffled(benchmark, seed), random.Random(seed + 2)
    start = len(tasks) // 3
    before = run_router(benchmark, seed, budget, tasks=tasks[:start])
    firsts = [names[0] for names in before.arms if names]
    arm = max(sorted({*firsts}), key=firsts.count)
    changed = list(tasks[:start])
    for task in tasks[start:]:
        ok, cost = task.get(arm, (False, None))
        falls = {arm: (ok and drawn.random() < 2 / 3, cost)} if arm in task else {}
        changed.append({**task, **falls})
    run = run_router(benchmark, seed, budget, tasks=changed[: start + 50])
    window = [names[0] for names in run.arms[start + 25 :] if names]
    return firsts[-50:].count(arm) / len(firsts[-50:]), window.count(arm) / max(1, len(window))


def coverage(benchmark: str, seed: int, worth: float) -> Iterator[tuple[bool, bool, float, float, float]]:
    """Yield for forecasts along one order: 20 tasks covered, one task covered, its width, and the Brier score's
    parts.
    """
    run = run_router(benchmark, seed, RouterBudget(worth=worth))
    history: list[HistoryRecord] = []
    for place, (solved, cost) in enumerate(zip(run.solved, run.costs, strict=True)):
        if place >= 40 and place % 10 == 0 and place + 20 <= len(run.costs):
            found = forecast(history, 20, 0.8)
            total = sum(run.costs[place : place + 20])
            yield (
                found.low <= total <= found.high,
                found.single_low <= cost <= found.single_high,
                found.single_high / max(found.single_low, 1e-9),
                found.chance,
                float(solved),
            )
        history.append(TaskBegins(features={"kind": benchmark}, task=str(place)))
        verdict: Verdict = "green" if solved else "red"
        history.append(AttemptEnds(arm="any", verdict=verdict, cost=cost or None, task=str(place)))


Job = tuple[Callable[..., object], tuple[object, ...], dict[str, object]]


def _work(job: Job) -> object:
    function, arguments, named = job
    found = function(*arguments, **named)
    return list(found) if isinstance(found, Iterator) else found


def _all(
    pool: ProcessPoolExecutor, function: Callable[..., object], jobs: Sequence[tuple[object, ...]], **named: object
) -> list[Any]:
    return list(pool.map(_work, [(function, job, named) for job in jobs]))


def compare(benchmark: str, orders: int, pool: ProcessPoolExecutor) -> Mapping[str, Row]:
    """Return the rows of all policies over one benchmark."""
    seeds = range(orders)
    cascade = find_cascade(benchmark)
    rows = [
        summarise("cascade in hindsight", _all(pool, run_fixed, [(benchmark, seed, cascade) for seed in seeds]))
    ]
    for attempts, how in ((1, "one attempt"), (ATTEMPTS, "until green")):
        for rule in RULES:
            runs = _all(pool, run_simple, [(benchmark, seed, rule, attempts) for seed in seeds])
            rows.append(summarise(f"{rule}, {how}", runs))
    for worth in WORTHS:
        runs = _all(pool, run_router, [(benchmark, seed, RouterBudget(worth=worth)) for seed in seeds])
        rows.append(summarise(f"router, a solved task worth {worth:g}", runs))
    once = RouterBudget(worth=100.0, attempts=1)
    rows.append(summarise("router, one attempt", _all(pool, run_router, [(benchmark, s, once) for s in seeds])))
    bare = _all(pool, run_router, [(benchmark, s, RouterBudget(worth=30.0)) for s in seeds], with_prior=False)
    rows.append(summarise("router without a prior, worth 30", bare))
    noise = Noise(0.10, 0.05)
    told = RouterBudget(worth=30.0, wrong_price=100.0, false_green=0.10, false_red=0.05)
    rows.append(
        summarise(
            "cascade, wrong verdicts", _all(pool, run_fixed, [(benchmark, s, cascade, noise) for s in seeds])
        )
    )
    rows.append(
        summarise(
            "router, wrong verdicts", _all(pool, run_router, [(benchmark, s, told) for s in seeds], noise=noise)
        )
    )
    return {row.name: row for row in rows}


def _print_row(*cells: str) -> None:
    print("|", " | ".join(cells), "|", flush=True)


def _print_table(benchmark: str, rows: Mapping[str, Row]) -> None:
    print(f"\n## {benchmark}\n")
    _print_row("policy", "solved %", "USD a task", "first 20", "last 100", "wrong %")
    _print_row(*["---"] * 6)
    for row in rows.values():
        first, last = (f"{100 * rate:.1f} at {cost:.3f}" for rate, cost in (row.first, row.last))
        solved, cost = (
            f"{100 * row.rate:.1f} ± {100 * row.rate_error:.1f}",
            f"{row.cost:.3f} ± {row.cost_error:.3f}",
        )
        _print_row(row.name, solved, cost, first, last, f"{100 * row.wrong:.1f}")


def _print_aims(benchmark: str, rows: Mapping[str, Row]) -> None:
    routed = [row for name, row in rows.items() if name.startswith("router, a solved")]
    curve = [(row.cost, row.rate) for row in routed]
    bandits = [row for name, row in rows.items() if "one attempt" in name and "router" not in name]
    once = max(bandits, key=lambda row: row.rate)
    cascade = rows["cascade in hindsight"]
    print(f"\nAims on {benchmark}:\n")
    _print_row("aim", "wanted", "found")
    _print_row(*["---"] * 3)
    gained = rate_at(curve, once.cost) - once.rate
    _print_row(f"A: over {once.name}, at its cost", "+11", f"{100 * gained:+.1f}")
    share = rate_at(curve, 1.1 * cascade.cost) / cascade.rate
    last = rate_at([row.last[::-1] for row in routed], 1.1 * cascade.last[1]) / cascade.last[0]
    _print_row("B: of the cascade's rate at 1.1 of its cost", "97 %", f"{100 * share:.1f} %")
    _print_row("B: the same over the last 100 tasks", "99 %", f"{100 * last:.1f} %")
    for rule in RULES:
        row = rows[f"{rule}, until green"]
        _print_row(
            f"C: over {row.name}, at its cost", ">= 0", f"{100 * (rate_at(curve, row.cost) - row.rate):+.1f}"
        )
    arms = {arm for task in read_tasks(benchmark) for arm in task}
    fixed = [summarise(arm, [run_fixed(benchmark, seed, (arm,)) for seed in range(5)]) for arm in sorted(arms)]
    best = max(fixed, key=lambda row: row.rate)
    early = rate_at([row.first[::-1] for row in routed], best.cost) - best.rate
    _print_row(f"D: first 20 tasks over {best.name}, at its cost", ">= -3", f"{100 * early:+.1f}")
    noisy, told = rows["cascade, wrong verdicts"], rows["router, wrong verdicts"]
    _print_row("E: wrong verdicts: over the cascade", "+2", f"{100 * (told.rate - noisy.rate):+.1f}")
    _print_row("E: its wrong promotions, of the cascade's", "<= 50 %", f"{100 * told.wrong / noisy.wrong:.0f} %")


def _print_rest(benchmark: str, orders: int, pool: ProcessPoolExecutor) -> None:
    once = RouterBudget(worth=3.0, attempts=1)
    falls = _all(pool, fallen, [(benchmark, seed, once) for seed in range(orders)])
    before, after = (100 * fmean(pair[place] for pair in falls) for place in (0, 1))
    _print_row("G: share of an arm before it falls by a third", "", f"{before:.0f} %")
    _print_row("G: the same in tasks 26 to 50 after it", "<= 25 %", f"{after:.0f} %")
    found = _all(pool, coverage, [(benchmark, seed, 10.0) for seed in range(orders)])
    seen = [each for of_order in found for each in of_order]
    sums, single = (100 * fmean(each[place] for each in seen) for place in (0, 1))
    width = sorted(each[2] for each in seen)[len(seen) // 2]
    _print_row("80 % band: cost of 20 tasks", "75 to 85 %", f"{sums:.0f} %")
    _print_row("80 % band: cost of one task (high / low)", "75 to 85 %", f"{single:.0f} % ({width:.0f})")
    _print_row("Brier score of success", "", f"{fmean((each[3] - each[4]) ** 2 for each in seen):.3f}")


def main() -> None:
    """Print the tables and the aims."""
    parser = argparse.ArgumentParser(prog="benchmarks.routing")
    parser.add_argument("--orders", type=int, default=50)
    parser.add_argument("--only", choices=BENCHMARKS)
    asked = parser.parse_args()
    if not DATA.is_file():
        parser.error(f"the outcomes are missing: {DATA}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the matrices are small: threads only cost
    began = time.monotonic()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for benchmark in (asked.only,) if asked.only else BENCHMARKS:
            rows = compare(benchmark, asked.orders, pool)
            _print_table(benchmark, rows)
            _print_aims(benchmark, rows)
            _print_rest(benchmark, asked.orders, pool)
    print(f"\n{asked.orders} orders, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
