"""The state of an action, folded from its lines of the log and from whether its owner lives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from msgspec import Struct

from chargehand.core.action_events import (
    ActionAnswered,
    ActionAsked,
    ActionBegan,
    ActionCreated,
    ActionFinished,
    ActionKind,
    ActionQueued,
)
from chargehand.core.events import Event, decode
from chargehand.core.records import Reason

ActionStatus = Literal["queued", "waiting", "running", "done", "failed", "timed_out", "cancelled", "lost"]
ACTION_ENDED: frozenset[ActionStatus] = frozenset({"done", "failed", "timed_out", "cancelled", "lost"})
"""Statuses that stay; `waiting` (for a person's answer) stays until there is one."""
ACTION_TYPES = ("action.created", "action.queued", "action.began", "action.asked", "action.answered",
                "action.finished")  # fmt: skip


class ActionState(Struct, kw_only=True):
    """What is known of one action; changed by `fold_action` alone. Times are ISO 8601 in UTC, "" for not yet."""

    id: str
    kind: ActionKind | None = None
    status: ActionStatus = "queued"
    project: str = ""
    mission: str | None = None
    arguments: dict[str, Any] = {}
    limit_seconds: float = 0.0
    identity: str = ""
    detached: bool = False
    created: str = ""
    began: str = ""
    finished: str = ""
    question: ActionAsked | None = None
    answer: bool | None = None
    exit_code: int | None = None
    seconds: float | None = None
    reasons: tuple[Reason, ...] = ()
    result: dict[str, Any] = {}
    lines: int | None = None
    truncated: bool = False


def fold_action(action: str, lines: Iterable[Event], *, live: bool) -> ActionState:
    """Return the state of an action from its log; lines of others are passed over.

    `live` says that a process holds its lock: an action that has not ended and is not asking is lost without one.
    """
    state = ActionState(id=action)
    for line in lines:
        try:
            payload = decode(line.type, line.payload) if line.payload is not None else None
        except (KeyError, msgspec.ValidationError):  # a newer version's
            continue
        if getattr(payload, "action", None) == action and not state.finished:  # an end is the last word
            _apply(state, payload, line.time)
    if state.finished or state.status == "waiting":
        return state
    if not live:
        state.status = "lost"
        state.reasons = (Reason(code="action_lost", message="the process that owned it is gone"),)
    return state


def _apply(state: ActionState, payload: object, time: str) -> None:
    match payload:
        case ActionCreated():
            state.kind, state.project, state.mission = payload.kind, payload.project, payload.mission
            state.arguments, state.limit_seconds = payload.arguments, payload.seconds
            state.identity, state.detached, state.created = payload.identity, payload.detached, time
        case ActionQueued():
            state.status, state.reasons = "queued", (payload.reason,)
        case ActionBegan():
            state.status, state.began, state.reasons = "running", time, ()
        case ActionAsked():
            state.status, state.question, state.answer = "waiting", payload, None
            state.reasons = (Reason(code="action_asks", message=payload.text),)
        case ActionAnswered():
            state.status, state.answer, state.reasons = "queued", payload.yes, ()
        case ActionFinished():
            state.status, state.finished = payload.status, time
            state.exit_code, state.seconds, state.reasons = payload.exit_code, payload.seconds, payload.reasons
            state.result, state.lines, state.truncated = payload.result, payload.lines, payload.truncated
        case _:
            pass
