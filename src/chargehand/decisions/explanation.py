"""Explains a recorded choice from its evidence, and computes it again."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from chargehand.core.codec import decode_as
from chargehand.core.records import ChoiceReason
from chargehand.decisions.routing.conclusion import replay
from chargehand.decisions.routing.records import RouterChoice


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


class ChoiceExplanation(Struct, frozen=True, kw_only=True):
    """A learned choice: its candidates by value, the best first.

    `gain_usd` is the value of the chosen one over the second's, or over no attempt. `outcomes` counts the attempts
    it was learned from, `is_guess` marks few of them. `replayed` says whether computing it again gave the same
    numbers.
    """

    policy: str
    chosen: str
    worth_usd: float
    gain_usd: float
    outcomes: int
    is_guess: bool
    replayed: bool
    candidates: tuple[ComparedCandidate, ...]
    left_out: tuple[LeftOutCandidate, ...]


def explain_choice(reason: ChoiceReason) -> ChoiceExplanation | None:
    """Return the explanation of a reason with evidence, `None` if it has none or is of another version."""
    if not isinstance(reason.evidence, str):
        return None
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
