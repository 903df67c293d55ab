"""Messages to and from agents, and the questions that a person answers about them.

Two questions do not come from an agent: how to handle a critical message that it did not acknowledge, and the wait
for a provider's quota, which the clock or a person may answer.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec.structs import replace

from chargehand.core.attempt_events import MessageReceived, MessageUndelivered
from chargehand.core.errors import WaitingError
from chargehand.core.events import Payload
from chargehand.core.messages import Addressed, decode_message, encode_message, message_document
from chargehand.core.mission_events import CLOCK, ChangesReverted, MessageSent, MissionFinished, QuestionAsked
from chargehand.core.records import Reason, Reverted
from chargehand.core.state import DISK, MissionState, Question, quota_reason
from chargehand.missions._questions import answer_about
from chargehand.missions.journal import Journal
from chargehand.store.store import Store

if TYPE_CHECKING:
    from chargehand.agents.contract import AgentOutcome
    from chargehand.models.contract import QuotaRest

GO_ON, CANCEL, NEXT = "go on", "cancel", "deliver with the next attempt"
# A person's possible answers about an unacknowledged message; `GO_ON` also ends a wait for quota.
OPTIONS = (GO_ON, CANCEL, NEXT)
# Time limit for acknowledging a critical message; pauses do not count.
ACKNOWLEDGE_SECONDS = 10.0


def requires_next_attempt(state: MissionState, number: int) -> bool:
    """Return whether a person moved a message from that attempt to the next one.

    Later events do not change the result: a worker that takes the mission over gets the same one.
    """
    attempt = state.attempt(number)
    return attempt is not None and any(
        answer_about(state, attempt.id, each.message) == NEXT for each in state.messages
    )


# --- events recorded at the end of an attempt or a mission


def events_of_mission_end(state: MissionState, finished: MissionFinished) -> tuple[Payload, ...]:
    """Return the events of a mission's end: the pending ones, and the end itself.

    Pending are messages that reached no agent, and the merge event of a task already on a coordinator's branch.
    """
    ends = {"promoted": "it was promoted", "waiting": "it waits for a person to decide about its result"}
    why = ends.get(finished.status, f"it ended as {finished.status}")
    reason = Reason(code="not_delivered", message=f"{why}, and no further attempt will receive the message")

    def was_received(message: MessageSent) -> bool:
        last = state.attempts[-1].id if state.attempts else ""
        # A person moved it to the next attempt: only an acknowledgement shows that this is that attempt and
        # received it.
        seen = state.acknowledged if answer_about(state, last, message.message) == NEXT else state.delivered
        return message.message in seen

    undelivered = (
        MessageUndelivered(message=each.message, reason=reason)
        for each in state.messages
        if each.message not in state.undelivered and not was_received(each)
    )
    return (*undelivered, *((state.half_merged,) if state.half_merged is not None else ()), finished)


def record_mission_end(
    journal: Journal, finished: MissionFinished, *before: Payload, durable: bool = False
) -> None:
    """Record a mission's end, after the events in `before` and the messages that no agent received."""
    journal.record(*before, *events_of_mission_end(journal.state, finished), durable=durable)


def events_of_attempt_end(
    state: MissionState, number: int, outcome: AgentOutcome, reverted: tuple[Reverted, ...]
) -> tuple[Payload, ...]:
    """Return the events of an attempt's end: its agent's message, and the changes that inspection reverted."""
    attempt = state.attempt(number)
    if attempt is None:
        return ()
    events: list[Payload] = []
    if outcome.message is not None:
        events.append(MessageReceived(attempt=attempt.id, message=message_document(outcome.message)))
    if reverted:
        events.append(ChangesReverted(attempt=attempt.id, reverted=reverted))
    return tuple(events)


# --- messages from one attempt to the next


def store_report_message(store: Store, state: MissionState, report: bytes, number: int) -> str:
    """Store a report on that attempt (JSON of `chargehand.checks.Report`) as the message to the next one's agent.

    Return its artifact id, which is the same on each call, as the next attempt is recorded under it.
    """
    attempt = state.attempt(number)
    assert attempt is not None
    address = Addressed(
        id=f"{attempt.id}/report",
        mission=state.id,
        attempt=attempt.id,
        sender="chargehand",
        recipient=attempt.agent,
    )
    message = encode_message(decode_message(report, address))
    return store.artifacts.put(message, kind="report", mission=state.id)


