"""The fixed rules keep the contract of a chooser, and choosers that break it are found out."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from chargehand.core.choices import Candidate, Choice, ChoiceContext, ChoiceHistory, Chooser
from chargehand.core.errors import InfrastructureError
from chargehand.decisions.decider import Decider
from chargehand.decisions.rules import FixedRules
from chargehand.testing.choices.conformance import CONTEXTS, ChooserContract


class TestFixedRules(ChooserContract):
    """The rules of the product."""

    chooser = FixedRules()


class Changed:
    """The fixed rules, with each choice changed."""

    def __init__(self, change: Callable[[ChoiceContext, Choice], Choice]) -> None:
        self._change = change

    def choose(self, context: ChoiceContext, history: ChoiceHistory, /) -> Choice:
        """Return the changed choice."""
        return self._change(context, FixedRules().choose(context, history))


def name_a_stranger(context: ChoiceContext, choice: Choice) -> Choice:
    return replace(choice, action="use", chosen=Candidate(agent="stranger"))


def fall_back_to_a_stranger(context: ChoiceContext, choice: Choice) -> Choice:
    return choice if choice.chosen is None else replace(choice, chosen=replace(choice.chosen, fallback=("x",)))


def give_no_reason(context: ChoiceContext, choice: Choice) -> Choice:
    return Choice(action="stop")


def ignore_breakers(context: ChoiceContext, choice: Choice) -> Choice:
    ready = [each.candidate for each in context.candidates if each.is_ready]
    return Choice(chosen=ready[0]) if ready else choice


def draw(context: ChoiceContext, choice: Choice) -> Choice:
    usable = [each.candidate for each in context.candidates if each.is_ready and each.breaker != "open"]
    return Choice(chosen=random.choice(usable)) if usable else choice


def fails_some(chooser: Chooser) -> set[str]:
    suite = type("Suite", (ChooserContract,), {"chooser": chooser})()
    failed = set()
    for name in dir(suite):
        if name.startswith("test_"):
            try:
                getattr(suite, name)()
            except AssertionError:
                failed.add(name)
    return failed


@pytest.mark.parametrize("change", [name_a_stranger, fall_back_to_a_stranger, give_no_reason])
def test_a_choice_that_is_not_allowed_fails_the_suite_and_is_refused(
    change: Callable[[ChoiceContext, Choice], Choice],
) -> None:
    assert "test_each_choice_is_allowed" in fails_some(Changed(change))
    with pytest.raises(InfrastructureError) as refused:
        Decider(chooser=Changed(change)).choose(CONTEXTS[2])
    assert refused.value.code == "choice_invalid"


def test_a_chooser_that_ignores_breakers_or_draws_lots_fails_the_suite() -> None:
    assert "test_what_failed_too_often_is_left_alone" in fails_some(Changed(ignore_breakers))
    assert "test_equal_facts_give_equal_choices" in fails_some(Changed(draw))
    assert fails_some(FixedRules()) == set()
