"""The tier that a mission's sensitivity requires."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.core.errors import TierUnavailableError
from chargehand.core.records import TierCandidate, TierFacts, TierName
from chargehand.policy.tiers import TIERS, choose_tier, in_question, needed_tier, only_documentation

FACTS = st.builds(
    TierFacts, wish=st.just("auto"), trusted=st.booleans(), network=st.booleans(), documentation=st.booleans()
)


def facts(
    *, wish: str = "auto", trusted: bool = False, network: bool = False, docs: bool = False, origin: str = ""
) -> TierFacts:
    return TierFacts(wish=wish, trusted=trusted, network=network, documentation=docs, origin=origin)


def offers(*names: TierName) -> list[TierCandidate]:
    every: tuple[TierName, ...] = ("process", "container", "vm")
    return [
        TierCandidate(
            tier=name, offered=name in names, detail="tried", mend="" if name in names else f"mend {name}"
        )
        for name in every
    ]


@pytest.mark.parametrize(
    ("given_facts", "tier"),
    [
        (facts(trusted=True), "process"),
        (facts(trusted=True, network=True), "process"),
        (facts(), "container"),
        (facts(network=True), "vm"),
        (facts(docs=True), "process"),
        (facts(network=True, docs=True), "container"),
    ],
)
def test_the_tier_needed_for_each_combination_of_facts(given_facts: TierFacts, tier: TierName) -> None:
    assert needed_tier(given_facts)[0] == tier
    choice = choose_tier(given_facts, offers("process", "container", "vm"))
    assert (choice.tier, choice.needed, choice.facts) == (tier, tier, given_facts)
    assert choice.reason
    assert {each.tier for each in choice.candidates} == set(TIERS)


def test_each_fact_can_change_the_needed_tier() -> None:
    """A fact that never changes the result would be computed and then ignored."""
    for name in ("trusted", "network", "documentation"):
        seen = set()
        for values in itertools.product((False, True), repeat=2):
            others = dict(zip(sorted({"trusted", "network", "documentation"} - {name}), values, strict=True))
            tiers = {needed_tier(TierFacts(wish="auto", **{name: flag}, **others))[0] for flag in (False, True)}
            seen.add(len(tiers))
        assert 2 in seen, name


def test_a_stronger_tier_is_chosen_with_a_reason_if_the_needed_tier_is_missing() -> None:
    choice = choose_tier(facts(), offers("process", "vm"))
    assert (choice.tier, choice.needed) == ("vm", "container")
    assert "container is not available here" in choice.reason


@given(FACTS, st.sets(st.sampled_from(["process", "container", "vm"])))
def test_a_tier_weaker_than_needed_is_never_chosen(given_facts: TierFacts, there: set[TierName]) -> None:
    needed = TIERS.index(needed_tier(given_facts)[0])
    enough = [name for name in TIERS[needed:] if name in there]
    if enough:
        assert choose_tier(given_facts, offers(*there)).tier == enough[0]
        return
    with pytest.raises(TierUnavailableError) as caught:
        choose_tier(given_facts, offers(*there))
    assert (caught.value.code, caught.value.exit_code) == ("sandbox_unavailable", 5)
    assert "mend" in caught.value.hint
    assert "chargehand project trust" in caught.value.hint


@given(FACTS)
def test_without_any_offer_the_tier_is_unavailable(given_facts: TierFacts) -> None:
    with pytest.raises(TierUnavailableError):
        choose_tier(given_facts, [])
    assert in_question(given_facts)[0] == needed_tier(given_facts)[0]


def test_a_requested_tier_is_used_and_the_reason_names_where_it_was_requested() -> None:
    weak = choose_tier(facts(wish="process", network=True), [])
    assert (weak.tier, weak.needed) == ("process", "vm")
    for origin in ("--sandbox", "default", "config.toml:3"):
        assert choose_tier(facts(wish="container", origin=origin), []).reason == origin
    assert choose_tier(facts(wish="container", origin=""), []).reason == "the mission's configuration"


@pytest.mark.parametrize(
    ("areas", "is_it"),
    [
        ((), False),
        (("docs/**",), True),
        (("docs/**", "README.md", "CHANGELOG", "*.md", "src/**/*.rst"), True),
        (("docs/**", "src/**"), False),
        (("docs/conf.py",), False),
        (("docs",), False),
        (("*",), False),
        (("requirements.txt",), False),
        (("docs.py",), False),
        (("README.md/../src",), False),
    ],
)
def test_which_areas_are_documentation(areas: tuple[str, ...], is_it: bool) -> None:
    assert only_documentation(areas) is is_it