def reject_repeated_message(outcome: AgentOutcome, state: MissionState) -> AgentOutcome:
    """Return the outcome, without its success if its message reuses an earlier id."""
    if outcome.message is None or outcome.message.id not in {each.message.get("id") for each in state.received}:
        return outcome
    reason = f"the agent's message reuses the id of an earlier one: {outcome.message.id[:200]!r}"
    claim = "failed" if outcome.claim == "done" else outcome.claim
    return replace(outcome, claim=claim, reason=reason, code="malformed_message", message=None)


# --- waiting for quota, and for disk space

_DISK_PREFIX = "disk/"

_JITTER_SECONDS = 8.0
_LEAST_SECONDS = 60.0
_MOST_SECONDS = 3600.0


def wake_time(mission: str, until: str) -> datetime:
    """Return when to wake a mission: up to 8 s after its due time, at a different time for each mission."""
    # A checksum of the id and not a random number: every worker computes the same time.
    part = zlib.crc32(mission.encode()) % 1000 / 1000
    return datetime.fromisoformat(until) + timedelta(seconds=_JITTER_SECONDS * part)


def wait_for_quota(
    state: MissionState, name: str, rest: QuotaRest, *, attempt: str, tree: str, now: datetime
) -> tuple[QuestionAsked | None, WaitingError]:
    """Return the event that records an attempt's wait for quota, and the error that ends the attempt until then.

    The event is `None` if a worker that died right after has already recorded it.
    """
    prefix = f"{attempt}/{name}/"
    before = [asked for asked in state.questions.values() if asked.id.startswith(prefix)]
    if before and before[-1].answer is None:
        reason = before[-1].reason
        return None, WaitingError(reason.message, code=reason.code)
    provider = urlsplit(rest.provider).netloc or rest.provider or rest.model
    question = _ask_clock(before, prefix, rest.until, now=now, provider=provider, attempt=attempt, tree=tree)
    (reason,) = question.reasons
    return question, WaitingError(reason.message, code=reason.code)


def wait_for_room(state: MissionState, now: datetime, *, why: str) -> tuple[QuestionAsked, MissionFinished]:
    """Return the events with which a mission waits until the disk has room again.

    A full disk is no agent's fault: finished work stays, and the clock decides when the mission resumes. `why`
    says what did not fit, and under which limit.
    """
    before = [asked for asked in state.questions.values() if asked.id.startswith(_DISK_PREFIX)]
    attempt = state.attempts[-1].id if state.attempts else None
    tree = state.base.tree if state.base is not None else ""
    question = _ask_clock(before, _DISK_PREFIX, now, now=now, provider=DISK, attempt=attempt, tree=tree)
    found = Reason(code="no_space", message=why)
    return question, MissionFinished(status="waiting", reasons=(*question.reasons, found))


def _ask_clock(
    before: Sequence[Question],
    prefix: str,
    until: datetime,
    *,
    now: datetime,
    provider: str,
    attempt: str | None,
    tree: str,
) -> QuestionAsked:
    """Return the question that the clock answers, not before `until`; `before` are those of the same wait."""
    # After waits that the clock ended in vain, the next lasts at least twice as long, up to an hour: a provider
    # that always says "in a minute" is not asked every minute.
    in_vain = 0
    for asked in reversed(before):
        if asked.identity != CLOCK:
            break
        in_vain += 1
    seconds = min(_MOST_SECONDS, _LEAST_SECONDS * 2.0 ** min(in_vain, 16)) if in_vain else 0.0
    moment = max(until, now + timedelta(seconds=seconds)) + timedelta(seconds=1)
    shown = moment.astimezone(UTC).isoformat(timespec="seconds")
    reason = quota_reason(provider, shown)
    return QuestionAsked(
        question=f"{prefix}{len(before) + 1}",
        tree=tree,
        reasons=(reason,),
        text=reason.message,
        options=(GO_ON,),
        kind="decision",
        attempt=attempt,
        until=shown,
        provider=provider,
    )
