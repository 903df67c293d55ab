"""The component of `chargehand up` that watches thresholds, records alerts and sends notices."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from chargehand.app.alerting.channels import ChannelFailedError, NoticeChannel, open_channels
from chargehand.app.alerting.outbox import Delivery, queue_notices, settle_notices
from chargehand.app.alerting.readings import (
    FOLLOWED,
    FOLLOWER,
    decode_memo,
    read_levels,
    read_log,
    thresholds_of,
)
from chargehand.app.alerting.words import NoticeDocument, notice_document
from chargehand.app.reading import StateReader
from chargehand.app.wiring.threads import run_in_thread
from chargehand.core.errors import ChargehandError
from chargehand.core.records import Alert
from chargehand.policy.alerts import AlertDecision, AlertNotice, Reading, Threshold, decide_alerts
from chargehand.store.alerts import FollowerMemo

_LOG = logging.getLogger("chargehand.alerts")
_LOOK_SECONDS = 10.0
# Lines of a page, and pages that one round reads at most: after a long rest several rounds catch up.
_PAGE_LINES = 1000
_MOST_PAGES = 20
# To write the memo, which another process may write at the same moment.
_TRIES = 5


class AlertWatch:
    """Looks at one state directory; of several that do so at once, each change is made and told by one.

    What is decided is written together with what is to be told, and taken off once it was. Where a kill comes in
    between, whoever looks a minute later tells it; what was told and not taken off yet comes twice, by one id. A
    way that takes nothing is tried again for hours.
    """

    def __init__(self, reader: StateReader) -> None:
        self._reader = reader
        self._stopping = threading.Event()
        self._problem = ""

    async def run(self) -> None:
        """Look every few seconds until cancelled; whatever fails is told once and tried again."""
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
        """Look once, and return what was told. Raises `StoreError`, `ConfigError`."""
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
            return ()  # another process looked meanwhile, and tells it
        for document in documents:
            _LOG.warning("%s", document.text)
        # What arrived is taken off channel by channel: the second one may take long.
        for channel in channels:
            if channel.name in due:
                delivery = send_safely(channel, due[channel.name])
                _note_deliveries(reader, {channel.name: delivery}, due)
        return decided.notices


def send_trial(reader: StateReader) -> dict[str, str]:
    """Send a trial notice each way that is configured; return by name why it failed, "" where it did not.

    The outcome counts as one of `chargehand up`: what arrives again is no alert any more.
    """
    config = reader.user_configuration().config.alerts
    channels = open_channels(config, keys=reader.credentials, environ=reader.environ, stopping=threading.Event())
    notice = trial_notice(reader.clock.now())
    deliveries = {channel.name: send_safely(channel, [notice]) for channel in channels}
    _note_deliveries(reader, deliveries, dict.fromkeys(deliveries, ()))
    return {name: delivery.problem for name, delivery in deliveries.items()}


def send_safely(channel: NoticeChannel, notices: Sequence[NoticeDocument]) -> Delivery:
    """Send notices one way, and return what became of them."""
    try:
        channel.send(notices)
    except ChannelFailedError as error:
        _LOG.warning("%s: %s", channel.name, error)
        return Delivery(frozenset(notice.id for notice in notices[: error.taken]), str(error))
    return Delivery(frozenset(notice.id for notice in notices))


def _note_deliveries(
    reader: StateReader, deliveries: Mapping[str, Delivery], tried: Mapping[str, Sequence[NoticeDocument]]
) -> None:
    """Write down which ways work, and which notices need not be told any more."""
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
    """Return the worst value of each rule: of a single reading for as long as its alert is raised."""
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
    """Return the notice that `chargehand alerts test` sends."""
    time = now.isoformat(timespec="milliseconds")
    alert = Alert(rule="trial", subject="", raised=time, last=time, value=0.0, limit=0.0, told=time)
    return notice_document(AlertNotice(kind="trial", alert=alert))
