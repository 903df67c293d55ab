"""Explains a recorded choice from its evidence, and computes it again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal

import msgspec
from msgspec import Struct

from chargehand.core.codec import decode_as
from chargehand.core.records import ChoiceReason, MissionForecast
from chargehand.decisions.forecast_records import ForecastDraw, PlanDraw
from chargehand.decisions.routing.conclusion import replay
from chargehand.decisions.routing.records import FollowingStep, RouterChoice, StepChoice

_ENDS = {"ask": "asking a person", "stop": "no further attempt"}


class ComparedCandidate(Struct, frozen=True, kw_only=True):
    """A compared candidate: estimated chance to solve the task now and price in USD, and its value in USD.

    The value follows from one draw of the beliefs, so that little-known candidates are tried too.
    Without `known_costs` of earlier attempts the price is only assumed.
    """

    name: str
    chance: float
    price_usd: float
    value_usd: float
    known_costs: int


class LeftOutCandidate(Struct, frozen=True, kw_only=True):
    """A candidate that was not compared, with the reason as in `ExcludedArm`."""

    name: str
    reason: Literal["tried", "no_money", "price_unknown", "worse"]


class PathStep(Struct, frozen=True, kw_only=True):
    """A step after a failure: the chance to solve the task now, price and value in USD, as in `ComparedCandidate`.

    `reached` is the chance that all steps before it on its path fail; the others are given that they do. The value
    includes the best steps after it.
    """

    name: str
    reached: float
    chance: float
    price_usd: float
    value_usd: float
    known_costs: int


class StepPath(Struct, frozen=True, kw_only=True):
    """A possible step after a failure, and the best steps that would follow if each of them fails too."""

    steps: tuple[PathStep, ...]


class ChoiceExplanation(Struct, frozen=True, kw_only=True):
    """A learned choice: its candidates by value, the best first.

    `gain_usd` is the value of the chosen one over the second's, or over no attempt. `outcomes` counts the attempts
    it was learned from, `is_guess` marks few of them. `replayed` says whether computing it again gave the same
    numbers; `None`: that needs an optional part that is not installed. `causes` has the probability of each cause
    of the failure before it, for a choice of what to do next, and `paths` a path for each candidate, the best
    first (empty if numpy is not installed).
    """

    policy: str
    chosen: str
    worth_usd: float
    gain_usd: float
    outcomes: int
    is_guess: bool
    replayed: bool | None
    candidates: tuple[ComparedCandidate, ...]
    left_out: tuple[LeftOutCandidate, ...]
    causes: Mapping[str, float] = {}
    paths: tuple[StepPath, ...] = ()


class LearnedArm(Struct, frozen=True, kw_only=True):
    """An agent with its model: its attempts, and the belief about its next one on a new task.

    `chance` is that of solving it, with its 80 % band from `low` to `high`; `price_usd` is expected, `None` if no
    cost is known. `good` counts the green attempts.
    """

    name: str
    attempts: int
    good: int
    chance: float
    low: float
    high: float
    price_usd: float | None


def explain_choice(reason: ChoiceReason) -> ChoiceExplanation | None:
    """Return the explanation of a reason with evidence, `None` without one or of another version."""
    if not isinstance(reason.evidence, str):
        return None
    try:
        return _explain_step(reason, decode_as(reason.evidence.encode(), StepChoice))
    except (msgspec.DecodeError, ValueError, KeyError):
        pass  # a choice of agent and model
    try:
        choice = decode_as(reason.evidence.encode(), RouterChoice)
        same = replay(choice) == choice
    except (msgspec.DecodeError, ValueError, KeyError):
        return None
    return ChoiceExplanation(
        policy=choice.policy,
        chosen=reason.subject,
        worth_usd=choice.draw.worth,
        gain_usd=choice.gain,
        outcomes=choice.outcomes,
        is_guess=choice.guess,
        replayed=same,
        candidates=tuple(
            ComparedCandidate(
                name=each.id,
                chance=each.expected_chance,
                price_usd=each.expected_price,
                value_usd=each.value,
                known_costs=each.costs,
            )
            for each in choice.considered
        ),
        left_out=tuple(LeftOutCandidate(name=each.id, reason=each.reason) for each in choice.excluded),
    )


def read_chance(reasons: Sequence[ChoiceReason]) -> float | None:
    """Return the chance that a learned choice gave its chosen candidate to solve the task, `None` for others."""
    for reason in reasons:
        if not isinstance(reason.evidence, str):
            continue
        content = reason.evidence.encode()
        with suppress(msgspec.DecodeError):
            step = decode_as(content, StepChoice)
            attempts = (each for each in step.valued if each.name not in _ENDS)
            return next((each.chance for each in attempts if each.name == step.chosen), None)
        with suppress(msgspec.DecodeError):
            choice = decode_as(content, RouterChoice)
            return next((each.expected_chance for each in choice.considered if each.id == choice.chosen), None)
    return None


def check_forecast(made: MissionForecast) -> bool | None:
    """Return whether a forecast's recorded beliefs and seed give it again.

    `None`: it has none, they are of another version, or an optional part is not installed. Numbers may differ in
    their last digits, since processors round some functions differently.
    """
    if made.seed is None:
        return None
    try:
        again = _sample_again(made, made.seed)
    except (ImportError, msgspec.DecodeError):
        return None
    except ValueError:
        return False
    if again is None:
        return None
    pairs = zip(_list_numbers(again), _list_numbers(made), strict=True)
    return all(a is b if a is None or b is None else math.isclose(a, b, rel_tol=1e-6) for a, b in pairs)


def _sample_again(made: MissionForecast, seed: int) -> MissionForecast | None:
    """Return the forecast of the recorded beliefs, `None` if they are of another version."""
    from chargehand.decisions.forecasts import FORECAST_POLICY, sample_forecast
    from chargehand.decisions.plan_forecasts import PLAN_POLICY, sample_plan

    content = made.evidence.encode()
    if made.tasks:
        plan = decode_as(content, PlanDraw)
        return sample_plan(plan, seed, made.samples) if plan.policy == PLAN_POLICY else None
    draw = decode_as(content, ForecastDraw)
    return sample_forecast(draw, seed, made.samples) if draw.policy == FORECAST_POLICY else None


def _list_numbers(made: MissionForecast) -> list[float | None]:
    bands = [(band.low, band.middle, band.high) if band else (None,) * 3 for band in (made.cost_usd, made.seconds)]
    return [made.chance, made.unlimited, made.enough_usd, made.person_seconds, made.outcomes, *bands[0], *bands[1]]


def _explain_step(reason: ChoiceReason, choice: StepChoice) -> ChoiceExplanation:
    same, paths = None, tuple[StepPath, ...]()
    try:
        from chargehand.decisions.routing.next_steps import list_ladder, replay_step
    except ImportError:
        pass
    else:
        same = replay_step(choice) == choice
        paths = tuple(StepPath(steps=tuple(map(_read_step, each))) for each in list_ladder(choice))
    best, second = choice.valued[0], choice.valued[1] if len(choice.valued) > 1 else None
    return ChoiceExplanation(
        policy=choice.policy,
        chosen=reason.subject if reason.code == "learned" else "",
        worth_usd=choice.draw.worth,
        gain_usd=best.value - (second.value if second else 0.0),
        outcomes=choice.outcomes,
        is_guess=choice.guess,
        replayed=same,
        candidates=tuple(
            ComparedCandidate(
                name=_ENDS.get(each.name, each.name),
                chance=each.chance,
                price_usd=each.price,
                value_usd=each.value,
                known_costs=each.costs,
            )
            for each in choice.valued
        ),
        left_out=(),
        causes=choice.causes,
        paths=paths,
    )


def _read_step(step: FollowingStep) -> PathStep:
    return PathStep(
        name=_ENDS.get(step.name, step.name),
        reached=step.reached,
        chance=step.chance,
        price_usd=step.price,
        value_usd=step.value,
        known_costs=step.costs,
    )
