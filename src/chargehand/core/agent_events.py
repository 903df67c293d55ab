"""Event payloads of messages and roles; a new field needs a default, so that older logs still load."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from chargehand.core.events import Payload, event
from chargehand.core.records import Reason


@event("message.delivered")
@dataclass(frozen=True, kw_only=True)
class MessageDelivered(Payload):
    """A message lies before the agent of an attempt; that it was taken into its work is another event's word."""

    message: str
    attempt: str


@event("message.acknowledged")
@dataclass(frozen=True, kw_only=True)
class MessageAcknowledged(Payload):
    """A message is in an agent's work: in its recorded conversation, or its turn with it began."""

    message: str
    attempt: str


@event("message.undelivered")
@dataclass(frozen=True, kw_only=True)
class MessageUndelivered(Payload):
    """A message reached no agent before its mission came to its end."""

    message: str
    reason: Reason


@event("message.received")
@dataclass(frozen=True, kw_only=True)
class MessageReceived(Payload):
    """An agent's end of an attempt as a message; a claim, whatever its status."""

    attempt: str
    message: dict[str, Any] = field(default_factory=dict)


@event("role.chosen")
@dataclass(frozen=True, kw_only=True)
class RoleChosen(Payload):
    """The role that work is done in, with who works in it and why.

    `digest` is the hex SHA-256 of the role's file as it was read, `artifact` holds that text, `origin` says where
    it was read. `models` is the chain of models that may be called, the first one to begin with.
    """

    role: str
    digest: str
    artifact: str
    origin: str
    agent: str
    models: tuple[str, ...]
    writes: bool
    why: str


@event("report.made")
@dataclass(frozen=True, kw_only=True)
class ReportMade(Payload):
    """An attempt in a role that changes nothing ended with what it was for.

    `kind` is `report` or `plan`; `text` is its beginning, at most 4,000 characters, `artifact` holds all of it.
    """

    attempt: str
    role: str
    kind: str
    artifact: str
    text: str
