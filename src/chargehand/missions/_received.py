"""Messages that agents end with, and what they are told, as the log and the next attempt have them."""

from __future__ import annotations

from dataclasses import replace

from chargehand.agents.contract import AgentOutcome
from chargehand.core.agent_events import MessageReceived
from chargehand.core.events import Payload
from chargehand.core.messages import Addressed, decode_message, encode_message, message_document
from chargehand.core.mission_events import ChangesReverted
from chargehand.core.records import Finding, Reverted
from chargehand.core.state import MissionState
from chargehand.missions._journal import Journal
from chargehand.store._store import Store

_SENDER = "chargehand"


def keep_told(store: Store, journal: Journal, report: bytes) -> str:
    """Keep a report on an attempt (JSON of `chargehand.checks.Report`) as the message to the next one's agent.

    Return its artifact id.
    """
    attempt = journal.state.attempts[-1]
    known = Addressed(
        id=f"{attempt.id}/report",
        mission=journal.mission,
        attempt=attempt.id,
        sender=_SENDER,
        recipient=attempt.agent,
    )
    message = encode_message(decode_message(report, known))
    return store.artifacts.put(message, kind="report", mission=journal.mission)


def once(outcome: AgentOutcome, state: MissionState) -> AgentOutcome:
    """Return an outcome; one whose message has the id of an earlier one is no success."""
    if outcome.message is None or outcome.message.id not in {each.message.get("id") for each in state.received}:
        return outcome
    reason = f"the agent's message has an id that an earlier one has: {outcome.message.id[:200]!r}"
    claim = "failed" if outcome.claim == "done" else outcome.claim
    return replace(outcome, claim=claim, reason=reason, code="malformed_message", message=None)


def unread_message(outcome: AgentOutcome) -> tuple[Finding, ...]:
    """Return what tells the next attempt that the message of this one could not be read."""
    if outcome.claim != "failed" or outcome.code != "malformed_message":
        return ()
    return (Finding(rule=outcome.code, severity="error", path=".", message=outcome.reason),)


def ended_with(
    journal: Journal, number: int, outcome: AgentOutcome, set_back: tuple[Reverted, ...]
) -> tuple[Payload, ...]:
    """Return the events of an attempt's end: its agent's message, and what inspection set back."""
    begun = journal.state.attempt(number)
    if begun is None:
        return ()
    message = outcome.message
    said = (MessageReceived(attempt=begun.id, message=message_document(message)),) if message is not None else ()
    back = (ChangesReverted(attempt=begun.id, reverted=set_back),) if set_back else ()
    return (*said, *back)
