"""Forecasts of the cost and success of the next tasks from the tasks of a history."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, pvariance

from msgspec import Struct

from chargehand.decisions.routing.records import AttemptEnds, HistoryRecord, RouterForecast, TaskBegins

_FEW_TASKS = 20
# Choices change while they learn, so the next tasks differ from those seen by more than chance. On recorded
# outcomes the band of 20 tasks would cover 73 and 77 % instead of 80.
_UNSTEADY = 1.3
# Without any task: one success of two, and a price between cents and tens of USD.
_EMPTY = ([0.5], [0.0, 1.0])


class _Task(Struct):
    kind: str
    cost: float = 0.0
    is_known: bool = True
    attempts: int = 0
    is_solved: bool = False


def forecast(history: Sequence[HistoryRecord], n: int, level: float = 0.8) -> RouterForecast:
    """Return the forecast of the next `n` tasks of the kind that began last, with bands of probability `level`.

    Tasks with an unknown cost count for success only. The sum of costs is taken as lognormal with the mean
    and variance of n tasks, where the variance is 1.3 n (1 + n / N) times that of the N tasks seen: a mean of
    N tasks is itself uncertain, and choices change while they learn. One task's band is split conformal:
    quantiles of the costs seen.
    Raises `ValueError` unless n is at least 1 and the level between 0 and 1.
    """
    if n < 1 or not 0 < level < 1:
        raise ValueError(f"n is at least 1 and the level between 0 and 1, got {n} and {level}")
    tasks = _read_tasks(history)
    same = [each for each in tasks if each.kind == tasks[-1].kind] if tasks else []
    done = [each for each in same if each.attempts]
    costs = sorted(each.cost for each in done if each.is_known) or _EMPTY[0]
    solved = [float(each.is_solved) for each in done] or _EMPTY[1]
    seen = len(costs)
    mean = fmean(costs)
    variance = pvariance(costs) * seen / (seen - 1) if seen > 1 else mean * mean
    low, high = _sum_band(n * mean, _UNSTEADY * n * (1 + n / seen) * variance, level)
    chance = (sum(solved) + 1) / (len(solved) + 2)
    solved_sd = math.sqrt(n * (1 + n / (len(solved) + 2)) * chance * (1 - chance))
    z = NormalDist().inv_cdf((1 + level) / 2)
    return RouterForecast(
        tasks=n,
        level=level,
        cost=n * mean,
        low=low,
        high=high,
        solved=n * chance,
        solved_low=max(0.0, n * chance - z * solved_sd),
        solved_high=min(float(n), n * chance + z * solved_sd),
        chance=chance,
        single_low=_quantile(costs, (1 - level) / 2),
        single_high=_quantile(costs, (1 + level) / 2),
        guess=seen < _FEW_TASKS,
    )


def _read_tasks(history: Sequence[HistoryRecord]) -> list[_Task]:
    tasks: list[_Task] = []
    current: dict[str, _Task] = {}
    for record in history:
        if isinstance(record, TaskBegins):
            current[record.task] = _Task(record.features.get("kind", ""))
            tasks.append(current[record.task])
        elif isinstance(record, AttemptEnds) and record.task in current:
            task = current[record.task]
            task.attempts += 1
            task.is_solved = task.is_solved or record.verdict == "green"
            if record.cost is not None and 0 < record.cost < math.inf:
                task.cost += record.cost
            else:
                task.is_known = False
    return tasks


def _sum_band(mean: float, variance: float, level: float) -> tuple[float, float]:
    spread = math.log1p(variance / (mean * mean)) if mean > 0 else 0.0
    middle = math.log(mean) - spread / 2 if mean > 0 else -math.inf
    z = NormalDist().inv_cdf((1 + level) / 2) * math.sqrt(spread)
    return math.exp(middle - z), math.exp(middle + z)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile of split conformal prediction: the ceil((n + 1) share)-th smallest, or the extreme."""
    place = math.ceil((len(ordered) + 1) * share) if share > 0.5 else math.floor((len(ordered) + 1) * share)
    return ordered[min(max(place - 1, 0), len(ordered) - 1)]
