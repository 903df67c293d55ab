"""The time of an attempt: a lognormal whose level shrinks from the project to the agent with its model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from msgspec import Struct

from chargehand.core.choices import ChoiceOutcome
from chargehand.decisions.arms import name_arm

# Before any outcome: e to the 5.5th is 4 minutes, with this variance of the log; that of arms in one project.
_LEVEL, _LEVEL_VARIANCE, _ARM_VARIANCE = 5.5, 1.44, 0.5
# The variance of log times between attempts of one arm, and how many outcomes it counts as.
_SPREAD, _SPREAD_COUNT = 0.8, 4.0


class DurationBelief(Struct, frozen=True, kw_only=True):
    """The log of an attempt's seconds: its mean, the variance of that mean, and the variance between attempts."""

    mean: float
    variance: float
    spread: float


def learn_duration(outcomes: Sequence[ChoiceOutcome], kind: str, arm: str) -> DurationBelief | None:
    """Return the belief about an arm in a kind of task, `None` if no attempt anywhere has a known time."""
    known = [each for each in outcomes if each.seconds is not None and 0 < each.seconds < math.inf]
    if not known:
        return None
    logs: dict[str, list[float]] = {}
    for each in known:
        if each.kind == kind:
            logs.setdefault(name_arm(each.candidate), []).append(math.log(each.seconds or 1.0))
    count = sum(map(len, logs.values())) - len(logs)
    squares = math.fsum((each - fmean(group)) ** 2 for group in logs.values() for each in group)
    spread = (_SPREAD * _SPREAD_COUNT + squares) / (_SPREAD_COUNT + count)
    mean, variance = _LEVEL, _LEVEL_VARIANCE
    for name, group in logs.items():
        if name != arm:
            mean, variance = _combine(mean, variance, fmean(group), _ARM_VARIANCE + spread / len(group))
    variance += _ARM_VARIANCE
    if own := logs.get(arm):
        mean, variance = _combine(mean, variance, fmean(own), spread / len(own))
    return DurationBelief(mean=mean, variance=variance, spread=spread)


def _combine(mean: float, variance: float, value: float, error: float) -> tuple[float, float]:
    gain = variance / (variance + error)
    return mean + gain * (value - mean), variance * (1 - gain)
