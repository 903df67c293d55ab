"""The payloads of messages: whether what was said reached an agent, and what agents say; see `_payloads`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from chargehand.core._events import Payload, event
from chargehand.core._records import Reason


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
