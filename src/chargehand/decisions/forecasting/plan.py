"""Samples of a whole plan: outcomes of its tasks, their cost, and the times at which free places take them."""

from __future__ import annotations

import math
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chargehand.core.records import Band
from chargehand.decisions.forecast_records import CriticalTask, LogNormal, PlanForecast, PlanProspect, TaskProspect
from chargehand.decisions.routing.state import TASK_SHARE

# The share of the variance of difficulty that all tasks of a plan have in common.
SHARED_DIFFICULTY = 0.3
SAMPLES = 100_000
# A part of the samples whose arrays fit into a processor's cache.
_CHUNK = 2048
# A plan of hundreds of tasks gets fewer samples: the work grows with the square of their number.
_MOST_CELLS, _FEWEST = 100_000_000, 4096
# A time that no plan reaches; a power of two, so that sums of it stay exact.
_NEVER = np.float32(2.0**96)
_LARGEST = 1e12
Real = NDArray[np.float32]
Flags = NDArray[np.bool_]


class _Plan(NamedTuple):
    """The tasks as arrays, in the plan's order; `order` is a possible order of work."""

    tasks: tuple[TaskProspect, ...]
    after: list[list[int]]
    order: list[int]
    arms: NDArray[np.int_]
    successors: Real


def simulate_plan(prospect: PlanProspect, seed: int, samples: int = SAMPLES) -> PlanForecast:
    """Return the forecast of a plan, the same for equal arguments.

    Raises `ValueError` without tasks or places, for a cycle or an unknown task, and for numbers that are not
    finite or too large.
    """
    plan = _read_plan(prospect)
    count = len(plan.tasks)
    samples = max(min(samples, _MOST_CELLS // (count * count)), min(samples, _FEWEST))
    generator = np.random.default_rng(seed)
    money = math.inf if prospect.money_left is None else prospect.money_left
    time = math.inf if prospect.seconds_left is None else prospect.seconds_left
    has_costs = all(each.cost for each in plan.tasks)
    has_times = all(each.time for each in plan.tasks)
    good, costs, ends, critical = 0, [], [], np.zeros(count)
    for begin in range(0, samples, _CHUNK):
        size = min(_CHUNK, samples - begin)
        done, cost, seconds = _sample_tasks(plan, size, generator)
        runs = _find_started(plan, done)
        cost *= runs
        seconds *= runs
        start, finish = _schedule(plan, seconds, prospect.places)
        end, total = finish.max(axis=1), cost.sum(axis=1)
        good += int((done.all(axis=1) & (total <= money) & (end <= time)).sum())
        costs.append(np.minimum(total, money))
        ends.append(np.minimum(end, time))
        if has_times:
            critical += _count_critical(start, finish, seconds)
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
    successors = np.zeros((len(tasks), len(tasks)), dtype=np.float32)
    for number, before in enumerate(after):
        successors[before, number] = 1
    return _Plan(tasks, after, order, arms, successors)


def _sample_tasks(plan: _Plan, size: int, generator: np.random.Generator) -> tuple[Flags, Real, Real]:
    """Return per sample and task whether it gets done, its further cost and its further time."""
    tasks, shape = plan.tasks, (size, len(plan.tasks))

    def draw(*shape: int) -> Real:
        # Each draw is used with both signs: half the work, and means with less noise.
        half = generator.standard_normal(((shape[0] + 1) // 2, *shape[1:]), dtype=np.float32)
        return np.concatenate((half, -half))[: shape[0]]

    def row(*values: float) -> Real:
        return np.array(values, dtype=np.float32)

    def of_arms(*deviations: float) -> Real:
        found: Real = draw(size, int(plan.arms.max()) + 1)[:, plan.arms] * row(*deviations)
        return found

    weight = row(*(each.weight for each in tasks))
    hard = math.sqrt(SHARED_DIFFICULTY) * draw(size, 1) + math.sqrt(1 - SHARED_DIFFICULTY) * draw(*shape)
    hard = hard * row(*(math.sqrt(each.difficulty_variance) for each in tasks))
    hard += row(*(each.difficulty for each in tasks))
    base = row(*(each.skill for each in tasks)) + np.sqrt(weight) * hard
    base += of_arms(*(math.sqrt(each.skill_variance) for each in tasks))
    base /= np.sqrt(1 - weight)
    own = draw(*shape)
    unknown = LogNormal(mean=-math.inf)
    levels, spreads = [], []
    for parts in ([each.cost or unknown for each in tasks], [each.time or unknown for each in tasks]):
        spread = row(*(math.sqrt(part.spread) for part in parts))
        level = row(*(part.mean for part in parts)) + of_arms(*(math.sqrt(part.variance) for part in parts))
        levels.append(level + math.sqrt(TASK_SHARE) * spread * own)
        spreads.append(math.sqrt(1 - TASK_SHARE) * spread)
    done, sums = np.zeros(shape, dtype=bool), [np.zeros(shape, dtype=np.float32) for _ in levels]
    tries = np.array([each.attempts for each in tasks])
    for number in range(int(tries.max())):
        is_tried = ~done & (tries > number)
        noise = draw(*shape)  # a long attempt costs more: both share their noise
        for total, level, spread in zip(sums, levels, spreads, strict=True):
            total += np.exp(level + spread * noise) * is_tried
        done |= is_tried & (base + draw(*shape) > 0)
    for total, known in zip(sums, ("spent", "elapsed"), strict=True):
        begun = row(*(getattr(each, known) for each in tasks))
        np.maximum(total - begun, 0, out=total)
    return done, sums[0], sums[1]


def _find_started(plan: _Plan, done: Flags) -> Flags:
    """Return which tasks start at all: those whose predecessors get done."""
    runs = np.ones_like(done)
    for task in plan.order:
        for before in plan.after[task]:
            runs[:, task] &= runs[:, before] & done[:, before]
    return runs


def _schedule(plan: _Plan, seconds: Real, places: int) -> tuple[Real, Real]:
    """Return start and finish of each task: a free place takes the first task that can start."""
    size, count = seconds.shape
    start, finish = np.zeros_like(seconds), np.empty_like(seconds)
    if places >= count:
        for task in plan.order:
            for before in plan.after[task]:
                np.maximum(start[:, task], finish[:, before], out=start[:, task])
            finish[:, task] = start[:, task] + seconds[:, task]
        return start, finish
    rows = np.arange(size)
    # `ready` is when all predecessors are finished, `barred` is large while one of them has not started.
    ready = np.zeros_like(seconds)
    barred = np.tile(plan.successors.sum(axis=0) * _NEVER, (size, 1))
    step = plan.successors * _NEVER
    gate = np.where(plan.successors > 0, 0, -_NEVER).astype(np.float32)
    slots = np.zeros((size, places), dtype=np.float32)
    key = np.empty_like(seconds)
    for _ in range(count):
        slot = slots.argmin(axis=1)
        free = slots[rows, slot]
        np.maximum(ready, free[:, None], out=key)
        np.maximum(key, barred, out=key)
        task = key.argmin(axis=1)
        begun = key[rows, task]
        ended = begun + seconds[rows, task]
        start[rows, task], finish[rows, task], slots[rows, slot] = begun, ended, ended
        # Into the same buffer, as new arrays cost more than the work on them.
        np.take(gate, task, axis=0, out=key, mode="clip")
        np.add(key, ended[:, None], out=key)
        np.maximum(ready, key, out=ready)
        np.take(step, task, axis=0, out=key, mode="clip")
        np.subtract(barred, key, out=barred)
        barred[rows, task] = _NEVER * np.float32(2.0**20)
    return start, finish


def _count_critical(start: Real, finish: Real, seconds: Real) -> NDArray[np.float64]:
    """Return per task in how many samples it is on the path that ends last, followed back through its waits."""
    counts = np.zeros(start.shape[1])
    ended = np.where(seconds > 0, finish, -1)
    rows = np.arange(len(start))
    task = ended.argmax(axis=1)
    for _ in range(start.shape[1]):
        rows, task = rows[seconds[rows, task] > 0], task[seconds[rows, task] > 0]
        counts += np.bincount(task, minlength=len(counts))
        begun = start[rows, task]
        rows, begun = rows[begun > 0], begun[begun > 0]
        # A task starts exactly when a predecessor, or the task in its place, finishes.
        task = (ended[rows] == begun[:, None]).argmax(axis=1)
    return counts


def _band(values: Real) -> Band:
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9)).tolist()
    return Band(middle=middle, low=low, high=high)
