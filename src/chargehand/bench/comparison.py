"""Summaries of runs, and comparisons of runs on the problems that they share."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from chargehand.bench.records import BenchResult, RunHeader
from chargehand.bench.statistics import (
    Interval,
    comparison_power,
    flips_can_be_counted,
    holm,
    mcnemar_exact,
    needed_problems,
    paired_bootstrap,
    pareto_front,
    pass_at_k,
    sign_flip_exact,
    sign_flip_sampled,
    wilson,
)
from chargehand.core.errors import UsageError

Metric = Literal["solved", "passed"]
_POINTS = 0.05
_SHOWN_PROBLEMS = 10


class RunSummary(Struct, frozen=True, kw_only=True):
    """A run in numbers; rates leave out trials that ended with an error or have no validator.

    `rate` is the share of judged trials that were solved, `interval` its 95 % interval (Wilson), with the problems
    as the number of independent observations. `pass_at` has pass@k by k. `cost_usd` is null if any trial's cost is
    unknown; costs and seconds per solved trial count all trials, also the failed ones.
    """

    id: str
    label: str
    suite: str
    agent: str
    model: str
    version: str
    trials: int
    wanted: int
    judged: int
    solved: int
    false_green: int
    not_promoted: int
    passed_unpromoted: int
    unvalidated: int
    errors: int
    cheating: int
    invalid: int
    rate: float | None
    interval: Interval
    pass_at: dict[str, float]
    cost_usd: float | None
    cost_per_solved: float | None
    seconds: float
    seconds_per_solved: float | None
    overhead: float


class RunComparison(Struct, frozen=True, kw_only=True):
    """Two runs on the problems that both judged, each problem counted once.

    `difference` is the second rate minus the first, `interval` its 95 % interval by paired bootstrap of problems.
    `p` is that of the sign-flip test, which is McNemar's if every problem has one sample; it is `exact`, or
    estimated from random flips if their number is too large. `adjusted` is corrected for all comparisons made at
    once (Holm). `mcnemar` is null with more samples. `power` is that to
    see a difference of 5 points with these problems, `needed` the problems for a power of 80 %, both at the
    observed discordance. `gained` and `lost` name problems.
    """

    first: str
    second: str
    metric: Metric
    problems: int
    rates: tuple[float, float]
    difference: float
    interval: Interval
    p: float
    exact: bool
    adjusted: float
    mcnemar: float | None
    differs: bool
    discordance: float
    power: float | None
    needed: int | None
    gained: tuple[str, ...]
    lost: tuple[str, ...]


class RunDocument(Struct, frozen=True, kw_only=True):
    """`bench run`, `resume` and `show`: a run, its summary and its results so far."""

    run: RunHeader
    summary: RunSummary
    results: tuple[BenchResult, ...]


class RunListDocument(Struct, frozen=True, kw_only=True):
    """`bench list`: all runs, oldest first, and why others cannot be read."""

    runs: tuple[RunSummary, ...]
    problems: tuple[str, ...] = ()


class ComparisonDocument(Struct, frozen=True, kw_only=True):
    """`bench compare`: runs, each pair of them, and the ids on the Pareto front of cost and rate."""

    runs: tuple[RunSummary, ...]
    comparisons: tuple[RunComparison, ...]
    front: tuple[str, ...]


def summarize(header: RunHeader, results: Sequence[BenchResult]) -> RunSummary:
    """Return a run in numbers."""
    outcomes = [each.outcome for each in results]
    judged = [each for each in results if _is_judged(each)]
    solved = outcomes.count("solved")
    per_problem = _by_problem(judged, "solved")
    costs = [each.cost_usd for each in results]
    cost = None if None in costs else math.fsum(each or 0.0 for each in costs)
    seconds = math.fsum(each.seconds for each in results)
    rate = solved / len(judged) if judged else None
    count = len(per_problem)
    return RunSummary(
        id=header.id,
        label=header.label or header.id,
        suite=header.name,
        agent=header.arm.agent or next((each.agent for each in results), ""),
        model=header.arm.model or next((each.model for each in results if each.model), ""),
        version=header.version,
        trials=len(results),
        wanted=len(header.problems) * header.samples,
        judged=len(judged),
        solved=solved,
        false_green=outcomes.count("false_green"),
        not_promoted=outcomes.count("not_promoted"),
        passed_unpromoted=sum(each.outcome == "not_promoted" and each.passed for each in results),
        unvalidated=outcomes.count("unvalidated"),
        errors=outcomes.count("error"),
        cheating=sum(bool(each.cheating) for each in results),
        invalid=len(header.invalid),
        rate=rate,
        interval=wilson(round(rate * count), count) if rate is not None else Interval(low=0.0, high=1.0),
        pass_at=_pass_at(per_problem),
        cost_usd=cost,
        cost_per_solved=cost / solved if cost is not None and solved else None,
        seconds=round(seconds, 3),
        seconds_per_solved=round(seconds / solved, 3) if solved else None,
        overhead=round(math.fsum(each.overhead for each in results) / len(results), 3) if results else 0.0,
    )


def compare_runs(
    runs: Sequence[tuple[RunHeader, Sequence[BenchResult]]],
    *,
    metric: Metric = "solved",
    alpha: float = 0.05,
    seed: int = 0,
    resamples: int = 2_000,
) -> tuple[RunComparison, ...]:
    """Compare each pair of runs.

    Raises `UsageError` if their suites differ, or if two of them share no judged problem.
    """
    if len({header.digest for header, _ in runs}) > 1:
        raise UsageError(
            "the runs are of different suites, or of different versions of one",
            hint="compare runs of the same suite; chargehand bench list names the suite of each",
        )
    made = [_compare(first, second, metric, alpha, seed, resamples) for first, second in combinations(runs, 2)]
    adjusted = holm([each.p for each in made])
    return tuple(replace(each, adjusted=p, differs=p <= alpha) for each, p in zip(made, adjusted, strict=True))


def find_front(summaries: Sequence[RunSummary]) -> frozenset[str]:
    """Return the ids of runs on the Pareto front of cost per trial and rate; runs of unknown cost are left out."""
    known = [each for each in summaries if each.cost_usd is not None and each.rate is not None and each.trials]
    points = [((each.cost_usd or 0.0) / each.trials, each.rate or 0.0) for each in known]
    return frozenset(known[index].id for index in pareto_front(points))


def _compare(
    first: tuple[RunHeader, Sequence[BenchResult]],
    second: tuple[RunHeader, Sequence[BenchResult]],
    metric: Metric,
    alpha: float,
    seed: int,
    resamples: int,
) -> RunComparison:
    one, two = (_by_problem([each for each in run[1] if _is_judged(each)], metric) for run in (first, second))
    shared = sorted(one.keys() & two.keys())
    if not shared:
        raise UsageError(
            f"the runs {first[0].id!r} and {second[0].id!r} share no judged problem",
            hint=f"chargehand bench show {first[0].id} names the trials without a judgement",
        )
    # Integers, for an exact test: each mean times a common multiple of all numbers of samples.
    scale = math.lcm(*(len(found[name]) for found in (one, two) for name in shared))
    sums = [
        sum(two[name]) * (scale // len(two[name])) - sum(one[name]) * (scale // len(one[name])) for name in shared
    ]
    differences = [each / scale for each in sums]
    gained = tuple(name for name, each in zip(shared, sums, strict=True) if each > 0)
    lost = tuple(name for name, each in zip(shared, sums, strict=True) if each < 0)
    discordance = math.fsum(map(abs, differences)) / len(shared)
    can_tell = discordance >= _POINTS
    shared_factor = math.gcd(*sums) or 1
    sums = [each // shared_factor for each in sums]
    exact = flips_can_be_counted(sums)
    p = sign_flip_exact(sums) if exact else sign_flip_sampled(sums, seed=seed)
    return RunComparison(
        first=first[0].id,
        second=second[0].id,
        metric=metric,
        problems=len(shared),
        rates=(_mean(one, shared), _mean(two, shared)),
        difference=math.fsum(differences) / len(shared),
        interval=paired_bootstrap(differences, seed=seed, resamples=resamples),
        p=p,
        exact=exact,
        adjusted=p,
        mcnemar=mcnemar_exact(len(lost), len(gained)) if scale == 1 else None,
        differs=p <= alpha,
        discordance=discordance,
        power=comparison_power(len(shared), _POINTS, discordance, alpha=alpha) if can_tell else None,
        needed=needed_problems(_POINTS, discordance, alpha=alpha) if can_tell else None,
        gained=gained[:_SHOWN_PROBLEMS],
        lost=lost[:_SHOWN_PROBLEMS],
    )


def _is_judged(result: BenchResult) -> bool:
    return result.outcome not in ("error", "unvalidated")


def _by_problem(results: Sequence[BenchResult], metric: Metric) -> dict[str, list[bool]]:
    found: dict[str, list[bool]] = defaultdict(list)
    for each in results:
        found[each.problem].append(each.outcome == "solved" if metric == "solved" else each.passed)
    return dict(found)


def _mean(found: dict[str, list[bool]], names: Sequence[str]) -> float:
    return math.fsum(sum(found[name]) / len(found[name]) for name in names) / len(names)


def _pass_at(found: dict[str, list[bool]]) -> dict[str, float]:
    if not found:
        return {}
    fewest = min(map(len, found.values()))
    ks = sorted({1, fewest} | {k for k in (2, 3, 5, 10, 100) if k <= fewest})
    return {
        str(k): math.fsum(pass_at_k(len(each), sum(each), k) for each in found.values()) / len(found) for k in ks
    }
