"""Alerts as sentences, as notices, and as Prometheus rules."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

import msgspec

from chargehand.core.records import Alert
from chargehand.core.text import format_seconds
from chargehand.policy.alerts import ALERT_RULES, AlertNotice, Threshold

READING_METRIC = "chargehand_alert_reading"
LOOK_METRIC = "chargehand_alerts_look_timestamp_seconds"
# Several rounds: a process that has read nothing for this long is no longer watching.
_UNWATCHED_SECONDS = 120


class NoticeDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a webhook call: `id` is the same for each delivery of a notice; `host` is the sender."""

    id: str
    kind: str
    rule: str
    subject: str
    text: str
    value: float
    limit: float
    count: int
    raised: str
    time: str
    host: str


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 60 else format_seconds(round(value))


def _percent(value: float) -> str:
    return f"{value * 100:.3g} %"


# For each rule: a short name of the problem, and a sentence with its value and limit.
_WORDS: Mapping[str, tuple[str, Callable[[Alert], str]]] = {
    "checkpoint_slow": (
        "slow checkpoints",
        lambda alert: f"A checkpoint took {_seconds(alert.value)}, more than {_seconds(alert.limit)}.",
    ),
    "validation_slow": (
        "slow validations",
        lambda alert: (
            f"A validation took {_seconds(alert.value)} in addition to the project's commands,"
            f" more than {_seconds(alert.limit)}."
        ),
    ),
    "missions_failing": (
        "missions that fail by engine failures",
        lambda alert: (
            f"{_percent(alert.value)} of the missions settled lately failed by an engine failure,"
            f" more than {_percent(alert.limit)}. See: chargehand stats --all --since 1h"
        ),
    ),
    "disk_low": (
        "little free disk",
        lambda alert: (
            f"{_percent(alert.value)} of the disk with the state directory is free,"
            f" less than {_percent(alert.limit)}. To free some: chargehand gc"
        ),
    ),
    "memory_low": (
        "little free memory",
        lambda alert: f"{_percent(alert.value)} of the memory is free, less than {_percent(alert.limit)}.",
    ),
    "breaker_open": (
        "an open breaker",
        lambda alert: f"The breaker of {alert.subject} is open: it failed at least three times in a row.",
    ),
    "day_budget": (
        "the budget of the day",
        lambda alert: f"{_percent(alert.value)} of the day's budget (limits.day_usd) is spent or reserved.",
    ),
    "channel_failing": (
        "notices that do not arrive",
        lambda alert: f"Notices by {alert.subject} do not arrive. See: chargehand alerts test",
    ),
}


def alert_text(alert: Alert) -> str:
    """Describe an alert in one sentence; an alert of another version's rule is shown by name."""
    return _WORDS[alert.rule][1](alert) if alert.rule in _WORDS else f"{alert.rule} {alert.subject}".strip()


def notice_text(notice: AlertNotice) -> str:
    """Return a notice in words."""
    alert, times = notice.alert, f"{notice.alert.count} times"
    match notice.kind:
        case "trial":
            return "This is a trial: notices of Chargehand arrive."
        case "ended":
            short = _WORDS[alert.rule][0] if alert.rule in _WORDS else alert.rule
            about = f"{short} ({alert.subject})" if alert.subject else short
            return f"Over: {about}, raised {alert.raised}{f', {times}' if alert.count > 1 else ''}."
        case "repeated":
            return f"{alert_text(alert)} {notice.more} more since the last notice, {alert.count} in all."
        case "raised":
            return f"{alert_text(alert)} ({times}.)" if alert.count > 1 else alert_text(alert)


def notice_document(notice: AlertNotice) -> NoticeDocument:
    """Return a notice of this machine in the form in which it is sent."""
    alert = notice.alert
    return NoticeDocument(
        id=f"{alert.rule}/{alert.subject}/{alert.raised}/{notice.kind}/{alert.told}",
        kind=notice.kind,
        rule=alert.rule,
        subject=alert.subject,
        text=notice_text(notice),
        value=alert.value,
        limit=alert.limit,
        count=alert.count,
        raised=alert.raised,
        time=alert.told,
        host=socket.gethostname(),
    )


def prometheus_rules(thresholds: Mapping[str, Threshold]) -> str:
    """Return Prometheus alerting rules with the same thresholds, as YAML."""
    import yaml

    rules = [
        {
            "alert": "Chargehand" + "".join(word.capitalize() for word in rule.split("_")),
            "expr": f'{READING_METRIC}{{rule="{rule}"}} {_compare(thresholds[rule])}',
            "labels": {"severity": "warning"},
            "annotations": {"summary": f"{_WORDS[rule][0].capitalize()} on {{{{ $labels.instance }}}}"},
        }
        for rule in ALERT_RULES
        if rule in thresholds
    ]
    rules.append(
        {
            "alert": "ChargehandNotWatched",
            "expr": f"time() - {LOOK_METRIC} > {_UNWATCHED_SECONDS}",
            "labels": {"severity": "warning"},
            "annotations": {"summary": "chargehand up does not watch {{ $labels.instance }}"},
        }
    )
    groups = {"groups": [{"name": "chargehand", "rules": rules}]}
    head = "# Made by `chargehand alerts --prometheus` of the configuration in force; do not edit.\n"
    return head + yaml.safe_dump(groups, sort_keys=False, width=115)


def _compare(threshold: Threshold) -> str:
    sign = ("<" if threshold.below else ">") + ("=" if threshold.reached else "")
    return f"{sign} {threshold.limit:g}"
