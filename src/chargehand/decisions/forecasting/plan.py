"""Samples of a whole plan: outcomes of its tasks, their cost, and the times at which free places take them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chargehand.core.records import Band
from chargehand.decisions.forecast_records import CriticalTask, LogNormal, PlanForecast, PlanProspect, TaskProspect
from chargehand.decisions.forecasting.schedule import (
    Real,
    StartOrder,
    count_critical,
    read_order,
    schedule_tasks,
)
from chargehand.decisions.routing.state import TASK_SHARE

# The share of the variance of difficulty that all tasks of a plan have in common.
SHARED_DIFFICULTY = 0.3
SAMPLES = 100_000
# A part of the samples whose arrays fit into a processor's cache.
_CHUNK = 4096
# A plan of hundreds of tasks gets fewer samples: the work grows with the square of their number.
_MOST_CELLS, _FEWEST = 100_000_000, 4096
_LARGEST = 1e12
Flags = NDArray[np.bool_]


class _Plan(NamedTuple):
    """The tasks in the plan's order, with the numbers of their arms; arrays have a row per task."""

    tasks: tuple[TaskProspect, ...]
    starts: StartOrder
    arms: NDArray[np.int_]


def simulate_plan(prospect: PlanProspect, seed: int, samples: int | None = None) -> PlanForecast:
    """Return the forecast of a plan, the same for equal arguments, by default from 100,000 samples.

    A plan of more than 30 tasks has fewer by default. Ten million samples of 30 tasks take about half a minute.
    Raises `ValueError` without tasks or places, for a cycle or an unknown task, and for numbers that are not
    finite or too large.
    """
    plan = _read_plan(prospect)
    count = len(plan.tasks)
    if samples is None:
        samples = max(min(SAMPLES, _MOST_CELLS // (count * count)), _FEWEST)
    generator = np.random.default_rng(seed)
    money = math.inf if prospect.money_left is None else prospect.money_left
    time = math.inf if prospect.seconds_left is None else prospect.seconds_left
    has_costs = all(each.cost for each in plan.tasks)
    has_times = all(each.time for each in plan.tasks)
    good, costs, ends, critical = 0, [], [], np.zeros(count)
    for begin in range(0, samples, _CHUNK):
        size = min(_CHUNK, samples - begin)
        with np.errstate(over="ignore"):  # it is bounded
            done, cost, seconds = _sample_tasks(plan, size, generator)
        runs = _find_started(plan, done)
        cost *= runs
        seconds *= runs
        schedule = schedule_tasks(plan.starts, seconds, prospect.places)
        end, total = schedule.length, cost.sum(axis=0)
        good += int(np.count_nonzero(done.all(axis=0) & (total <= money) & (end <= time)))
        costs.append(np.minimum(total, money))
        ends.append(np.minimum(end, time))
        if has_times:
            critical += count_critical(schedule)
    shares = [
        CriticalTask(task=each.id, share=float(n) / samples) for each, n in zip(plan.tasks, critical, strict=True)
    ]
    return PlanForecast(
        chance=good / samples,
        cost_usd=_band(np.concatenate(costs)) if has_costs else None,
        seconds=_band(np.concatenate(ends)) if has_times else None,
        critical=tuple(sorted((e for e in shares if e.share), key=lambda e: -e.share)),
        samples=samples,
    )


def _read_plan(prospect: PlanProspect) -> _Plan:
    tasks = prospect.tasks
    place = {each.id: number for number, each in enumerate(tasks)}
    unknown = sorted({name for each in tasks for name in each.after} - place.keys())
    if not tasks or len(place) < len(tasks) or unknown or prospect.places < 1:
        raise ValueError(f"a plan has tasks of different names, places and known tasks; unknown: {unknown}")
    for each in tasks:
        logs = [x for part in (each.cost, each.time) if part for x in (part.mean, part.variance, part.spread)]
        amounts = (each.skill_variance, each.difficulty_variance, each.elapsed, each.spent)
        numbers = (each.skill, each.difficulty, *amounts, *logs)
        if not all(abs(x) < _LARGEST for x in numbers) or min(amounts) < 0 or not 0 <= each.weight < 1:
            raise ValueError(f"the numbers of task {each.id!r} are not finite, too large or negative: {numbers}")
    for limit in (prospect.money_left, prospect.seconds_left):
        if limit is not None and not 0 <= limit < math.inf:
            raise ValueError(f"a limit is a number from 0, got {limit}")
    after = [[place[name] for name in each.after] for each in tasks]
    try:
        order = list(TopologicalSorter(dict(enumerate(after))).static_order())
    except CycleError as error:
        raise ValueError(f"the plan has a cycle: {error.args[1]}") from error
    arms = np.unique([each.arm for each in tasks], return_inverse=True)[1]
    return _Plan(tasks, read_order(after, order), arms)


def _sample_tasks(plan: _Plan, size: int, generator: np.random.Generator) -> tuple[Flags, Real, Real]:
    """Return per task and sample whether it gets done, its further cost and its further time."""
    tasks, shape = plan.tasks, (len(plan.tasks), size)
    base = _draw_latent(plan, size, generator)
    own = _draw(shape, generator)
    unknown = LogNormal(mean=-math.inf)
    levels, spreads = [], []
    for parts in ([each.cost or unknown for each in tasks], [each.time or unknown for each in tasks]):
        spread = _column(math.sqrt(part.spread) for part in parts)
        level = own * (math.sqrt(TASK_SHARE) * spread)
        level += _draw_arms(plan, size, [part.variance for part in parts], generator)
        level += _column(part.mean for part in parts)
        levels.append(level)
        spreads.append(math.sqrt(1 - TASK_SHARE) * spread)
    noise = _draw(shape, generator)  # a long attempt costs more: both share their noise
    sums = [np.exp(spread * noise + level) for level, spread in zip(levels, spreads, strict=True)]
    done = base + _draw(shape, generator) > 0
    tries = np.array([[each.attempts] for each in tasks])
    for number in range(1, int(tries.max())):
        rows, columns = np.nonzero(~done & (tries > number))
        cells = rows * size + columns
        noise = generator.standard_normal(len(cells), dtype=np.float32)
        for total, level, spread in zip(sums, levels, spreads, strict=True):
            total.ravel()[cells] += np.exp(spread[rows, 0] * noise + level.ravel()[cells])
        noise = generator.standard_normal(len(cells), dtype=np.float32)
        done.ravel()[cells] = base.ravel()[cells] + noise > 0
    for total, known in zip(sums, ("spent", "elapsed"), strict=True):
        total -= _column(getattr(each, known) for each in tasks)
        np.clip(total, 0, _LARGEST, out=total)
    return done, sums[0], sums[1]


def _draw_latent(plan: _Plan, size: int, generator: np.random.Generator) -> Real:
    """Return per task and sample the mean latent quantity of an attempt, which is positive if it is good."""
    tasks = plan.tasks
    found = math.sqrt(1 - SHARED_DIFFICULTY) * _draw((len(tasks), size), generator)
    found += math.sqrt(SHARED_DIFFICULTY) * _draw((1, size), generator)
    found *= _column(math.sqrt(each.difficulty_variance) for each in tasks)
    weight = _column(each.weight for each in tasks)
    found += _column(each.difficulty for each in tasks)
    found *= np.sqrt(weight)
    found += _draw_arms(plan, size, [each.skill_variance for each in tasks], generator)
    found += _column(each.skill for each in tasks)
    found /= np.sqrt(1 - weight)
    return found


def _draw(shape: tuple[int, int], generator: np.random.Generator) -> Real:
    """Return normal draws; each is used with both signs: half the work, and means with less noise."""
    rows, size = shape
    half = (size + 1) // 2
    found = np.empty((rows, 2 * half), dtype=np.float32)
    found[:, :half] = generator.standard_normal((rows, half), dtype=np.float32)
    np.negative(found[:, :half], out=found[:, half:])
    return found[:, :size]


def _draw_arms(plan: _Plan, size: int, variances: Sequence[float], generator: np.random.Generator) -> Real:
    """Return normal draws with these variances; tasks of one arm share their draw."""
    drawn = _draw((int(plan.arms.max()) + 1, size), generator)
    found: Real = drawn[plan.arms] * _column(math.sqrt(each) for each in variances)
    return found


def _column(values: Iterable[float]) -> Real:
    return np.array([[each] for each in values], dtype=np.float32)


def _find_started(plan: _Plan, done: Flags) -> Flags:
    """Return which tasks start at all: those whose predecessors get done."""
    runs = np.ones_like(done)
    for task in plan.starts.order:
        for before in plan.starts.after[task]:
            runs[task] &= runs[before] & done[before]
    return runs


def _band(values: Real) -> Band:
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9)).tolist()
    return Band(middle=middle, low=low, high=high)
