"""The forecast of a mission: its chance, cost and time from the outcomes of earlier attempts."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec import Struct

from chargehand.core.choices import Candidate, ChoiceHistory
from chargehand.core.records import Band, MissionForecast
from chargehand.decisions.arms import name_arm
from chargehand.decisions.folds import fold_outcomes
from chargehand.decisions.forecast_records import ForecastFacts, LogNormal, TaskProspect
from chargehand.decisions.forecasting.attempts import (
    POINTS,
    SampledAttempts,
    SampledEnds,
    end_attempts,
    sample_attempts,
    sample_seconds,
)
from chargehand.decisions.forecasting.durations import DurationBelief, learn_duration
from chargehand.decisions.routing.published import add_published_prior
from chargehand.decisions.routing.records import RouterCandidate
from chargehand.decisions.routing.state import RHOS, Array, KindBelief, TaskBelief

_SAMPLES = 8000
# The bounds of the 80 % band, and the part of the successes that the named budget has to cover.
_LOW, _HIGH, _COVERED = 0.1, 0.9, 0.8


class ArmBeliefs(Struct, frozen=True, eq=False, kw_only=True):
    """Beliefs about one agent with its model, and about one mission."""

    arm: RouterCandidate
    kind: KindBelief
    task: TaskBelief
    duration: DurationBelief | None


def learn_arm(facts: ForecastFacts, history: ChoiceHistory) -> ArmBeliefs:
    """Return the beliefs for a mission; its own ended attempts tell how difficult it is.

    Raises `ValueError` if a number of the facts is not finite or is negative.
    """
    _check_facts(facts)
    name = name_arm(Candidate(agent=facts.agent, model=facts.model))
    model = facts.served or facts.model or ""
    (arm,) = add_published_prior([RouterCandidate(id=name, agent=facts.agent, model=model)])
    state = fold_outcomes(history, [arm])
    return ArmBeliefs(
        arm=arm,
        kind=state.belief(facts.kind, [arm]),
        task=state.tasks.get(facts.mission, TaskBelief(kind=facts.kind)),
        duration=learn_duration(history.outcomes, facts.kind, name),
    )


def forecast_mission(facts: ForecastFacts, history: ChoiceHistory) -> MissionForecast:
    """Return the forecast, the same for equal arguments; raises as `learn_arm`."""
    beliefs = learn_arm(facts, history)
    generator = np.random.default_rng(zlib.crc32(msgspec.json.encode(facts)))
    count = max(1, facts.attempts)
    sampled = sample_attempts(beliefs.kind, beliefs.task, [beliefs.arm] * count, _SAMPLES, generator)
    if sampled.costs is not None:
        np.maximum(sampled.costs[:, 0], facts.running_usd, out=sampled.costs[:, 0])
    seconds = None
    if beliefs.duration is not None:
        seconds = sample_seconds(beliefs.duration, _SAMPLES, count, generator)
        np.maximum(seconds[:, 0], facts.running_seconds, out=seconds[:, 0])
    sampled = sampled._replace(seconds=seconds)
    if facts.attempts < 1:  # the last attempt is over: nothing more is tried
        sampled = SampledAttempts(sampled.green & False, _none(sampled.costs), _none(seconds))
    attempt_usd = math.inf if facts.attempt_usd is None else facts.attempt_usd
    time = math.inf if facts.seconds_left is None else facts.seconds_left
    money = math.inf if facts.money_left is None else facts.money_left
    ends = end_attempts(sampled, money=money, attempt_usd=attempt_usd, time=time)
    free = end_attempts(sampled, attempt_usd=attempt_usd, time=time)
    return _summarise(facts, beliefs, sampled, ends, free)


def foresee_task(task: str, after: tuple[str, ...], facts: ForecastFacts, history: ChoiceHistory) -> TaskProspect:
    """Return the prospects of a task of a plan, for a simulation; raises as `learn_arm`.

    The likeliest weight of the shared difficulty is used for all.
    """
    beliefs = learn_arm(facts, history)
    kind, known, arm = beliefs.kind, beliefs.task, beliefs.arm.id
    number, row = int(kind.weights.argmax()), kind.index[arm]
    weights = known.difficulty[number]
    mean = float(weights @ POINTS)
    cost, time = None, beliefs.duration
    if arm in kind.costs:
        cost = LogNormal(
            mean=float(kind.prices[row]) + known.price,
            variance=float(kind.price_covariance[row, row]),
            spread=kind.spread(arm),
        )
    return TaskProspect(
        id=task,
        arm=arm,
        after=after,
        skill=float(kind.skills[number][row]),
        skill_variance=float(kind.skill_covariances[number][row, row]),
        weight=RHOS[number],
        difficulty=mean,
        difficulty_variance=max(0.0, float(weights @ POINTS**2) - mean * mean),
        cost=cost,
        time=None if time is None else LogNormal(mean=time.mean, variance=time.variance, spread=time.spread),
        attempts=max(1, facts.attempts),
        elapsed=facts.running_seconds,
        spent=facts.running_usd,
    )


def _summarise(
    facts: ForecastFacts, beliefs: ArmBeliefs, sampled: SampledAttempts, ends: SampledEnds, free: SampledEnds
) -> MissionForecast:
    has_costs = sampled.costs is not None and facts.spent_usd is not None
    has_times = sampled.seconds is not None
    stopped = ~ends.green
    enough = None
    if has_costs and free.green.any():
        enough = (facts.spent_usd or 0.0) + float(np.quantile(free.costs[free.green], _COVERED))
    return MissionForecast(
        chance=float(ends.green.mean()),
        cost_usd=_band(ends.costs + (facts.spent_usd or 0.0)) if has_costs else None,
        seconds=_band(ends.seconds + facts.seconds) if has_times else None,
        person_seconds=float(np.median(ends.seconds[stopped])) + facts.seconds
        if has_times and stopped.any()
        else None,
        unlimited=float(free.green.mean()),
        enough_usd=enough,
        outcomes=beliefs.kind.outcomes,
    )


def _none(values: Array | None) -> Array | None:
    return None if values is None else values * 0


def _band(values: Array) -> Band:
    low, middle, high = np.quantile(values, (_LOW, 0.5, _HIGH)).tolist()
    return Band(middle=middle, low=low, high=high)


def _check_facts(facts: ForecastFacts) -> None:
    numbers: Sequence[float | None] = (
        *(facts.money_left, facts.attempt_usd, facts.seconds_left, facts.spent_usd),
        *(facts.seconds, facts.running_usd, facts.running_seconds),
    )
    for value in numbers:
        if value is not None and not 0 <= value < math.inf:
            raise ValueError(f"money and time of a mission are numbers from 0, got {value}")
