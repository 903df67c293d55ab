"""Messages to and from agents, and the questions that a person answers about them.

Two questions do not come from an agent: what to do about a critical message that it did not acknowledge, and the
wait for a provider's quota, which the clock may answer as well as a person.
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
# What a person may answer about a message that was not acknowledged; `GO_ON` also ends a wait for quota.
OPTIONS = (GO_ON, CANCEL, NEXT)
# Until a critical message must be acknowledged; pauses do not count.
ACKNOWLEDGE_SECONDS = 10.0


def requires_next_attempt(state: MissionState, number: int) -> bool:
    """Tell whether a person said of a message to that attempt that it is to be delivered with the next one.

    Nothing that happens after the attempt changes it: a worker that takes the mission over comes to the same.
    """
    attempt = state.attempt(number)
    return attempt is not None and any(
        answer_about(state, attempt.id, each.message) == NEXT for each in state.messages
    )


# --- ends: what is recorded with the end of an attempt and of a mission


def events_of_mission_end(state: MissionState, finished: MissionFinished) -> tuple[Payload, ...]:
    """Return the events of a mission's end: what nobody told of yet, and the end itself.

    That is which messages reached no agent, and that of a task whose result is on a coordinator's branch.
    """
    ends = {"promoted": "it was promoted", "waiting": "it waits for a person to decide about its result"}
    why = ends.get(finished.status, f"it ended as {finished.status}")
    reason = Reason(code="not_delivered", message=f"{why}, and no further attempt will receive the message")

    def was_received(message: MessageSent) -> bool:
        last = state.attempts[-1].id if state.attempts else ""
        # A person moved it to the next attempt: only an acknowledgement shows that this one was made and heard it.
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
    """Record a mission's end, with what comes before it and which messages no agent received until then."""
    journal.record(*before, *events_of_mission_end(journal.state, finished), durable=durable)


def events_of_attempt_end(
    state: MissionState, number: int, outcome: AgentOutcome, reverted: tuple[Reverted, ...]
) -> tuple[Payload, ...]:
    """Return the events of an attempt's end: its agent's message, and what inspection reverted."""
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

    Return its artifact id: the same whenever it is called, as the next attempt is recorded under it.
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
    """Return an outcome; one whose message has the id of an earlier one is no success."""
    if outcome.message is None or outcome.message.id not in {each.message.get("id") for each in state.received}:
        return outcome
    reason = f"the agent's message reuses the id of an earlier one: {outcome.message.id[:200]!r}"
    claim = "failed" if outcome.claim == "done" else outcome.claim
    return replace(outcome, claim=claim, reason=reason, code="malformed_message", message=None)


# --- waiting for quota, and for room on the disk

_DISK_PREFIX = "disk/"

_JITTER_SECONDS = 8.0
_LEAST_SECONDS = 60.0
_MOST_SECONDS = 3600.0


def wake_time(mission: str, until: str) -> datetime:
    """Return when a mission is woken: up to 8 s after its moment, each mission at a time of its own."""
    # A checksum of the id and not a random number: every worker comes to the same moment.
    part = zlib.crc32(mission.encode()) % 1000 / 1000
    return datetime.fromisoformat(until) + timedelta(seconds=_JITTER_SECONDS * part)


def wait_for_quota(
    state: MissionState, name: str, rest: QuotaRest, *, attempt: str, tree: str, now: datetime
) -> tuple[QuestionAsked | None, WaitingError]:
    """Return what records that an attempt waits for quota, and the error that ends it until then.

    `None` where a worker that died right after has recorded it already.
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
    """Return the events with which a mission waits until there is room on the disk again.

    A full disk is nobody's doing: what was done until then stays, and the clock looks whether it goes on. `why`
    says what found no room, and under which limit.
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
    # Waits that the clock ended in vain last at least twice as long each time, up to an hour: a provider that
    # always says "in a minute" is not asked every minute.
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
