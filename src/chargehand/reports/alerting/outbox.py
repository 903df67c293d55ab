"""Outbox of notices: every channel delivers each notice at least once, or gives it up."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from chargehand.reports.alerting.words import NoticeDocument

_LOG = logging.getLogger("chargehand.alerts")
# A process that has begun to send a notice has this long, more than all tries of a channel take.
_LEASE = timedelta(seconds=60)
# The wait after each failure. After the last one, or a day, a notice is given up: it is no longer news.
_AGAIN = (timedelta(minutes=1), timedelta(minutes=5), timedelta(minutes=30), timedelta(hours=2))
_LONGEST = timedelta(days=1)
# Queued notices of all channels together.
_MOST = 200


class UntoldNotice(Struct, frozen=True, kw_only=True):
    """A notice that one channel has not accepted yet: its age, next try, and number of failures."""

    channel: str
    notice: NoticeDocument
    since: datetime
    due: datetime
    failures: int = 0


class Delivery(Struct, frozen=True):
    """The result of sending notices by a channel: the ids that it accepted, and the problem with the others."""

    taken: frozenset[str]
    problem: str = ""


def queue_notices(
    waiting: Iterable[UntoldNotice], new: Sequence[NoticeDocument], channels: Sequence[str], now: datetime
) -> tuple[tuple[UntoldNotice, ...], dict[str, list[NoticeDocument]]]:
    """Return the queue with new notices added for each channel, and the due notices by channel, the oldest first.

    Due notices are leased to the caller, so that a second process leaves them alone. Dropped notices are logged.
    """
    later = [each for each in waiting if each.channel in channels]
    made = [
        UntoldNotice(channel=channel, notice=notice, since=now, due=now)
        for channel in channels
        for notice in new
        # A failing channel cannot carry the notice that it fails.
        if (notice.rule, notice.subject) != ("channel_failing", channel)
    ]
    kept = []
    for each in (*later, *made):
        if now - each.since >= _LONGEST:
            _give_up(each, f"a day ago and by {each.failures} failures")
        else:
            kept.append(each)
    for each in kept[:-_MOST]:
        _give_up(each, f"since {_MOST} newer ones wait")
    kept = kept[-_MOST:]
    due: dict[str, list[NoticeDocument]] = {}
    for each in kept:
        if each.due <= now:
            due.setdefault(each.channel, []).append(each.notice)
    return tuple(replace(each, due=now + _LEASE) if each.due <= now else each for each in kept), due


def settle_notices(
    waiting: Iterable[UntoldNotice], tried: Mapping[str, Sequence[NoticeDocument]],
    deliveries: Mapping[str, Delivery], now: datetime,
) -> tuple[UntoldNotice, ...]:  # fmt: skip
    """Return the queue after these deliveries; notices that failed too often are given up and logged."""
    kept = []
    for each in waiting:
        delivery, notice = deliveries.get(each.channel), each.notice
        if delivery is None or notice.id not in {one.id for one in tried[each.channel]}:
            kept.append(each)
        elif notice.id not in delivery.taken:
            if each.failures >= len(_AGAIN):
                _give_up(each, delivery.problem)
            else:
                kept.append(replace(each, due=now + _AGAIN[each.failures], failures=each.failures + 1))
    return tuple(kept)


def _give_up(untold: UntoldNotice, why: str) -> None:
    _LOG.warning("notice %s was given up for %s: %s", untold.notice.id, untold.channel, why)
