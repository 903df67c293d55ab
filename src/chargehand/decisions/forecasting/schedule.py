"""The times at which free places take the tasks of a plan, for many samples at once.

All arrays have a row per task or step and a column per sample. A step starts one task in each sample: of the tasks
whose predecessors have started, the one that can begin first, of equal ones the first in the plan's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.float32]
Whole = NDArray[np.int32]
# A time that no sample reaches. Times are whole units, so that sums are exact. Their lowest bits hold the number
# of a task, so that one minimum finds both the first time and its task.
_NEVER = 1 << 30


class StartOrder(NamedTuple):
    """The predecessors of each task, a possible order of work, and per step the tasks that it may start.

    A task starts after all that it depends on, and before all that depend on it.
    """

    after: Sequence[Sequence[int]]
    order: Sequence[int]
    windows: Sequence[Sequence[int]]


class Schedule(NamedTuple):
    """Per step and sample the started task (one column if it is the same in all), its begin and its end.

    `length` is the end of the last task in seconds.
    """

    tasks: NDArray[np.intp]
    begun: NDArray[np.number]
    ended: NDArray[np.number]
    length: Real


def read_order(after: Sequence[Sequence[int]], order: Sequence[int]) -> StartOrder:
    """Return the start order of tasks with their predecessors; `order` is a possible order of work."""
    count = len(after)
    above = [0] * count
    for task in order:
        for before in after[task]:
            above[task] |= above[before] | 1 << before
    below = [sum(above[other] >> task & 1 for other in range(count)) for task in range(count)]
    windows = [
        [task for task in range(count) if above[task].bit_count() <= step < count - below[task]]
        for step in range(count)
    ]
    return StartOrder(after, order, windows)


def schedule_tasks(plan: StartOrder, seconds: Real, places: int) -> Schedule:
    """Return the schedule of tasks that take so many seconds, with at most `places` of them at the same time."""
    if places >= len(plan.order):
        return _start_all(plan, seconds)
    return _fill_places(plan, seconds, places)


def count_critical(schedule: Schedule) -> NDArray[np.float64]:
    """Return per task in how many samples it is on the path that ends last, followed back through its waits.

    A task begins exactly when a predecessor, or the task in its place, ends; that one began in an earlier step.
    """
    count = len(schedule.ended)
    counts = np.zeros(count)
    target = schedule.ended.max(axis=0)
    for step in reversed(range(count)):
        begun, ended, tasks = schedule.begun[step], schedule.ended[step], schedule.tasks[step]
        found = ended == target
        found &= ended > begun
        if len(tasks) == 1:
            counts[tasks[0]] += np.count_nonzero(found)
        else:
            counts += np.bincount(tasks[found], minlength=count)
        np.copyto(target, begun, where=found)
    return counts


def _start_all(plan: StartOrder, seconds: Real) -> Schedule:
    """Return the schedule without a wait for a place."""
    order = np.array(plan.order)
    begun, ended = np.zeros_like(seconds), np.empty_like(seconds)
    step_of = np.argsort(order)
    for step, task in enumerate(plan.order):
        for before in plan.after[task]:
            np.maximum(begun[step], ended[step_of[before]], out=begun[step])
        np.add(begun[step], seconds[task], out=ended[step])
    return Schedule(order[:, None], begun, ended, ended.max(axis=0))


def _fill_places(plan: StartOrder, seconds: Real, places: int) -> Schedule:
    count, size = seconds.shape
    bits = (count - 1).bit_length()
    most = max(float(seconds.sum(axis=0, dtype=np.float64).max()), np.finfo(np.float32).tiny)
    scale = ((_NEVER >> bits) - count) / most
    lengths = np.rint(seconds * np.float64(scale)).astype(np.int32) << bits
    finish = np.full_like(lengths, _NEVER)
    marks = np.repeat(np.arange(count, dtype=np.int32)[:, None], size, axis=1)  # and `_NEVER` once it has started
    free = np.zeros((places, size), dtype=np.int32)  # the times at which places get free, sorted
    tasks = np.empty((count, size), dtype=np.intp)
    begun, ended, keys = np.empty_like(lengths), np.empty_like(lengths), np.empty_like(lengths)
    columns = np.arange(size)
    for step, window in enumerate(plan.windows):
        for key, task in zip(keys, window, strict=False):
            first = free[0]
            for before in plan.after[task]:
                first = np.maximum(first, finish[before], out=key)
            np.bitwise_or(first, marks[task], out=key)
        best = keys[: len(window)].min(axis=0)
        np.bitwise_and(best, (1 << bits) - 1, out=tasks[step], casting="unsafe")
        np.bitwise_and(best, -1 << bits, out=begun[step])
        cells = tasks[step] * size
        cells += columns
        np.add(begun[step], lengths.ravel().take(cells), out=ended[step])
        finish.ravel()[cells] = ended[step]
        marks.ravel()[cells] = _NEVER
        _take_place(free, ended[step])
    return Schedule(tasks, begun, ended, ((free[-1] >> bits) / scale).astype(np.float32))


def _take_place(free: Whole, until: Whole) -> None:
    """Replace the first time at which a place gets free, and keep the times of each sample sorted."""
    for place in range(len(free) - 1):
        np.minimum(free[place + 1], until, out=free[place])
        until = np.maximum(free[place + 1], until)
    free[-1] = until
