"""The next step after failed attempts: exact against enumeration of all orders, repeatable, and by its stakes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from chargehand.decisions.routing.next_steps import ASK, STOP, choose_step, list_ladder, replay_step
from chargehand.decisions.routing.records import FollowingStep, PossibleStep, StepArm, StepDraw
from chargehand.decisions.routing.value import DIFFICULTY, FAMILY, FAMILY_SHARE

FAMILIES = ("a", "b")
DRAW = StepDraw(
    rho=0.55,
    worth=5.0,
    person_price=2.0,
    person_chance=0.9,
    mendable=(1.0).hex(),
    difficulty=tuple(weight.hex() for _, weight in DIFFICULTY),
    families={each: (tuple(weight.hex() for _, weight in FAMILY),) * len(DIFFICULTY) for each in FAMILIES},
)


def step(name: str, *arms: tuple[str, float, float], strategy: str = "model") -> PossibleStep:
    """Return a step whose arms have a family, a skill and a price."""
    made = tuple(StepArm(family=family, skill=skill.hex(), price=price.hex()) for family, skill, price in arms)
    return PossibleStep(name=name, strategy=strategy, arms=made, costs=1)


def chance_all_red(arms: list[StepArm], draw: StepDraw) -> float:
    """Sum over all points of difficulty and of both families' parts, without regard to order or sharing."""
    total = 0.0
    for hard, weight in DIFFICULTY:
        for part_a, weight_a in FAMILY:
            for part_b, weight_b in FAMILY:
                red = weight * weight_a * weight_b
                for arm in arms:
                    own = part_a if arm.family == "a" else part_b
                    z = float.fromhex(arm.skill) + math.sqrt(draw.rho) * hard + math.sqrt(FAMILY_SHARE) * own
                    red *= 0.5 * math.erfc(z / math.sqrt(1 - draw.rho - FAMILY_SHARE) / math.sqrt(2))
                total += red
    mendable = float.fromhex(draw.mendable)
    return 1 - mendable + mendable * total


def best_value(steps: list[PossibleStep], tried: tuple[PossibleStep, ...], draw: StepDraw) -> float:
    """Return the value of the best way to go on, by trying each order."""
    person = -math.inf if draw.person_price is None else draw.worth * draw.person_chance - draw.person_price
    return max(0.0, person, *(value_of(each, steps, tried, draw) for each in steps if each not in tried), 0.0)


def value_of(
    each: PossibleStep, steps: list[PossibleStep], tried: tuple[PossibleStep, ...], draw: StepDraw
) -> float:
    before = chance_all_red([arm for step in tried for arm in step.arms], draw)
    after = chance_all_red([arm for step in (*tried, each) for arm in step.arms], draw)
    chance = 1 - after / before
    price = sum(float.fromhex(arm.price) for arm in each.arms)
    return draw.worth * chance - price + (1 - chance) * best_value(steps, (*tried, each), draw)


ARMS = st.tuples(st.sampled_from(FAMILIES), st.floats(-2, 2), st.floats(0, 4))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(ARMS, min_size=1, max_size=2), max_size=3),
    st.none() | st.floats(0, 6),
    st.sampled_from([0.0, 0.4, 1.0]),
)
def test_the_values_are_those_of_the_best_order(
    arms: list[list[tuple[str, float, float]]], person: float | None, mendable: float
) -> None:
    steps = [step(str(number), *each) for number, each in enumerate(arms)]
    draw = replace(DRAW, person_price=person, mendable=mendable.hex())
    found = choose_step(steps, draw, outcomes=0)
    values = {each.name: each.value for each in found.valued}
    for each in steps:
        assert values[each.name] == pytest.approx(value_of(each, steps, (), draw), abs=1e-9)
    assert max(values.values()) == pytest.approx(best_value(steps, (), draw), abs=1e-9)
    assert values[found.chosen] == max(values.values())
    assert replay_step(found) == found
    paths = list_ladder(found)
    assert [path[0].name for path in paths] == [each.name for each in found.valued]
    for path in paths:
        check_path(path, steps, draw)


def check_path(path: Sequence[FollowingStep], steps: Sequence[PossibleStep], draw: StepDraw) -> None:
    """Check that all steps after the first are the best ones, and that numbers are given what was red before."""
    by_name, tried = {each.name: each for each in steps}, list[PossibleStep]()
    for place, each in enumerate(path):
        reached = chance_all_red([arm for one in tried for arm in one.arms], draw)
        assert each.reached == pytest.approx(reached, abs=1e-9)
        if place:
            assert each.value == pytest.approx(best_value([*steps], (*tried,), draw), abs=1e-9)
        if each.name in by_name:
            now = by_name[each.name]
            assert each.value == pytest.approx(value_of(now, [*steps], (*tried,), draw), abs=1e-9)
            tried.append(now)
    assert [each.name for each in path[:-1]] == [each.name for each in tried]
    assert path[-1].name in (ASK, STOP)


AGAIN = step("again", ("a", 0.0, 0.1), strategy="approach")
STRONG = step("strong", ("b", 1.0, 0.4))


@pytest.mark.parametrize(
    ("draw", "chosen"),
    [
        (DRAW, "again"),
        (replace(DRAW, mendable=(0.01).hex()), ASK),
        (replace(DRAW, mendable=(0.01).hex(), person_price=None), STOP),
        (replace(DRAW, worth=0.05), STOP),
        (replace(DRAW, worth=0.05, person_price=0.0), ASK),
    ],
    ids=["cheap first", "no attempt helps", "and nobody to ask", "worthless", "a free person"],
)
def test_the_stakes_decide(draw: StepDraw, chosen: str) -> None:
    assert choose_step([AGAIN, STRONG], draw, outcomes=30).chosen == chosen


def test_steps_beyond_eight_attempts_are_left_out() -> None:
    steps = [step(str(number), ("a", 0.0, 0.1), ("b", 0.0, 0.1)) for number in range(6)]
    found = choose_step(steps, DRAW, outcomes=0)
    assert {each.name for each in found.valued} == {"0", "1", "2", "3", ASK, STOP}
