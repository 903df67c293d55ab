"""The status of an action depends only on its lines and on whether its owner lives."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples

from chargehand.core.actions import (
    ACTION_ENDED,
    ActionAnswered,
    ActionAsked,
    ActionBegan,
    ActionCreated,
    ActionFinished,
    ActionQueued,
    fold_action,
)
from chargehand.core.events import GENESIS, Event, Payload, encode
from chargehand.core.records import Reason

MINE, OTHER = "x-mine", "x-other"
WHY = Reason(code="queued", message="others run")


def created(action: str) -> Payload:
    return ActionCreated(
        action=action, kind="fetch", project="p-1", mission=None, arguments={}, seconds=60.0, identity="os:me"
    )


def later(action: str) -> st.SearchStrategy[Payload]:
    ends = st.sampled_from(["done", "failed", "timed_out", "cancelled"])
    made: list[st.SearchStrategy[Any]] = [
        st.just(ActionQueued(action=action, before=1, places=4, reason=WHY)),
        st.just(ActionBegan(action=action, pid=1)),
        st.just(ActionAsked(action=action, text="may it?", rule="r")),
        st.booleans().map(lambda yes: ActionAnswered(action=action, yes=yes, identity="os:me")),
        ends.map(lambda end: ActionFinished(action=action, status=end, seconds=1.0)),
    ]
    return st.one_of(made)


def lines(payloads: list[Payload]) -> list[Event]:
    return [
        Event(
            mission="p-1",
            seq=seq,
            time=f"2026-01-01T00:00:{seq:02}",
            type=payload.type,
            payload=encode(payload),
            digest=GENESIS,
            prev=GENESIS,
            hash=GENESIS,
        )
        for seq, payload in enumerate(payloads, 1)
    ]


HISTORIES = st.lists(later(MINE), max_size=8).map(lambda rest: [created(MINE), *rest])


@given(HISTORIES, st.booleans())
@settings(max_examples=examples(300), deadline=None)
def test_an_action_runs_only_while_its_owner_lives_and_an_end_is_final(history: list[Payload], live: bool) -> None:
    state = fold_action(MINE, lines(history), live=live)
    last = history[-1]
    ends = [payload.status for payload in history if isinstance(payload, ActionFinished)]
    if not live:
        assert state.status not in ("queued", "running")
    if ends:
        assert state.status == ends[0]
    else:
        assert state.status not in ACTION_ENDED - {"lost"}
        assert (state.status == "waiting") == isinstance(last, ActionAsked)
        assert (state.status == "lost") == (not live and not isinstance(last, ActionAsked))


@given(HISTORIES, st.lists(later(OTHER), max_size=8), st.booleans(), st.randoms())
@settings(max_examples=examples(100), deadline=None)
def test_lines_of_others_do_not_count(
    history: list[Payload], others: list[Payload], live: bool, random: Any
) -> None:
    mixed: list[Payload] = []
    left, right = list(history), [created(OTHER), *others]
    while left or right:
        mixed.append((left if not right or (left and random.random() < 0.5) else right).pop(0))
    alone, together = fold_action(MINE, lines(history), live=live), fold_action(MINE, lines(mixed), live=live)
    assert (alone.status, alone.reasons, alone.answer) == (together.status, together.reasons, together.answer)
