"""The bookkeeping of lessons: it agrees with a plain model, arms are balanced, and harm is found."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import comb
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples

from chargehand.knowledge.lessons_effect import (
    TRIAL_MISSIONS,
    ArmOutcomes,
    LessonEffect,
    beta_less,
    choose_arm,
    measure_effect,
)
from chargehand.store.lessons import LessonUse
from chargehand.store.store import open_store

_SMALL = st.integers(1, 12)


def exact_less(one: tuple[int, int], other: tuple[int, int]) -> Fraction:
    """Return P(X < Y) by integrating the density of Y, with the distribution of X as a binomial sum."""
    (a, b), (c, d) = one, other
    n = a + b - 1

    def beta(p: int, q: int) -> Fraction:
        return Fraction(1, (p + q - 1) * comb(p + q - 2, p - 1))

    return sum((comb(n, k) * beta(c + k, d + n - k) for k in range(a, n + 1)), Fraction(0)) / beta(c, d)


@given(st.tuples(_SMALL, _SMALL), st.tuples(_SMALL, _SMALL))
@settings(max_examples=examples(80), deadline=None)
def test_the_probability_of_harm_is_exact(one: tuple[int, int], other: tuple[int, int]) -> None:
    assert beta_less(one, other) == pytest.approx(float(exact_less(one, other)), abs=1e-9)


def always(shown: bool) -> Callable[[str, Sequence[LessonUse]], bool]:
    return lambda lesson, uses: shown


_MISSION = st.tuples(
    st.booleans(), st.none() | st.booleans(), st.integers(1, 5), st.none() | st.floats(0, 9, width=16)
)


@given(missions=st.lists(_MISSION, max_size=30))
@settings(max_examples=examples(60), deadline=None)
def test_each_mission_is_counted_once_in_its_arm(
    missions: list[tuple[bool, bool | None, int, float | None]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    home: Path = tmp_path_factory.mktemp("state")
    with open_store(home / "s") as store:
        for number, (shown, green, attempts, cost) in enumerate(missions):
            mission = f"m-{number}"
            use = LessonUse(lesson="l", mission=mission, shown=shown)
            assert store.lessons.assign(mission, ["l"], always(shown)) == (use,)
            # A worker that repeats this, with another choice, changes nothing.
            assert store.lessons.assign(mission, ["k"], always(not shown)) == (use,)
            if green is not None:
                assert store.lessons.close_mission(mission, green=green, attempts=attempts, cost_usd=cost) == 1
                assert store.lessons.close_mission(mission, green=not green, attempts=9, cost_usd=None) == 0
        effect = measure_effect(store.lessons.uses(["l"])["l"])
    for arm, outcomes in ((True, effect.shown), (False, effect.withheld)):
        ended = [each for each in missions if each[0] is arm and each[1] is not None]
        costs = [each[3] for each in ended if each[3] is not None]
        assert outcomes == ArmOutcomes(
            missions=len(ended),
            green=sum(bool(each[1]) for each in ended),
            attempts=sum(each[2] for each in ended),
            priced=len(costs),
            cost_usd=pytest.approx(sum(costs)),
        )
    assert effect.begun == (sum(each[0] for each in missions), sum(not each[0] for each in missions))


@given(st.integers(0, 9999), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=examples(60), deadline=None)
def test_arms_on_trial_are_balanced_and_repeatable(seed: int, with_it: float, without: float) -> None:
    uses: list[LessonUse] = []
    chance = random.Random(seed)
    while (effect := measure_effect(uses)).status == "trial":
        mission = f"{seed}/{len(uses)}"
        shown = choose_arm(effect, "experiment", seed=mission)
        assert shown is choose_arm(effect, "experiment", seed=mission)
        assert choose_arm(effect, "on", seed=mission)
        green = chance.random() < (with_it if shown else without)
        uses.append(LessonUse(lesson="l", mission=mission, shown=shown, green=green, attempts=1))
        assert abs(measure_effect(uses).begun[0] - measure_effect(uses).begun[1]) <= 1
    assert len(uses) <= TRIAL_MISSIONS


@given(st.integers(0, 9999))
@settings(max_examples=examples(40), deadline=None)
def test_a_lesson_that_always_fails_is_demoted_within_five_missions(seed: int) -> None:
    uses: list[LessonUse] = []
    while (effect := measure_effect(uses)).status != "demoted":
        shown = choose_arm(effect, "experiment", seed=f"{seed}/{len(uses)}")
        uses.append(LessonUse(lesson="l", mission=str(len(uses)), shown=shown, green=not shown, attempts=1))
    assert len(uses) <= 5


def test_a_lesson_without_effect_is_demoted_after_twenty_missions_and_a_good_one_stays() -> None:
    arm = ArmOutcomes(missions=10, green=5)
    assert LessonEffect(shown=arm, withheld=arm).status == "demoted"
    assert LessonEffect(shown=arm, withheld=ArmOutcomes(missions=9, green=4)).status == "active"
    good = LessonEffect(shown=ArmOutcomes(missions=30, green=27), withheld=arm)
    assert good.status == "active"
    chosen = [choose_arm(good, "experiment", seed=str(number)) for number in range(200)]
    assert sum(chosen) > 190


@given(st.integers(0, 60), st.integers(0, 60))
@settings(max_examples=examples(60), deadline=None)
def test_outcomes_of_one_arm_alone_demote_nothing(green: int, red: int) -> None:
    arm = ArmOutcomes(missions=green + red, green=green)
    assert LessonEffect(shown=arm).status != "demoted"
    assert LessonEffect(withheld=arm).status != "demoted"


def test_what_an_earlier_experiment_withheld_decides_in_the_mode_on() -> None:
    def shown(missions: int, green: int, *, withheld: int) -> LessonEffect:
        return LessonEffect(
            shown=ArmOutcomes(missions=missions, green=green),
            withheld=ArmOutcomes(missions=withheld, green=withheld),
        )

    # Harm shows against a single mission that passed without the lesson.
    assert shown(2, 0, withheld=0).status == "trial"
    assert shown(2, 0, withheld=1).status == "demoted"
    # A lack of effect shows only if half a trial was withheld.
    assert shown(40, 38, withheld=4).status == "active"
    assert shown(40, 38, withheld=5).status == "demoted"
