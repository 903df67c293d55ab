"""Event payloads of messages and roles; a new field needs a default, so that older logs still load."""

from __future__ import annotations

from typing import Any

from msgspec import field

from chargehand.core.events import Payload, event
from chargehand.core.records import Reason


@event("message.delivered")
class MessageDelivered(Payload, frozen=True, kw_only=True):
    """A message lies before the agent of an attempt; that it was taken into its work is another event's word."""

    message: str
    attempt: str


@event("message.acknowledged")
class MessageAcknowledged(Payload, frozen=True, kw_only=True):
    """A message is in an agent's work: in its recorded conversation, or its turn with it began."""

    message: str
    attempt: str


@event("message.undelivered")
class MessageUndelivered(Payload, frozen=True, kw_only=True):
    """A message reached no agent before its mission came to its end."""

    message: str
    reason: Reason


@event("message.received")
class MessageReceived(Payload, frozen=True, kw_only=True):
    """An agent's end of an attempt as a message; a claim, whatever its status."""

    attempt: str
    message: dict[str, Any] = field(default_factory=dict)


@event("role.chosen")
class RoleChosen(Payload, frozen=True, kw_only=True):
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
class ReportMade(Payload, frozen=True, kw_only=True):
    """An attempt in a role that changes nothing ended with what it was for.

    `kind` is `report` or `plan`; `text` is its beginning, at most 4,000 characters, `artifact` holds all of it.
    """

    attempt: str
    role: str
    kind: str
    artifact: str
    text: str
