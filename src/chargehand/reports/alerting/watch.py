"""The component of `chargehand up` that watches thresholds, records alerts and sends notices."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from chargehand.core.errors import ChargehandError
from chargehand.core.records import Alert
from chargehand.policy.alerts import AlertDecision, AlertNotice, Reading, Threshold, decide_alerts
from chargehand.reports._threads import run_in_thread
from chargehand.reports.alerting.channels import ChannelFailedError, NoticeChannel, open_channels
from chargehand.reports.alerting.outbox import Delivery, queue_notices, settle_notices
from chargehand.reports.alerting.readings import (
    FOLLOWED,
    FOLLOWER,
    decode_memo,
    read_levels,
    read_log,
    thresholds_of,
)
from chargehand.reports.alerting.words import NoticeDocument, notice_document
from chargehand.reports.reading import StateReader
from chargehand.store.alerts import FollowerMemo

_LOG = logging.getLogger("chargehand.alerts")
_LOOK_SECONDS = 10.0
# Lines of a page, and pages read in one round: after a long pause several rounds catch up.
_PAGE_LINES = 1000
_MOST_PAGES = 20
# Tries to write the memo, since another process may write it at the same time.
_TRIES = 5


class AlertWatch:
    """Watches one state directory; if several processes do so, one of them records and reports each change.

    A decision is written together with its notices, which are removed once delivered. After a kill in between, the
    process that looks a minute later sends them; a notice that was sent but not removed arrives twice, with one
    id. A failing channel is retried for hours.
    """

    def __init__(self, reader: StateReader) -> None:
        self._reader = reader
        self._stopping = threading.Event()
        self._problem = ""

    async def run(self) -> None:
        """Look every few seconds until cancelled; log each failure once and retry."""
        while True:
            try:
                await run_in_thread(self.look, stopping=self._stopping)
                self._problem = ""
            except (ChargehandError, OSError) as error:
                if str(error) != self._problem:
                    _LOG.warning("alerts are not watched: %s", error)
                self._problem = str(error)
            await asyncio.sleep(_LOOK_SECONDS)

    def look(self) -> tuple[AlertNotice, ...]:
        """Look once, and return the new notices. Raises `StoreError`, `ConfigError`."""
        reader = self._reader
        config, now = reader.user_configuration().config, reader.clock.now()
        kept = reader.store.followers.load(FOLLOWER)
        memo = decode_memo(kept.content)
        channels = open_channels(
            config.alerts, keys=reader.credentials, environ=reader.environ, stopping=self._stopping
        )
        named = [channel.name for channel in channels]
        memo.channels = {name: said for name, said in memo.channels.items() if name in named}
        if memo.position is None:
            memo.position = reader.store.log.last_position()
        readings: list[Reading] = []
        for _ in range(_MOST_PAGES):
            page = reader.store.log.after(memo.position, limit=_PAGE_LINES, types=FOLLOWED)
            for line in page:
                readings += read_log(memo, line.event)
                memo.position = line.position
            if len(page) < _PAGE_LINES:
                break
        readings += read_levels(memo, reader, config, now)
        thresholds = thresholds_of(config)
        raised = reader.store.alerts.raised()
        decided = decide_alerts(raised, readings, thresholds, now=now, repeat=config.alerts.repeat)
        memo.looked = now
        memo.values = _worst_values(readings, raised, decided, thresholds)
        documents = [notice_document(notice) for notice in decided.notices]
        memo.untold, due = queue_notices(memo.untold, documents, named, now)
        written = FollowerMemo(kept.revision, msgspec.json.encode(memo))
        if not reader.store.alerts.save(FOLLOWER, written, decided.changed):
            return ()  # another process looked meanwhile, and reports it
        for document in documents:
            _LOG.warning("%s", document.text)
        # Remove delivered notices channel by channel: the second channel may take long.
        for channel in channels:
            if channel.name in due:
                delivery = send_safely(channel, due[channel.name])
                _note_deliveries(reader, {channel.name: delivery}, due)
        return decided.notices


def send_trial(reader: StateReader) -> dict[str, str]:
    """Send a trial notice by each configured channel; return the error by channel, "" on success.

    The outcome counts like one of `chargehand up`: a channel that works again ends its alert.
    """
    config = reader.user_configuration().config.alerts
    channels = open_channels(config, keys=reader.credentials, environ=reader.environ, stopping=threading.Event())
    notice = trial_notice(reader.clock.now())
    deliveries = {channel.name: send_safely(channel, [notice]) for channel in channels}
    _note_deliveries(reader, deliveries, dict.fromkeys(deliveries, ()))
    return {name: delivery.problem for name, delivery in deliveries.items()}


def send_safely(channel: NoticeChannel, notices: Sequence[NoticeDocument]) -> Delivery:
    """Send notices by a channel, and return the result."""
    try:
        channel.send(notices)
    except ChannelFailedError as error:
        _LOG.warning("%s: %s", channel.name, error)
        return Delivery(frozenset(notice.id for notice in notices[: error.taken]), str(error))
    return Delivery(frozenset(notice.id for notice in notices))


def _note_deliveries(
    reader: StateReader, deliveries: Mapping[str, Delivery], tried: Mapping[str, Sequence[NoticeDocument]]
) -> None:
    """Record which channels work, and remove delivered notices."""
    for _ in range(_TRIES):
        kept = reader.store.followers.load(FOLLOWER)
        memo = decode_memo(kept.content)
        memo.channels |= {name: delivery.problem for name, delivery in deliveries.items()}
        memo.untold = settle_notices(memo.untold, tried, deliveries, reader.clock.now())
        if reader.store.followers.save(FOLLOWER, FollowerMemo(kept.revision, msgspec.json.encode(memo))):
            return


def _worst_values(
    readings: Sequence[Reading],
    raised: Sequence[Alert],
    decided: AlertDecision,
    thresholds: Mapping[str, Threshold],
) -> dict[str, float]:
    """Return the worst value of each rule; that of a single reading counts while its alert is raised."""
    now = {(alert.rule, alert.subject): alert for alert in (*raised, *decided.changed)}
    lasting = [
        alert
        for alert in now.values()
        if not alert.ended and alert.rule in thresholds and thresholds[alert.rule].single
    ]
    values = {rule: 0.0 for rule, threshold in thresholds.items() if not threshold.below}
    found: list[tuple[str, float]] = [(each.rule, each.value) for each in readings]
    for rule, value in [*found, *((alert.rule, alert.value) for alert in lasting)]:
        if rule in thresholds:
            worse = min if thresholds[rule].below else max
            values[rule] = worse(values.get(rule, value), value)
    return values


def trial_notice(now: datetime) -> NoticeDocument:
    """Return the notice sent by `chargehand alerts test`."""
    time = now.isoformat(timespec="milliseconds")
    alert = Alert(rule="trial", subject="", raised=time, last=time, value=0.0, limit=0.0, told=time)
    return notice_document(AlertNotice(kind="trial", alert=alert))
