"""Staged roll-outs of models and policies: which projects are in, and when outcomes stop a roll-out.

All of it follows from the settings and the recorded outcomes, so it replays, and a stop needs no event.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.choices import (
    BY_PERSON,
    OF_ROLLOUTS,
    Candidate,
    Choice,
    ChoiceContext,
    ChoiceHistory,
    ChoiceOutcome,
    Chooser,
    find_exclusion,
)
from chargehand.core.config import RolloutConfig
from chargehand.core.records import ChoiceReason, ReasonCode

Verdict = Literal["off", "shadow", "too_little", "running", "better", "stopped"]
# Fewer outcomes on a side allow no verdict but a stop.
ENOUGH_OUTCOMES = 10
# Bets never call an outcome surer than this: one surprise must not lose the whole stake.
_LEAST_RATE = 0.02
# These reasons are about a model that a roll-out replaces.
_OF_MODELS: frozenset[ReasonCode] = frozenset(
    {"only_model", "first_model", "first_with_key", "key_set", "served_locally", "learned"}
)


class RolloutSide(Struct, frozen=True, kw_only=True):
    """The number of outcomes on one side, of good ones, and of projects; `rate` is `None` without outcomes."""

    outcomes: int = 0
    good: int = 0
    projects: int = 0
    rate: float | None = None

    def after(self, is_good: bool) -> RolloutSide:
        """Return the side with one more outcome."""
        outcomes, good = self.outcomes + 1, self.good + is_good
        return replace(self, outcomes=outcomes, good=good, rate=good / outcomes)

    def estimate(self) -> float:
        """Return the success rate by Laplace's rule, within the bounds of bets."""
        return min(max((self.good + 1) / (self.outcomes + 2), _LEAST_RATE), 1 - _LEAST_RATE)


class RolloutState(Struct, frozen=True, kw_only=True):
    """The verdict on a roll-out, with the outcomes that it follows from.

    `members` counts the projects that it holds now, among all `known` ones with outcomes. A stopped roll-out has
    the outcomes until its stop. `shadowed` counts missions for which it would, as a shadow, have chosen otherwise.
    """

    verdict: Verdict
    members: int
    known: int
    inside: RolloutSide
    outside: RolloutSide
    shadowed: int


def is_member(name: str, percent: float, project: str) -> bool:
    """Return whether a roll-out holds a project; it keeps it at each higher percentage."""
    digest = hashlib.sha256(f"{name}\0{project}".encode()).digest()
    return int.from_bytes(digest[:8]) < percent / 100 * 2**64


class RolloutRules(Struct, frozen=True, kw_only=True):
    """A chooser that lets active roll-outs change the choices of `chooser` for requests.

    A choice that a person, a role or a plan made in any part stays, as does one whose replacement cannot start.
    `policies` has a chooser for each policy of a roll-out.
    """

    chooser: Chooser
    rollouts: Mapping[str, RolloutConfig]
    policies: Mapping[str, Chooser]

    def choose(self, context: ChoiceContext, history: ChoiceHistory, /) -> Choice:
        """Return the choice of the first roll-out, by name, that holds the project, else that of `chooser`."""
        choice = self.chooser.choose(context, history)
        if context.moment == "task":
            return _drop_rollouts(context, choice)
        fixed = context.fixed.agent or context.fixed.model or any(why.code in BY_PERSON for why in choice.reasons)
        if context.moment != "request" or fixed or not context.kind:
            return choice
        targets = {
            name: (rollout, target)
            for name, rollout in sorted(self.rollouts.items())
            if rollout.percent > 0
            and (target := self._find_target(context, history, choice, rollout)) is not None
            and judge_rollout(name, rollout, history).verdict != "stopped"
        }
        members = [name for name in targets if is_member(name, targets[name][0].percent, context.kind)]
        applied = next((name for name in members if not targets[name][0].shadow), None)
        # A choice that one roll-out changed is not compared with those of another.
        named = [name for name in targets if not targets[name][0].shadow] if applied is None else [applied]
        code: ReasonCode = "rollout_outside" if applied is None else "rollout"
        reasons = [ChoiceReason(code, name, f"{targets[name][0].percent:g}") for name in named]
        for name in members:
            rollout, target = targets[name]
            if rollout.shadow:
                reasons.append(ChoiceReason("rollout_shadow", name, str(target.chosen)))
        made = choice if applied is None else targets[applied][1]
        return replace(made, reasons=(*made.reasons, *reasons))

    def _find_target(
        self, context: ChoiceContext, history: ChoiceHistory, choice: Choice, rollout: RolloutConfig
    ) -> Choice | None:
        """Return the choice that a roll-out would make, `None` if it cannot or would change nothing."""
        chosen = choice.chosen
        if chosen is None:
            return None
        if rollout.policy is not None:
            target = self.policies[rollout.policy].choose(context, history)
            return None if target.chosen is None or _pair(target.chosen) == _pair(chosen) else target
        found = context.find(rollout.agent or chosen.agent, rollout.model)
        if found is None or not found.agent.takes_models or _pair(found.candidate) == _pair(chosen):
            return None
        if found.model is None or found.model.has_key is False or find_exclusion(context, found) is not None:
            return None
        same_agent = found.agent.name == chosen.agent
        # If the model does not answer, the one before works.
        before = (chosen.model, *chosen.fallback) if same_agent else found.agent.fallback
        fallback = tuple(each for each in before if each is not None and each != rollout.model)
        lasting = tuple(each for each in choice.reasons if each.code not in _OF_MODELS) if same_agent else ()
        return replace(choice, chosen=replace(found.candidate, fallback=fallback), reasons=lasting)


