"""The forecast of a mission: its chance, cost and time from the outcomes of earlier attempts."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.choices import Candidate, ChoiceHistory
from chargehand.core.records import Band, MissionForecast
from chargehand.decisions.arms import add_known_priors, name_arm
from chargehand.decisions.folds import fold_outcomes
from chargehand.decisions.forecast_records import ForecastDraw, ForecastFacts, LogNormal, TaskProspect
from chargehand.decisions.forecasting.attempts import (
    POINTS,
    SampledAttempts,
    SampledEnds,
    end_attempts,
    sample_attempts,
    sample_seconds,
)
from chargehand.decisions.forecasting.durations import DurationBelief, learn_duration
from chargehand.decisions.routing.records import RouterCandidate
from chargehand.decisions.routing.state import RHOS, Array, KindBelief, TaskBelief

FORECAST_POLICY = "forecast-1"
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
    arm = _read_arm(facts)
    (arm,) = add_known_priors([arm], history)
    state = fold_outcomes(history, [arm])
    return ArmBeliefs(
        arm=arm,
        kind=state.belief(facts.kind, [arm]),
        task=state.tasks.get(facts.mission, TaskBelief(kind=facts.kind)),
        duration=learn_duration(history.outcomes, facts.kind, arm.id),
    )


def forecast_mission(facts: ForecastFacts, history: ChoiceHistory) -> MissionForecast:
    """Return the forecast, the same for equal arguments; raises as `learn_arm`."""
    draw = record_draw(facts, learn_arm(facts, history))
    seed = zlib.crc32(msgspec.json.encode(facts))
    return sample_forecast(draw, seed, _SAMPLES)


def sample_forecast(draw: ForecastDraw, seed: int, samples: int) -> MissionForecast:
    """Return the forecast that beliefs give with a seed, and record these with it."""
    facts, beliefs = draw.facts, restore_beliefs(draw)
    generator = np.random.default_rng(seed)
    count = max(1, facts.attempts)
    sampled = sample_attempts(beliefs.kind, beliefs.task, [beliefs.arm] * count, samples, generator)
    if sampled.costs is not None:
        np.maximum(sampled.costs[:, 0], facts.running_usd, out=sampled.costs[:, 0])
    seconds = None
    if beliefs.duration is not None:
        seconds = sample_seconds(beliefs.duration, samples, count, generator)
        np.maximum(seconds[:, 0], facts.running_seconds, out=seconds[:, 0])
    sampled = sampled._replace(seconds=seconds)
    if facts.attempts < 1:  # the last attempt is over: nothing more is tried
        sampled = SampledAttempts(sampled.green & False, _none(sampled.costs), _none(seconds))
    attempt_usd = math.inf if facts.attempt_usd is None else facts.attempt_usd
    time = math.inf if facts.seconds_left is None else facts.seconds_left
    money = math.inf if facts.money_left is None else facts.money_left
    ends = end_attempts(sampled, money=money, attempt_usd=attempt_usd, time=time)
    free = end_attempts(sampled, attempt_usd=attempt_usd, time=time)
    made = _summarise(facts, beliefs, sampled, ends, free)
    return replace(made, seed=seed, samples=samples, evidence=msgspec.json.encode(draw).decode())


def record_draw(facts: ForecastFacts, beliefs: ArmBeliefs) -> ForecastDraw:
    """Return the part of the beliefs that a forecast is sampled from."""
    arm, kind, task, time = beliefs.arm, beliefs.kind, beliefs.task, beliefs.duration
    row, known = kind.index[arm.id], task.families.get(arm.family)
    return ForecastDraw(
        policy=FORECAST_POLICY,
        facts=facts,
        outcomes=kind.outcomes,
        log_weights=kind.log_weights.tolist(),
        skills=kind.skills[:, row].tolist(),
        skill_variances=kind.skill_covariances[:, row, row].tolist(),
        difficulty=task.difficulty.tolist(),
        family=None if known is None else known.tolist(),
        price=float(kind.prices[row]),
        price_variance=float(kind.price_covariance[row, row]),
        squares=kind.squares,
        count=kind.count,
        arm_squares=kind.arm_squares.get(arm.id, 0.0),
        costs=kind.costs.get(arm.id, (0, 0.0))[0],
        task_price=task.price,
        task_price_variance=task.price_variance,
        time=None if time is None else LogNormal(mean=time.mean, variance=time.variance, spread=time.spread),
    )


def restore_beliefs(draw: ForecastDraw) -> ArmBeliefs:
    """Return recorded beliefs; they know no other arm. Raises `ValueError` if a number of the facts is wrong."""
    _check_facts(draw.facts)
    arm, time = _read_arm(draw.facts), draw.time
    variances = np.array(draw.skill_variances)[:, None, None]
    kind = KindBelief(
        arms=(arm,),
        skills=np.repeat(np.array(draw.skills)[:, None], 2, axis=1),
        skill_covariances=np.broadcast_to(variances, (len(RHOS), 2, 2)),
        log_weights=np.array(draw.log_weights),
        prices=np.full(2, draw.price),
        price_covariance=np.full((2, 2), draw.price_variance),
        squares=draw.squares,
        count=draw.count,
        arm_squares={arm.id: draw.arm_squares},
        costs={arm.id: (draw.costs, 0.0)} if draw.costs else {},
        outcomes=draw.outcomes,
    )
    task = TaskBelief(
        kind=draw.facts.kind,
        difficulty=np.array(draw.difficulty),
        families={} if draw.family is None else {arm.family: np.array(draw.family)},
        price=draw.task_price,
        price_variance=draw.task_price_variance,
    )
    duration = None
    if time is not None:
        duration = DurationBelief(mean=time.mean, variance=time.variance, spread=time.spread)
    return ArmBeliefs(arm=arm, kind=kind, task=task, duration=duration)


def _read_arm(facts: ForecastFacts) -> RouterCandidate:
    name = name_arm(Candidate(agent=facts.agent, model=facts.model))
    return RouterCandidate(id=name, agent=facts.agent, model=facts.served or facts.model or "")


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
