from __future__ import annotations

from typing import get_args

from core_strategies import payloads, values
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.conftest import examples

from chargehand.core.attempt_events import AttemptStarted
from chargehand.core.events import GENESIS, Event, Payload, encode
from chargehand.core.fold import apply, fold
from chargehand.core.mission_events import (
    AttemptFinished,
    MissionCreated,
    MissionFinished,
    PromotionDone,
    PromotionPrepared,
)
from chargehand.core.records import AttemptStatus, MissionRequest, MissionStatus, Reason
from chargehand.core.state import SETTLED, MissionState

CREATED = MissionCreated(
    project="p", repository="/r", request=MissionRequest(text="fix", agent="a", command=("x",), slug="fix")
)
STARTED = AttemptStarted(attempt="a-1", number=1, agent="a", workspace="w-1", tree="t")


def line(payload: Payload, seq: int = 1) -> Event:
    time = f"2026-01-01T00:00:{seq:02}+00:00"
    return Event("m-1", seq, time, payload.type, encode(payload), "", GENESIS, "")


def log(*given: Payload) -> list[Event]:
    return [line(payload, seq) for seq, payload in enumerate(given, start=1)]


logs = st.builds(
    lambda created, later: log(created, *later),
    values(MissionCreated),
    st.lists(payloads(later=True), max_size=12),
)


@given(logs, st.booleans())
@settings(max_examples=examples(100), deadline=None)
def test_no_sequence_of_events_gives_an_illegal_status(events: list[Event], live: bool) -> None:
    state = fold(events, live=live)
    assert state.status in get_args(MissionStatus)
    assert {attempt.status for attempt in state.attempts} <= set(get_args(AttemptStatus))
    assert state.id == "m-1"
    assert state.created == events[0].time
    assert state.updated == events[-1].time


@given(logs)
@settings(max_examples=examples(40), deadline=None)
def test_a_mission_without_a_worker_is_never_shown_as_running(events: list[Event]) -> None:
    state, held = fold(events, live=False), fold(events, live=True)
    assert state.status in SETTLED | {"planned"}
    assert all(attempt.status != "running" for attempt in state.attempts)
    if held.cancel_asked and held.status in ("running", "paused"):
        assert state.status == "cancelled"
    elif held.status == "running":
        assert (state.status, state.reasons[0].code) == ("paused", "worker_lost")
    else:
        assert (state.status, state.reasons) == (held.status, held.reasons)


@given(logs)
@settings(max_examples=examples(40), deadline=None)
def test_the_state_is_a_function_of_the_log(events: list[Event]) -> None:
    step_by_step = MissionState()
    for event in events:
        apply(step_by_step, event)
    assert step_by_step == fold(events, live=True) == fold(iter(events), live=True)


@given(logs, st.data())
@settings(max_examples=examples(40), deadline=None)
def test_erased_and_unknown_events_are_counted_and_no_more(events: list[Event], data: st.DataObject) -> None:
    place = data.draw(st.integers(1, len(events)))
    extra = data.draw(
        st.sampled_from(
            [
                replace(line(STARTED), payload=None),
                replace(line(STARTED), type="later.version", payload=b'{"what": [1]}'),
                replace(line(STARTED), type="later.version", payload=b"not even JSON"),
            ]
        )
    )
    state = fold([*events[:place], extra, *events[place:]], live=True)
    assert state.unknown_events == 1
    state.unknown_events = 0
    without = fold(events, live=True)
    # Its time counts: how long a mission waited, and its plan's clock, are computed from the times of its lines.
    state.updated, state.waited_seconds = without.updated, without.waited_seconds
    state.plan_elapsed = without.plan_elapsed
    assert state == without


@given(logs, st.data())
@settings(max_examples=examples(40), deadline=None)
def test_any_line_may_be_erased(events: list[Event], data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.integers(0, len(events) - 1)))
    kept = [replace(each, payload=None) if at in gone else each for at, each in enumerate(events)]
    state = fold(kept, live=True)
    assert state.unknown_events == len(gone)
    assert state.status in get_args(MissionStatus)


@given(logs, values(MissionFinished))
@settings(max_examples=examples(40), deadline=None)
def test_the_last_word_is_the_status(events: list[Event], finished: MissionFinished) -> None:
    state = fold([*events, line(finished, 59)], live=True)
    assert (state.status, state.reasons) == (finished.status, finished.reasons)


def test_a_lost_worker_takes_its_running_attempt_along() -> None:
    done = AttemptFinished(attempt="a-1", status="failed", seconds=1.0)
    second = replace(STARTED, attempt="a-2", number=2)
    events = log(CREATED, STARTED, done, second)
    state = fold(events, live=False)
    assert [attempt.status for attempt in state.attempts] == ["failed", "lost"]
    assert state.status == "paused"
    assert [attempt.status for attempt in fold(events, live=True).attempts] == [
        "failed",
        "running",
    ]


def test_an_unknown_cost_is_not_zero() -> None:
    (attempt,) = fold(log(CREATED, STARTED), live=True).attempts
    assert (attempt.cost_usd, attempt.cost_known) == (None, False)


def test_an_unfinished_promotion_is_kept_until_done() -> None:
    prepared = PromotionPrepared(ref="r", old="o", new="n", tree="t")
    assert fold(log(CREATED, prepared), live=False).prepared == prepared
    state = fold(log(CREATED, prepared, PromotionDone(ref="r", commit="n", tree="t")), live=True)
    assert (state.prepared, state.ref, state.commit, state.tree) == (None, "r", "n", "t")


def test_an_empty_log_is_a_planned_mission() -> None:
    assert fold([], live=False) == MissionState()


def test_a_finished_attempt_changes_itself_alone() -> None:
    reasons = (Reason(code="no_change", message="nothing changed"),)
    done = AttemptFinished(
        attempt="a-2", status="refused", seconds=2.0, reasons=reasons, cost_usd=0.5, cost_known=True
    )
    first, second = fold(log(CREATED, STARTED, replace(STARTED, attempt="a-2"), done), live=True).attempts
    assert (first.status, first.cost_usd) == ("running", None)
    assert (second.status, second.cost_usd, second.reasons) == ("refused", 0.5, reasons)
