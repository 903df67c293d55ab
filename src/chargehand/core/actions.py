"""Events of manual actions (git, `exec`), and an action's state folded from the log."""

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
    """A person asked for an action with these `arguments`; it may run for `seconds` once it has begun.

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
    """The action waits until one of `places` is free, then starts by itself; `before` others are ahead of it."""

    action: str
    before: int
    places: int
    reason: Reason


@event("action.began")
class ActionBegan(Payload, frozen=True, kw_only=True):
    """The action has its place, after waiting `waited` seconds, and runs; `pid` is the process that owns it."""

    action: str
    pid: int
    waited: float = 0.0


@event("action.asked")
class ActionAsked(Payload, frozen=True, kw_only=True):
    """A rule asks for a person's answer first; an answer is valid for this `subject` only, and once."""

    action: str
    text: str
    rule: str
    subject: dict[str, Any] = field(default_factory=dict)


@event("action.answered")
class ActionAnswered(Payload, frozen=True, kw_only=True):
    """A person allowed or denied the action."""

    action: str
    yes: bool
    identity: str


@event("action.finished")
class ActionFinished(Payload, frozen=True, kw_only=True):
    """The action ended. `exit_code` is that of the program it ran, `None` if it ran no program.

    `result` depends on the kind of action. `lines` is the number of output lines kept; `truncated` marks that
    there were more.
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
# Final statuses. `waiting` (for a person's answer) lasts until the answer.
ACTION_ENDED: frozenset[ActionStatus] = frozenset({"done", "failed", "timed_out", "cancelled", "lost"})
ACTION_TYPES = ("action.created", "action.queued", "action.began", "action.asked", "action.answered",
                "action.finished")  # fmt: skip


class ActionState(Struct, kw_only=True):
    """The state of one action, changed only by `fold_action`. Times are ISO 8601 in UTC, "" for not yet."""

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
    """Return the state of an action from its log; lines of other actions are skipped.

    `live` says whether a process holds its lock. Without one, an action that has neither ended nor asks is lost.
    """
    state = ActionState(id=action)
    for line in lines:
        try:
            payload = decode(line.type, line.payload) if line.payload is not None else None
        except (KeyError, msgspec.DecodeError):  # damaged, or a newer version's
            continue
        # An end is final: a process that was given up for dead may still write that it began.
        if getattr(payload, "action", None) == action and not state.finished:
            _apply(state, payload, line.time)
    if state.finished or state.status == "waiting":
        return state
    # No event records this: a process that was killed could not write one.
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
            # No process owned it while it waited, so a process has to take it up again.
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
