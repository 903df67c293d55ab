"""Actions by hand (git, exec): their event payloads, and their state folded from the log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from chargehand.core.events import Event, Payload, decode, event
from chargehand.core.records import Reason

ActionKind = Literal["fetch", "merge", "rebase", "commit", "push", "exec"]
ActionEnd = Literal["done", "failed", "timed_out", "cancelled"]


@event("action.created")
class ActionCreated(Payload, frozen=True, kw_only=True):
    """A person asked for an action; `arguments` say of what, `seconds` is the time it may take once it began.

    It may be the first line of a project's own log.
    """

    action: str
    kind: ActionKind
    project: str
    mission: str | None
    arguments: dict[str, Any]
    seconds: float
    identity: str
    detached: bool = False


@event("action.queued")
class ActionQueued(Payload, frozen=True, kw_only=True):
    """The action waits until one of `places` is free and goes on by itself; `before` stand in line before it."""

    action: str
    before: int
    places: int
    reason: Reason


@event("action.began")
class ActionBegan(Payload, frozen=True, kw_only=True):
    """The action has its place, after `waited` seconds in line, and runs; `pid` is the process that owns it."""

    action: str
    pid: int
    waited: float = 0.0


@event("action.asked")
class ActionAsked(Payload, frozen=True, kw_only=True):
    """A rule wants a person's word first; an answer holds for this `subject` alone, and once."""

    action: str
    text: str
    rule: str
    subject: dict[str, Any] = field(default_factory=dict)


@event("action.answered")
class ActionAnswered(Payload, frozen=True, kw_only=True):
    """A person said whether the action may go on."""

    action: str
    yes: bool
    identity: str


@event("action.finished")
class ActionFinished(Payload, frozen=True, kw_only=True):
    """The action ended; `exit_code` is that of the program it ran, `None` where it ran none.

    `result` tells what came of it, by kind. `lines` of output were kept; `truncated`: there were more.
    """

    action: str
    status: ActionEnd
    seconds: float
    exit_code: int | None = None
    reasons: tuple[Reason, ...] = ()
    result: dict[str, Any] = field(default_factory=dict)
    lines: int = 0
    truncated: bool = False


ActionStatus = Literal["queued", "waiting", "running", "done", "failed", "timed_out", "cancelled", "lost"]
# Statuses that stay; `waiting` (for a person's answer) stays until there is one.
ACTION_ENDED: frozenset[ActionStatus] = frozenset({"done", "failed", "timed_out", "cancelled", "lost"})
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
        except (KeyError, msgspec.DecodeError):  # damaged, or a newer version's
            continue
        # An end is the last word: whoever was given up for dead may still write that it began.
        if getattr(payload, "action", None) == action and not state.finished:
            _apply(state, payload, line.time)
    if state.finished or state.status == "waiting":
        return state
    # No event says so: a process that was killed could not write one.
    if not live:
        state.status = "lost"
        state.reasons = (Reason(code="action_lost", message="the process that owned it is gone"),)
    return state


def _apply(state: ActionState, payload: object, time: str) -> None:
    match payload:
        case ActionCreated():
            state.kind = payload.kind
            state.project = payload.project
            state.mission = payload.mission
            state.arguments = payload.arguments
            state.limit_seconds = payload.seconds
            state.identity = payload.identity
            state.detached = payload.detached
            state.created = time
        case ActionQueued():
            state.status, state.reasons = "queued", (payload.reason,)
        case ActionBegan():
            state.status = "running"
            state.began = time
            state.reasons = ()
        case ActionAsked():
            state.status = "waiting"
            state.question = payload
            state.answer = None
            state.reasons = (Reason(code="action_asks", message=payload.text),)
        case ActionAnswered():
            # Nobody owned it while it waited, so it has to be taken up again.
            state.status = "queued"
            state.answer = payload.yes
            state.reasons = ()
        case ActionFinished():
            state.status = payload.status
            state.finished = time
            state.exit_code = payload.exit_code
            state.seconds = payload.seconds
            state.reasons = payload.reasons
            state.result = payload.result
            state.lines = payload.lines
            state.truncated = payload.truncated
        case _:
            pass
