"""The effect of a lesson: outcomes of missions with and without it, and the choice whether to show it.

Each recall is an experiment. A lesson on trial is withheld from about half of the missions that it fits; later
it is shown by Thompson sampling (Thompson, 1933). An arm's chance of a green first attempt has a Beta(1, 1) prior.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from chargehand.knowledge.lessons import LessonContent
from chargehand.store.lessons import LessonUse

LessonsMode = Literal["off", "on", "experiment"]
LessonStatus = Literal["trial", "active", "demoted"]
# Missions with a known outcome until a lesson's effect decides whether it is shown.
TRIAL_MISSIONS = 10
# A lesson is demoted if it does harm with this probability, or if it is not better with the second probability
# after so many missions, half a trial of them in each arm.
_HARM, _HELP, _PATIENCE = 0.9, 0.75, 20
_ROUNDING = 1e-9


class ArmOutcomes(Struct, frozen=True, kw_only=True):
    """The missions of one arm that ended: how many, how many with a green first attempt, their attempts and cost.

    `cost_usd` is of the `priced` missions, whose cost is known.
    """

    missions: int = 0
    green: int = 0
    attempts: int = 0
    priced: int = 0
    cost_usd: float = 0.0


class LessonEffect(Struct, frozen=True, kw_only=True):
    """The outcomes of a lesson's missions with and without it; `begun` counts assigned missions of both arms."""

    shown: ArmOutcomes = ArmOutcomes()
    withheld: ArmOutcomes = ArmOutcomes()
    begun: tuple[int, int] = (0, 0)

    @property
    def harm(self) -> float:
        """The probability that missions with the lesson do worse than those without it."""
        return beta_less(_posterior(self.shown), _posterior(self.withheld))

    @property
    def status(self) -> LessonStatus:
        """Whether the lesson is on trial, in use, or no longer recalled.

        Only a comparison demotes: the mode `on` withholds nothing, and missions may be red without the lesson too.
        """
        ended = self.shown.missions + self.withheld.missions
        least = min(self.shown.missions, self.withheld.missions)
        if least and self.harm >= _HARM - _ROUNDING:
            return "demoted"
        if least >= TRIAL_MISSIONS // 2 and ended >= _PATIENCE and 1 - self.harm < _HELP:
            return "demoted"
        return "trial" if ended < TRIAL_MISSIONS else "active"


def measure_effect(uses: Iterable[LessonUse]) -> LessonEffect:
    """Return the effect of one lesson from its uses."""
    listed = list(uses)
    shown = sum(use.shown for use in listed)
    return LessonEffect(
        shown=_sum_arm(use for use in listed if use.shown),
        withheld=_sum_arm(use for use in listed if not use.shown),
        begun=(shown, len(listed) - shown),
    )


def choose_arm(effect: LessonEffect, mode: LessonsMode, *, seed: str) -> bool:
    """Return whether a mission gets the lesson; the same seed and effect give the same arm.

    On trial the arm with fewer missions is next, and equal arms are chosen by a fair coin: a lesson that does harm
    is found after few missions, and which mission is which cannot be foreseen from its request.
    """
    if mode == "on":
        return True
    # Not for secrets: the seed makes the choice repeatable after a crash.
    generator = random.Random(seed)
    if effect.status == "trial":
        shown, withheld = effect.begun
        return shown < withheld if shown != withheld else generator.random() < 0.5
    drawn = [generator.betavariate(*_posterior(arm)) for arm in (effect.shown, effect.withheld)]
    return drawn[0] >= drawn[1]


def beta_less(one: tuple[int, int], other: tuple[int, int]) -> float:
    """Return P(X < Y) for X ~ Beta(*one) and Y ~ Beta(*other), with whole parameters of at least 1.

    The closed form: a sum over the first parameter of Y, of ratios of Beta functions.
    """
    (a, b), (c, d) = one, other
    terms = (
        math.exp(_log_beta(a + i, b + d) - math.log(d + i) - _log_beta(1 + i, d) - _log_beta(a, b))
        for i in range(c)
    )
    return min(1.0, math.fsum(terms))


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _posterior(arm: ArmOutcomes) -> tuple[int, int]:
    return 1 + arm.green, 1 + arm.missions - arm.green


def _sum_arm(uses: Iterable[LessonUse]) -> ArmOutcomes:
    ended = [use for use in uses if use.green is not None]
    costs = [use.cost_usd for use in ended if use.cost_usd is not None]
    return ArmOutcomes(
        missions=len(ended),
        green=sum(bool(use.green) for use in ended),
        attempts=sum(use.attempts or 0 for use in ended),
        priced=len(costs),
        cost_usd=math.fsum(costs),
    )


class LessonEntry(Struct, frozen=True, kw_only=True):
    """A lesson with its text for agents, its effect on missions, and the lessons that it contradicts.

    `harm` is the probability that missions do worse with it than without it. Missions get no lesson that is
    `demoted` or `contradicted`.
    """

    lesson: str
    project: str
    author: str
    shared: bool
    created: str
    mission: str
    status: LessonStatus | Literal["contradicted"]
    contradicts: tuple[str, ...]
    content: LessonContent
    text: str
    effect: LessonEffect
    harm: float


class LessonList(Struct, frozen=True, kw_only=True):
    """The lessons that a user may see, oldest first."""

    lessons: tuple[LessonEntry, ...]


class ForgottenLesson(Struct, frozen=True, kw_only=True):
    """An erased lesson; its text stays in the logs and recordings of `missions`, and of their forks.

    If it is not `erased` yet, another process keeps its bytes in use: forget it again when that process is done.
    """

    lesson: str
    missions: tuple[str, ...]
    erased: bool
