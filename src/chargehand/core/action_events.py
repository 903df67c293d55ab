"""The payloads of actions: what a person asks of git or a sandbox by hand, with an id of its own; see `_payloads`.

An action's lines stand in the log of its mission or, where it has none, in the log of its project.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from chargehand.core.events import Payload, event
from chargehand.core.records import Reason

ActionKind = Literal["fetch", "merge", "rebase", "commit", "push", "exec"]
ActionEnd = Literal["done", "failed", "timed_out", "cancelled"]


@event("action.created")
@dataclass(frozen=True, kw_only=True)
class ActionCreated(Payload):
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
@dataclass(frozen=True, kw_only=True)
class ActionQueued(Payload):
    """The action waits until one of `places` is free and goes on by itself; `before` stand in line before it."""

    action: str
    before: int
    places: int
    reason: Reason


@event("action.began")
@dataclass(frozen=True, kw_only=True)
class ActionBegan(Payload):
    """The action has its place, after `waited` seconds in line, and runs; `pid` is the process that owns it."""

    action: str
    pid: int
    waited: float = 0.0


@event("action.asked")
@dataclass(frozen=True, kw_only=True)
class ActionAsked(Payload):
    """A rule wants a person's word first; an answer holds for this `subject` alone, and once."""

    action: str
    text: str
    rule: str
    subject: dict[str, Any] = field(default_factory=dict)


@event("action.answered")
@dataclass(frozen=True, kw_only=True)
class ActionAnswered(Payload):
    """A person said whether the action may go on."""

    action: str
    yes: bool
    identity: str


@event("action.finished")
@dataclass(frozen=True, kw_only=True)
class ActionFinished(Payload):
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
