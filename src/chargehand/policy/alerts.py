"""Decides when an alert is raised, reported and ended: a pure function of raised alerts and readings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal, NamedTuple, get_args

from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.records import Alert

AlertRule = Literal[
    "checkpoint_slow",
    "validation_slow",
    "missions_failing",
    "disk_low",
    "memory_low",
    "breaker_open",
    "day_budget",
    "channel_failing",
]
ALERT_RULES: tuple[AlertRule, ...] = get_args(AlertRule)
NoticeKind = Literal["raised", "repeated", "ended", "trial"]
# How far a level must recover before it counts as clear, as a part of its limit.
_BAND = 0.1


class Threshold(Struct, frozen=True, kw_only=True):
    """The limit at which a rule's alert begins: above `limit`, with `below` under it, with `reached` also at it.

    A level is read repeatedly, and must recover by a tenth of the limit; `single` readings, such as a duration,
    say nothing about the next one. Both alerts end after `calm` seconds without a breach.
    """

    limit: float
    calm: float
    below: bool = False
    reached: bool = False
    single: bool = False

    def is_breached(self, value: float) -> bool:
        """Return whether a value is an alert."""
        if value == self.limit:
            return self.reached
        return (value < self.limit) == self.below

    def is_clear(self, value: float) -> bool:
        """Return whether a value is far enough from the limit to end a raised alert."""
        band = self.limit * _BAND
        return value >= self.limit + band if self.below else value <= self.limit - band

    def add_breach(self, alert: Alert | None, reading: Reading) -> Alert:
        """Return an alert with another breach; a level that stays unchanged counts once."""
        time = _text(reading.time)
        if alert is None:
            return Alert(
                rule=reading.rule,
                subject=reading.subject,
                raised=time,
                last=time,
                value=reading.value,
                limit=self.limit,
            )
        return replace(
            alert,
            last=_later(alert.last, reading.time),
            value=min(alert.value, reading.value) if self.below else max(alert.value, reading.value),
            count=alert.count + self.single,
        )


class Reading(Struct, frozen=True, kw_only=True):
    """A value read for a rule and subject, and its time."""

    rule: AlertRule
    value: float
    time: datetime
    subject: str = ""


class AlertNotice(Struct, frozen=True, kw_only=True):
    """A report of an alert to a person; `more` is the number of breaches since the last report."""

    kind: NoticeKind
    alert: Alert
    more: int = 0


class AlertDecision(NamedTuple):
    """The changed alerts, including ended ones, and the notices to send."""

    changed: tuple[Alert, ...]
    notices: tuple[AlertNotice, ...]


def decide_alerts(
    raised: Iterable[Alert],
    readings: Sequence[Reading],
    thresholds: Mapping[str, Threshold],
    *,
    now: datetime,
    repeat: float,
) -> AlertDecision:
    """Return the new state of the raised alerts, and new alerts; changes nothing.

    A crossing is reported once. While single breaches continue their number is reported, at most every `repeat`
    seconds. A raised alert stays raised without a clear reading; an alert whose rule has no threshold any more
    ends.
    """
    before: dict[tuple[str, str], Alert] = {(alert.rule, alert.subject): alert for alert in raised}
    alerts, clear = dict(before), set[tuple[str, str]]()
    for reading in readings:
        threshold = thresholds.get(reading.rule)
        key: tuple[str, str] = (reading.rule, reading.subject)
        if threshold is None:
            continue
        clear.discard(key)
        alert = alerts.get(key)
        if threshold.is_breached(reading.value):
            alerts[key] = threshold.add_breach(alert, reading)
        elif alert is not None and threshold.is_clear(reading.value):
            clear.add(key)
        elif alert is not None and not threshold.single:
            alerts[key] = replace(alert, last=_later(alert.last, reading.time))
    notices: list[AlertNotice] = []
    for key, alert in alerts.items():
        threshold, told = thresholds.get(alert.rule), before.get(key)
        may_end = threshold is None or threshold.single or key in clear
        calm = timedelta(seconds=threshold.calm if threshold is not None else 0.0)
        if may_end and now - datetime.fromisoformat(alert.last) >= calm:
            alerts[key] = alert = replace(alert, ended=_text(now))
        kind = _choose_notice(alert, told, now, repeat)
        if kind is not None:
            more = alert.count - alert.told_count
            alerts[key] = replace(alert, told=_text(now), told_count=alert.count)
            notices.append(AlertNotice(kind=kind, alert=alerts[key], more=more))
    changed = tuple(alert for key, alert in alerts.items() if alert != before.get(key))
    return AlertDecision(changed, tuple(notices))


def _choose_notice(alert: Alert, before: Alert | None, now: datetime, repeat: float) -> NoticeKind | None:
    """Return the kind of notice now due for an alert, if any."""
    # An alert that began and ended since the last report was a crossing too, and its end is no separate news.
    if before is None:
        return "raised"
    if alert.ended:
        return "ended"
    due = alert.count > alert.told_count and now - datetime.fromisoformat(alert.told) >= timedelta(seconds=repeat)
    return "repeated" if due else None


def _later(last: str, time: datetime) -> str:
    return max(last, _text(time), key=datetime.fromisoformat)


def _text(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds")
