"""Missions that wait for a provider's quota: until when they sleep, and when they are woken."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

from chargehand.core.errors import WaitingError
from chargehand.core.mission_events import CLOCK, QuestionAsked
from chargehand.core.state import Question, quota_reason
from chargehand.missions._journal import Journal
from chargehand.models.contract import QuotaRest

GO_ON = "go on"
"""What lets a mission go on that waits for quota, whoever says it."""
_JITTER_SECONDS = 8.0
_LEAST_SECONDS = 60.0
_MOST_SECONDS = 3600.0


def wakes_at(mission: str, until: str) -> datetime:
    """Return when a mission is woken: up to 8 s after its moment, each mission at a time of its own."""
    part = zlib.crc32(mission.encode()) % 1000 / 1000
    return datetime.fromisoformat(until) + timedelta(seconds=_JITTER_SECONDS * part)


def asleep(journal: Journal, name: str, rest: QuotaRest, *, attempt: str, tree: str) -> WaitingError:
    """Note that an attempt waits for quota, and return the error that ends it until then.

    What a worker noted that died right after is not noted again. Waits that the clock ended and after which there
    was no quota either last twice as long each time at least, up to an hour: also a provider that always says "in
    a minute" is not asked every minute.
    """
    prefix = f"{attempt}/{name}/"
    before = [asked for asked in journal.state.questions.values() if asked.id.startswith(prefix)]
    if before and before[-1].answer is None:
        reason = before[-1].reason
        return WaitingError(reason.message, code=reason.code)
    least = journal.clock.now() + timedelta(seconds=_least_seconds(before))
    until = (max(rest.until, least) + timedelta(seconds=1)).astimezone(UTC).isoformat(timespec="seconds")
    provider = urlsplit(rest.provider).netloc or rest.provider or rest.model
    reason = quota_reason(provider, until)
    asked = QuestionAsked(
        question=f"{prefix}{len(before) + 1}",
        tree=tree,
        reasons=(reason,),
        text=reason.message,
        options=(GO_ON,),
        attempt=attempt,
        until=until,
        provider=provider,
    )
    journal.note(asked, durable=True)
    return WaitingError(reason.message, code=reason.code)


def _least_seconds(before: Sequence[Question]) -> float:
    in_vain = 0
    for asked in reversed(before):
        if asked.identity != CLOCK:
            break
        in_vain += 1
    return min(_MOST_SECONDS, _LEAST_SECONDS * 2.0 ** min(in_vain, 16)) if in_vain else 0.0