def _pair(candidate: Candidate) -> tuple[str, str | None]:
    return candidate.agent, candidate.model


def _drop_rollouts(context: ChoiceContext, choice: Choice) -> Choice:
    """Return a task's choice without the mission's roll-outs if it is not the mission's choice."""
    if choice.chosen is None or context.current is None or _pair(choice.chosen) == _pair(context.current):
        return choice
    return replace(choice, reasons=tuple(each for each in choice.reasons if each.code not in OF_ROLLOUTS))


# --- the guard


class SequentialGuard:
    """Two sequential tests on the success rates of two streams of outcomes: is the one inside lower, is it higher.

    Each test multiplies a capital of 1 by bets on blocks of outcomes. If the success rates are equal, or differ
    the other way, the chance that the capital ever reaches 1/a is at most a (Ville's inequality), so it may be
    judged after each outcome. A bet on rates low < high pays p(block | low, high) / p(block | z, z) with
    z = (n_low low + n_high high) / (n_low + n_high), an e-variable of Turner, Ly and Grünwald (arXiv:2106.02693):
    for equal rates its expectation is a product of factors with the mean 1, so at most 1. The rates of a bet come
    from earlier blocks, and differ by `loss` at least. Which side an outcome is of must not depend on it.
    """

    def __init__(self, loss: float, error_rate: float) -> None:
        self._loss, self._limit = loss, -math.log(error_rate)
        self.is_lower = self.is_higher = False
        # Logarithms of both capitals.
        self.capital_lower = self.capital_higher = 0.0
        # Outside and inside: now, and at the end of the last block.
        self.sides = self._before = (RolloutSide(), RolloutSide())

    def add(self, is_inside: bool, is_good: bool) -> None:
        """Count an outcome; a block ends with the first outcome after which it has both sides."""
        outside, inside = self.sides
        self.sides = (outside, inside.after(is_good)) if is_inside else (outside.after(is_good), inside)
        if any(now.outcomes == was.outcomes for now, was in zip(self.sides, self._before, strict=True)):
            return
        out, within = (each.estimate() for each in self._before)
        self.capital_lower += self._bet(out, max(out - max(self._loss, out - within), _LEAST_RATE))
        self.capital_higher += self._bet(out, min(out + max(self._loss, within - out), 1 - _LEAST_RATE))
        self._before = self.sides
        rates = [each.good / each.outcomes for each in self.sides]
        self.is_higher = self.is_higher or self.capital_higher >= self._limit
        is_lower = self.capital_lower >= self._limit and rates[0] - rates[1] >= self._loss
        self.is_lower = self.is_lower or is_lower

    def _bet(self, *rates: float) -> float:
        """Return the logarithm of the gain of a bet on the success rates outside and inside pays for the block."""
        sides = zip(rates, self.sides, self._before, strict=True)
        block = [(rate, now.good - was.good, now.outcomes - was.outcomes) for rate, now, was in sides]
        middle = sum(rate * all_ for rate, _, all_ in block) / sum(all_ for _, _, all_ in block)
        return sum(
            good * math.log(rate / middle) + (all_ - good) * math.log((1 - rate) / (1 - middle))
            for rate, good, all_ in block
        )


def judge_rollout(name: str, rollout: RolloutConfig, history: ChoiceHistory) -> RolloutState:
    """Return the verdict on a roll-out by the first outcome of each mission that took part, in their order.

    It is stopped once its success rate is surely lower than outside, at `error_rate` whatever the number of
    looks, and lower by at least `loss`. That is final. The error rate assumes that projects are alike.
    """
    guard = SequentialGuard(rollout.loss, rollout.error_rate)
    projects = (set[str](), set[str]())
    for is_inside, project, is_good in _read_sides(name, rollout, history):
        guard.add(is_inside, is_good)
        projects[is_inside].add(project)
        if guard.is_lower:
            break
    verdict: Verdict = "better" if guard.is_higher else "running"
    if guard.is_lower:
        verdict = "stopped"
    elif rollout.percent <= 0 or rollout.shadow:
        verdict = "shadow" if rollout.percent > 0 else "off"
    elif min(each.outcomes for each in guard.sides) < ENOUGH_OUTCOMES:
        verdict = "too_little"
    known = {each.kind for each in history.outcomes}
    return RolloutState(
        verdict=verdict,
        members=sum(is_member(name, rollout.percent, each) for each in known),
        known=len(known),
        inside=replace(guard.sides[1], projects=len(projects[1])),
        outside=replace(guard.sides[0], projects=len(projects[0])),
        shadowed=len({each.work for each in history.outcomes if "rollout_shadow" in _codes(name, each)}),
    )


def _codes(name: str, outcome: ChoiceOutcome) -> set[ReasonCode]:
    return {why.code for why in outcome.rollouts if why.subject == name}


def _read_sides(name: str, rollout: RolloutConfig, history: ChoiceHistory) -> Iterator[tuple[bool, str, bool]]:
    """Yield for each counted outcome whether it is inside, its project, and whether it is good.

    Later attempts of a mission do not count: they would count hard tasks more often. Inside, outcomes count only
    for the model that the roll-out has now: with another model it begins again.
    """
    seen = set[str]()
    for each in history.outcomes:
        codes = _codes(name, each) if each.rollouts and each.work not in seen else ()
        is_inside = "rollout" in codes
        if not is_inside and "rollout_outside" not in codes:
            continue
        if is_inside and rollout.model not in (None, each.candidate.model):
            continue
        seen.add(each.work)
        yield is_inside, each.kind, each.is_good
