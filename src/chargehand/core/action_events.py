"""The payloads of actions: what a person asks of git or a sandbox by hand, with an id of its own; see `_payloads`.

An action's lines stand in the log of its mission or, where it has none, in the log of its project.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import field

from chargehand.core.events import Payload, event
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
