"""Diagnoses of failed attempts and risks of promotions, by the shipped networks."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from chargehand.core.errors import NotFoundError, UsageError
from chargehand.decisions.assessment import (
    FailureFacts,
    PromotionFacts,
    assess_promotion,
    diagnose,
)
from chargehand.decisions.beliefs.formats import read_cases
from chargehand.decisions.beliefs.learning import learn_cases
from chargehand.decisions.beliefs.shipping import SHIPPED, shipped_network
from chargehand.missions.causes import load_causes

CLEAR: dict[str, tuple[FailureFacts, str]] = {
    "model_too_weak": (
        FailureFacts(
            cause_class="check",
            end="finished",
            changed=True,
            failing_tests="new",
            same_failure="yes",
            provider_faults=0,
            spent_share=0.6,
            attempt=3,
        ),
        "use_stronger_model",
    ),
    "task_unclear": (
        FailureFacts(cause_class="agent", end="gave_up", changed=False, failing_tests="none", spent_share=0.1),
        "ask_person",
    ),
    "check_flaky": (
        FailureFacts(
            cause_class="check", end="finished", changed=False, failing_tests="new", same_failure="no", attempt=2
        ),
        "run_check_again",
    ),
    "environment_broken": (
        FailureFacts(cause_class="engine", end="crashed", changed=False, failing_tests="old", same_failure="yes"),
        "repair_environment",
    ),
    "provider": (FailureFacts(cause_class="provider", end="crashed", provider_faults=4), "wait_for_provider"),
    "budget": (FailureFacts(cause_class="budget", end="stopped", spent_share=1.0), "raise_budget"),
}


@pytest.mark.parametrize("cause", CLEAR)
def test_each_cause_is_found_from_its_signs(cause: str) -> None:
    facts, step = CLEAR[cause]
    found = diagnose(facts)
    assert (found.cause, found.next_step) == (cause, step)
    assert found.probability == found.causes[cause] > 0.5
    assert sum(found.causes.values()) == pytest.approx(1)
    assert found.network == shipped_network("failure-cause").version


def test_without_facts_a_person_is_asked() -> None:
    found = diagnose(FailureFacts())
    assert found.probability < 0.5
    assert found.next_step == "ask_person"


@pytest.mark.parametrize(
    "changes",
    [
        {"cause_class": "engine"},
        {"end": "crashed"},
        {"changed": False},
        {"failing_tests": "old"},
        {"same_failure": "no"},
        {"provider_faults": 3},
        {"spent_share": 0.95},
        {"attempt": 1},
    ],
)
def test_every_fact_of_a_failure_counts(changes: dict[str, Any]) -> None:
    facts = CLEAR["model_too_weak"][0]
    before, after = diagnose(facts), diagnose(replace(facts, **changes))
    assert abs(before.causes["model_too_weak"] - after.causes["model_too_weak"]) > 0.005


def test_the_causes_classes_are_those_of_the_table() -> None:
    assert set(shipped_network("failure-cause").node("cause_class").states) == set(load_causes().fallbacks)


def test_a_learned_version_changes_the_diagnosis() -> None:
    network = shipped_network("failure-cause")
    facts = FailureFacts(cause_class="check", failing_tests="old", same_failure="yes", changed=True)
    case = (
        b'{"cause": "environment_broken", "cause_class": "check", "failing_tests": "old",'
        b' "same_failure": "yes", "changed": "yes"}\n'
    )
    learned = learn_cases(network, read_cases(case * 30, network)).network
    before, after = diagnose(facts), diagnose(facts, learned)
    assert (before.next_step, after.next_step) == ("ask_person", "repair_environment")
    assert after.network == learned.version != before.network


SAFE = PromotionFacts(
    coverage=1.0, unread_files=0, weakened_tests=False, changed_lines=20, areas=1, attempts=1, kept=20
)


def test_a_small_covered_change_of_a_reliable_author_needs_no_review() -> None:
    found = assess_promotion(SAFE)
    assert found.probability < 0.02
    assert not found.asks_review


def test_a_large_uncovered_change_with_weaker_tests_needs_a_review() -> None:
    facts = PromotionFacts(
        coverage=0.2, unread_files=3, weakened_tests=True, changed_lines=900, areas=4, attempts=4, reverted=2
    )
    found = assess_promotion(facts)
    assert found.probability > 0.6
    assert found.asks_review


@pytest.mark.parametrize(
    "steps",
    [
        [{"coverage": 1.0}, {"coverage": 0.7}, {"coverage": 0.1}],
        [{"unread_files": 0}, {"unread_files": 1}],
        [{"weakened_tests": False}, {"weakened_tests": True}],
        [{"changed_lines": 50}, {"changed_lines": 51}, {"changed_lines": 301}],
        [{"areas": 1}, {"areas": 2}],
        [{"attempts": 1}, {"attempts": 2}, {"attempts": 3}],
        [{"kept": 40}, {"kept": 5}, {"kept": 5, "reverted": 1}, {"kept": 5, "reverted": 4}],
    ],
)
def test_each_bad_sign_raises_the_risk(steps: list[dict[str, Any]]) -> None:
    risks = [assess_promotion(replace(SAFE, **step)).probability for step in steps]
    assert risks == sorted(risks)
    assert risks[-1] > 1.2 * risks[0]


def test_very_long_records_do_not_underflow() -> None:
    for kept, reverted in ((10**6, 0), (0, 10**6), (10**6, 10**6)):
        assert 0 < assess_promotion(replace(SAFE, kept=kept, reverted=reverted)).probability < 1


@pytest.mark.parametrize("wrong", [{"coverage": float("nan")}, {"attempts": -1}, {"kept": -1}])
def test_amounts_below_zero_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="not a number from 0 on"):
        assess_promotion(replace(SAFE, **wrong))


@pytest.mark.parametrize("name", SHIPPED)
def test_every_table_of_a_shipped_network_states_its_reason(name: str) -> None:
    network = shipped_network(name)
    assert "not measured" in network.note
    assert all(len(node.note) > 30 and node.counts for node in network.nodes)


def test_only_shipped_names_are_shipped() -> None:
    with pytest.raises(NotFoundError) as refused:
        shipped_network("failure-case")
    assert "failure-cause" in refused.value.hint
