"""The last words on results: the same whatever the order in which they came, and exactly once in the history."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from test_learned_rules import MEANS, outcomes, request
from tests.conftest import examples
from tests.used_state import used_state

from chargehand.core.attempt_events import AttemptStarted
from chargehand.core.choices import ChoiceHistory, ChoiceOutcome
from chargehand.core.clock import SteppedClock
from chargehand.core.events import Payload
from chargehand.core.mission_events import (
    ApplyChanged,
    AttemptFinished,
    BaseResolved,
    FeedbackGiven,
    FeedbackRetracted,
    MissionCreated,
    MissionResumed,
    MissionRolledBack,
    PromotionDone,
    PromotionFollowed,
    VerdictGiven,
)
from chargehand.core.records import Base, Export, Fate, MissionRequest, Presence, Promotion, Verdict
from chargehand.core.truth import MissionTruth
from chargehand.decisions import folds
from chargehand.decisions.arms import write_records
from chargehand.decisions.explanation import explain_choice
from chargehand.decisions.routing.records import TruthFound
from chargehand.reports import outcomes as history_module
from chargehand.reports.outcomes import OutcomeHistory
from chargehand.store.store import open_store

BASE = Base(commit="b" * 40, tree="0" * 40, revision="main", branch="main")
AT = "2026-01-01T00:00:00+00:00"
ATTEMPTS = ("a-1", "a-2")
# Each attempt succeeds and is promoted; the base of the second is the first one's commit.
BEGIN: tuple[Payload, ...] = (
    BaseResolved(base=BASE),
    AttemptFinished(attempt="a-1", status="succeeded", seconds=1.0),
    PromotionDone(ref="r", commit="c-1", tree="1" * 40),
    BaseResolved(base=Base(commit="c-1", tree="1" * 40, revision="main", branch="main")),
    AttemptFinished(attempt="a-2", status="succeeded", seconds=1.0),
    PromotionDone(ref="r", commit="c-2", tree="2" * 40),
)

people = st.sampled_from(["os:ann", "os:ben"])
places = st.sampled_from(["", "f.py:3"])
given_words = st.builds(
    FeedbackGiven, identity=people, attempt=st.sampled_from(ATTEMPTS), good=st.booleans(), place=places
)
words = st.one_of(
    given_words,
    given_words,
    st.builds(FeedbackRetracted, identity=people, attempt=st.sampled_from(["", *ATTEMPTS])),
)
fates = st.one_of(
    st.builds(
        PromotionFollowed,
        commit=st.sampled_from(["c-1", "c-2", "c-3"]),
        fate=st.sampled_from(["merged", "survived", "reverted", "rewritten"]),
        branch=st.just("main"),
    ),
    st.just(MissionRolledBack(ref="r", commit="c-9", tree=BASE.tree)),
)


def fold(*events: Payload) -> MissionTruth:
    truth = MissionTruth()
    for event in events:
        truth = truth.after(event, AT)
    return truth


def expected(attempt: str, said: list[Any], found: list[Any]) -> bool | None:
    """Return the word on an attempt by definition: the last one left standing, else the fate."""
    for place in reversed(range(len(said))):
        word = said[place]
        if not isinstance(word, FeedbackGiven) or word.attempt != attempt:
            continue
        later = said[place + 1 :]
        if not any(
            isinstance(each, FeedbackRetracted)
            and each.identity == word.identity
            and each.attempt in ("", word.attempt)
            for each in later
        ) and not any(
            isinstance(each, FeedbackGiven)
            and (each.identity, each.attempt, each.place) == (word.identity, word.attempt, word.place)
            for each in later
        ):
            return bool(word.good)
    if attempt == "a-1" and any(isinstance(each, MissionRolledBack) for each in found):
        return False
    commit = attempt.replace("a", "c")
    finals = [
        e.fate for e in found if isinstance(e, PromotionFollowed) and e.commit == commit and e.fate != "merged"
    ]
    return finals[0] == "survived" if finals else None


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(words, max_size=8), st.lists(fates, max_size=6), st.randoms(use_true_random=False))
def test_any_interleaving_gives_the_truth_of_the_last_words(
    said: list[Any], found: list[Any], chance: random.Random
) -> None:
    mixed, left = [], [list(said), list(found)]
    while any(left):
        mixed.append(chance.choice([each for each in left if each]).pop(0))
    truth, ordered = fold(*BEGIN, *mixed), fold(*BEGIN, *found, *said)
    for attempt in ATTEMPTS:
        assert truth.find_word(attempt) == ordered.find_word(attempt) == expected(attempt, said, found)
    # The words that count, alone, give the same: nothing else is remembered.
    names = FeedbackGiven.__struct_fields__
    counted = [FeedbackGiven(**{name: getattr(each, name) for name in names}) for each in truth.feedback]
    alone = fold(*BEGIN, *found, *counted)
    assert [alone.find_word(each) for each in ATTEMPTS] == [truth.find_word(each) for each in ATTEMPTS]


def test_a_second_promotion_of_an_attempt_replaces_the_first() -> None:
    truth = fold(*BEGIN[:3], PromotionFollowed(commit="c-1", fate="reverted", branch="main"))
    assert truth.find_word("a-1") is False
    again = truth.after(PromotionDone(ref="r", commit="c-8", tree="8" * 40), AT)
    assert [each.commit for each in again.promotions] == ["c-8"]
    assert again.find_word("a-1") is None


@pytest.mark.parametrize("event", [MissionRolledBack, PromotionDone])
def test_a_roll_back_is_a_fate_also_after_a_crash_in_it_and_a_later_promotion_ends_it(event: type[Any]) -> None:
    survived = fold(*BEGIN[:3], PromotionFollowed(commit="c-1", fate="survived", branch="main"))
    assert survived.find_word("a-1") is True
    truth = survived.after(event(ref="r", commit="c-9", tree=BASE.tree), AT)
    assert [(each.fate, each.by) for each in truth.promotions] == [("rolled_back", "c-9")]
    assert truth.find_word("a-1") is False
    assert truth.after(PromotionDone(ref="r", commit="c-5", tree="5" * 40), AT).find_word("a-1") is None


def test_a_roll_back_of_the_second_attempt_leaves_the_first() -> None:
    truth = fold(*BEGIN, MissionRolledBack(ref="r", commit="c-9", tree="1" * 40))
    assert [(each.attempt, each.fate) for each in truth.promotions] == [("a-1", None), ("a-2", "rolled_back")]


NOW = datetime(2026, 1, 20, tzinfo=UTC)


@pytest.mark.parametrize(
    ("presence", "landed_days_ago", "fate"),
    [
        ("present", 7, "survived"),
        ("present", 6.99, None),
        ("present", -3, None),  # the clock went back
        ("present", None, "merged"),
        ("absent", 1, "rewritten"),
        ("absent", -3, "rewritten"),
        ("absent", None, None),
        ("undone", 100, "reverted"),
        ("undone", None, "reverted"),
    ],
)
def test_a_look_proves_a_fate(presence: Presence, landed_days_ago: float | None, fate: Fate | None) -> None:
    landed = "" if landed_days_ago is None else (NOW - timedelta(days=landed_days_ago)).isoformat()
    promotion = Promotion(attempt="a-1", commit="c-1", base=BASE, landed=landed)
    assert promotion.judge(presence, NOW, days=7) == fate
    assert promotion.judge(presence, NOW, days=10**12) == (None if fate == "survived" else fate)


def test_an_applied_change_is_on_its_branch_from_then_on() -> None:
    applied = ApplyChanged(export=Export(ref="refs/heads/main", state="done"), commit="c-1")
    blocked = ApplyChanged(export=Export(ref="refs/heads/main", state="blocked"), commit="c-1")
    (promotion,) = fold(*BEGIN[:3], blocked).promotions
    assert (promotion.branch, promotion.landed) == ("", "")
    (promotion,) = fold(*BEGIN[:3], applied).promotions
    assert (promotion.branch, promotion.landed) == ("main", AT)


# --- the history


class Missions:
    """A store with missions of two attempts each; appends events at random."""

    def __init__(self, place: Path) -> None:
        self.clock = SteppedClock()
        self.store = open_store(used_state(place), clock=self.clock)
        for mission in ("m-1", "m-2"):
            self.add(mission, created(mission), BaseResolved(base=BASE))

    def add(self, mission: str, *events: Payload) -> None:
        self.clock.advance(1.0)
        self.store.log.append(mission, *events)


def created(mission: str) -> MissionCreated:
    asked = MissionRequest(text="x", agent="x", command=(), slug=mission, seconds=60.0)
    return MissionCreated(project="p-1", repository="/r", request=asked)


def start(attempt: str, number: int) -> AttemptStarted:
    return AttemptStarted(attempt=attempt, number=number, agent="x", workspace="w", tree=BASE.tree)


def end(attempt: str, *, good: bool) -> tuple[Payload, ...]:
    verdict = Verdict(tree="1" * 40, scope="attempt", status="green" if good else "red")
    return (
        VerdictGiven(verdict=verdict, attempt=attempt),
        AttemptFinished(attempt=attempt, status="succeeded" if good else "refused", seconds=1.0),
    )


# The log of one mission: a later event of an attempt never precedes an earlier one.
def logs(mission: str) -> st.SearchStrategy[list[tuple[str, tuple[Payload, ...]]]]:
    def rename(event: FeedbackGiven | FeedbackRetracted) -> Payload:
        return replace(event, attempt=f"{mission}-{event.attempt}") if event.attempt else event

    first, second = (f"{mission}-{each}" for each in ATTEMPTS)
    body = st.lists(st.one_of(words.map(rename), fates), max_size=5)
    return st.builds(
        lambda a, b, good, later, more, resumed: [
            (mission, (start(first, 1),)),
            (mission, end(first, good=a)),
            *([(mission, (PromotionDone(ref="r", commit="c-1", tree="1" * 40),))] if a else []),
            *((mission, (each,)) for each in later),
            *([(mission, (MissionResumed(identity="os:ann"),))] if resumed else []),
            (mission, (start(second, 2),)),
            (mission, end(second, good=good and b)),
            *((mission, (each,)) for each in more),
        ],
        st.booleans(), st.booleans(), st.booleans(), body, body, st.booleans(),
    )  # fmt: skip


@settings(max_examples=examples(40), deadline=None)
@given(logs("m-1"), logs("m-2"), st.randoms(use_true_random=False))
def test_a_history_that_was_extended_equals_one_read_at_once(
    tmp_path_factory: pytest.TempPathFactory, one: list[Any], other: list[Any], chance: random.Random
) -> None:
    missions = Missions(tmp_path_factory.mktemp("state") / "home")
    with missions.store as store:
        extended, pages = OutcomeHistory(lambda: store), [one, other]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(history_module, "_PAGE", chance.choice([1, 2, 1000]))
            while any(pages):
                mission, events = chance.choice([each for each in pages if each]).pop(0)
                missions.add(mission, *events)
                if chance.random() < 0.5:
                    extended()
            found = extended()
        assert found == OutcomeHistory(lambda: store)()
        for mission in ("m-1", "m-2"):
            truth = MissionTruth.of(store.log.read(mission))
            for outcome, attempt in zip(
                [each for each in found.outcomes if each.work == mission], ATTEMPTS, strict=True
            ):
                word = truth.find_word(f"{mission}-{attempt}")
                assert outcome.proved_right == (word if outcome.is_good else None)
    truths = [each for each in write_records(found.outcomes) if isinstance(each, TruthFound)]
    assert len(truths) == sum(each.proved_right is not None for each in found.outcomes)


def judged(*words: bool | None, model: str = "two") -> ChoiceHistory:
    known = outcomes(*[("one", True, 0.5), ("two", True, 0.5)] * 8).outcomes
    left = list(words)

    def judge(each: ChoiceOutcome) -> ChoiceOutcome:
        if each.candidate.model != model or not left:
            return each
        return replace(each, proved_right=left.pop(0))

    return ChoiceHistory(outcomes=tuple(map(judge, known)))


def chance_of(history: ChoiceHistory, name: str) -> float:
    (reason,) = MEANS.choose(request("one", "two"), history).reasons
    found = explain_choice(reason)
    assert found is not None
    assert (found.replayed, found.outcomes) == (True, 16)
    return next(each.chance for each in found.candidates if each.name == name)


def test_promotions_that_were_reverted_lower_the_chance_and_those_that_survived_raise_it() -> None:
    name = "native with two"
    plain = chance_of(judged(), name)
    assert chance_of(judged(False, False, False), name) < plain - 0.02
    assert chance_of(judged(True, True, True), name) > plain
    assert chance_of(judged(None), name) == plain
    chosen = MEANS.choose(request("one", "two"), judged(*[False] * 6)).chosen
    assert chosen is not None
    assert chosen.model == "one"


def test_a_changed_word_is_folded_as_if_the_first_had_never_been_given() -> None:
    asked = request("one", "two")
    for words in ((True, True), (True, False), (None, False), (None, None)):
        kept = MEANS.choose(asked, judged(*words))  # extends or replaces the fold of the history before
        folds._folds = folds._BeliefFolds()
        assert MEANS.choose(asked, judged(*words)) == kept


def test_a_word_on_a_red_attempt_changes_nothing() -> None:
    red = outcomes(*[("one", False, 0.5), ("two", True, 0.5)] * 8).outcomes
    praised = tuple(replace(each, proved_right=True if each.candidate.model == "one" else None) for each in red)
    asked = request("one", "two")
    assert MEANS.choose(asked, ChoiceHistory(outcomes=praised)) == MEANS.choose(asked, ChoiceHistory(outcomes=red))
