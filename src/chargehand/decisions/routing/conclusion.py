"""Computes a choice from its draw, without a matrix library: the same numbers on each machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from chargehand.decisions.routing.records import ConsideredArm, ExcludedArm, RouterChoice, RouterDraw
from chargehand.decisions.routing.value import Stakes, solve_chances, value_arms

POLICY = "shared-difficulty-2"
FEW_OUTCOMES = 20


class DrawnArm(NamedTuple):
    """A compared arm as in `ConsideredArm`, before its chance and value are computed."""

    id: str
    family: str
    skill: str
    price: str
    expected_chance: float
    expected_price: float
    costs: int


def replay(choice: RouterChoice) -> RouterChoice:
    """Return the choice computed again from its own draw; it equals `choice` bit by bit."""
    drawn = [
        DrawnArm(
            id=each.id,
            family=each.family,
            skill=each.skill,
            price=each.price_exact,
            expected_chance=each.expected_chance,
            expected_price=each.expected_price,
            costs=each.costs,
        )
        for each in choice.considered
    ]
    # Earlier versions drew otherwise, and concluded from their draws in the same way.
    return replace(conclude(drawn, choice.draw, choice.excluded, choice.outcomes), policy=choice.policy)


def conclude(
    drawn: Sequence[DrawnArm],
    draw: RouterDraw,
    excluded: tuple[ExcludedArm, ...],
    outcomes: int,
) -> RouterChoice:
    """Return the choice among drawn arms on a task."""
    drawn = sorted(drawn)  # the order of factors decides how products are rounded
    families = [each.family for each in drawn]
    prices = [float.fromhex(each.price) for each in drawn]
    grids = [solve_chances(float.fromhex(each.skill), draw.rho) for each in drawn]
    weights = (
        [float.fromhex(each) for each in draw.difficulty],
        {family: [[float.fromhex(x) for x in row] for row in rows] for family, rows in draw.families.items()},
    )
    budget = draw.budget
    stakes = Stakes(draw.worth, draw.wrong_price, budget.check_price, budget.false_green, budget.false_red)
    values, chances = value_arms(grids, prices, families, weights, stakes, draw.attempts_left)
    ranked = sorted(range(len(values)), key=lambda place: (-values[place], place))
    considered = tuple(
        ConsideredArm(
            id=drawn[place].id,
            family=drawn[place].family,
            chance=chances[place],
            price=prices[place],
            value=values[place],
            expected_chance=drawn[place].expected_chance,
            expected_price=drawn[place].expected_price,
            costs=drawn[place].costs,
            skill=drawn[place].skill,
            price_exact=drawn[place].price,
        )
        for place in ranked
    )
    best = considered[0].value if considered else 0.0
    second = max(considered[1].value, 0.0) if len(considered) > 1 else 0.0
    return RouterChoice(
        policy=POLICY,
        chosen=considered[0].id if best > 0 else None,
        gain=best - second if best > 0 else -best,
        guess=outcomes < FEW_OUTCOMES,
        considered=considered,
        excluded=excluded,
        outcomes=outcomes,
        draw=draw,
    )
