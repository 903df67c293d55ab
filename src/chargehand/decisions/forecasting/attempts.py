"""Samples of the attempts on one task, and of how they end within limits of money and time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chargehand.decisions.forecasting.durations import DurationBelief
from chargehand.decisions.routing.records import RouterCandidate
from chargehand.decisions.routing.state import RHOS, TASK_SHARE, Array, KindBelief, TaskBelief
from chargehand.decisions.routing.value import DIFFICULTY, FAMILY, FAMILY_SHARE

POINTS = np.array([point for point, _ in DIFFICULTY])
_PARTS = np.array([point for point, _ in FAMILY])
Flags = NDArray[np.bool_]


class SampledAttempts(NamedTuple):
    """One row per sample, one column per attempt: whether it is green, its cost in USD, its time in seconds."""

    green: Flags
    costs: Array | None
    seconds: Array | None


class SampledEnds(NamedTuple):
    """Per sample whether an attempt was green within the limits, and cost and time until the end."""

    green: Flags
    costs: Array
    seconds: Array


def sample_attempts(
    kind: KindBelief,
    task: TaskBelief,
    arms: Sequence[RouterCandidate],
    samples: int,
    generator: np.random.Generator,
) -> SampledAttempts:
    """Return samples of trying these arms in order; costs are `None` if one of them has no known cost.

    All attempts of a sample share the difficulty of the task, the parts of their families and the skill of their
    arm, and of the cost the part that belongs to the task.
    """
    rows = np.array([kind.index[each.id] for each in arms], dtype=int)
    families = [each.family for each in arms]
    noise = generator.standard_normal((samples, len(arms)))
    latent = np.empty((samples, len(arms)))
    begin = 0
    for number, size in enumerate(generator.multinomial(samples, kind.weights).tolist()):
        part, rho = slice(begin, begin + size), RHOS[number]
        begin += size
        points = _pick(np.broadcast_to(task.difficulty[number], (size, len(POINTS))), generator)
        own = {name: _PARTS[_pick(task.part(number, name)[points], generator)] for name in dict.fromkeys(families)}
        skills = _draw_arms(kind.skills[number], kind.skill_covariances[number], rows, size, generator)
        shared = math.sqrt(rho) * POINTS[points][:, None]
        of_family = math.sqrt(FAMILY_SHARE) * np.stack([own[name] for name in families], axis=1)
        latent[part] = skills + shared + of_family + math.sqrt(1 - rho - FAMILY_SHARE) * noise[part]
    costs = None
    if all(each.id in kind.costs for each in arms):
        usual = kind.task_variance if task.price_variance is None else task.price_variance
        of_task = task.price + math.sqrt(usual) * generator.standard_normal((samples, 1))
        rest = np.sqrt([(1 - TASK_SHARE) * kind.spread(each.id) for each in arms])
        logs = _draw_arms(kind.prices, kind.price_covariance, rows, samples, generator)
        costs = np.exp(logs + of_task + rest * generator.standard_normal((samples, len(arms))))
    return SampledAttempts(latent > 0, costs, None)


def sample_seconds(belief: DurationBelief, samples: int, attempts: int, generator: np.random.Generator) -> Array:
    """Return samples of the seconds of each attempt; the task has the same share of the variance as of costs."""
    shared = math.sqrt(belief.variance + TASK_SHARE * belief.spread) * generator.standard_normal((samples, 1))
    own = math.sqrt((1 - TASK_SHARE) * belief.spread) * generator.standard_normal((samples, attempts))
    found: Array = np.exp(belief.mean + shared + own)
    return found


def end_attempts(
    sampled: SampledAttempts, *, money: float = math.inf, attempt_usd: float = math.inf, time: float = math.inf
) -> SampledEnds:
    """Return how the attempts end: at the first green one, at a limit, or after the last one.

    An attempt that reaches `attempt_usd` is red. An unknown cost or time is 0.
    """
    shape = sampled.green.shape
    costs = np.zeros(shape) if sampled.costs is None else sampled.costs
    seconds = np.zeros(shape) if sampled.seconds is None else sampled.seconds
    spent, used = np.zeros(shape[0]), np.zeros(shape[0])
    green, is_open = np.zeros(shape[0], dtype=bool), np.ones(shape[0], dtype=bool)
    for number in range(shape[1]):
        cost = np.minimum(costs[:, number], attempt_usd)
        fits = (spent + cost <= money) & (used + seconds[:, number] <= time)
        spent = np.where(is_open, np.minimum(spent + cost, money), spent)
        used = np.where(is_open, np.minimum(used + seconds[:, number], time), used)
        solved = is_open & fits & sampled.green[:, number] & (costs[:, number] <= attempt_usd)
        green |= solved
        is_open &= fits & ~solved
    return SampledEnds(green, spent, used)


def _draw_arms(
    mean: Array, covariance: Array, rows: NDArray[np.int_], samples: int, generator: np.random.Generator
) -> Array:
    """Return joint draws of the arms in `rows`; an arm that occurs twice has one draw per sample."""
    distinct, places = np.unique(rows, return_inverse=True)
    root = np.linalg.cholesky(covariance[np.ix_(distinct, distinct)] + 1e-9 * np.eye(len(distinct)))
    drawn: Array = mean[distinct] + generator.standard_normal((samples, len(distinct))) @ root.T
    return drawn[:, places]


def _pick(weights: Array, generator: np.random.Generator) -> NDArray[np.int_]:
    """Return per row a column, drawn by the row's weights."""
    sums = np.cumsum(weights, axis=1)
    drawn = generator.random((len(weights), 1)) * sums[:, -1:]
    found: NDArray[np.int_] = (sums <= drawn).sum(axis=1)
    return found
