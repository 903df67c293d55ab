"""Readings for alerts: durations, endings and breakers from the log, and the machine's levels."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta

import msgspec

from chargehand.core.attempt_events import BreakerChanged, CheckpointMade, ModelCalled, SandboxClosed
from chargehand.core.codec import decode_as
from chargehand.core.config import Config
from chargehand.core.events import Event, read_payload
from chargehand.core.mission_events import MissionFinished, StepFinished
from chargehand.core.state import Ending
from chargehand.missions.causes import ENDED, mission_cause
from chargehand.missions.journal import CHECKS
from chargehand.policy.alerts import Reading, Threshold
from chargehand.reports.alerting.outbox import UntoldNotice
from chargehand.reports.reading import StateReader
from chargehand.reports.state.profile import free_memory

FOLLOWER = "alerts"
FOLLOWED = tuple(
    each.type
    for each in (CheckpointMade, SandboxClosed, StepFinished, MissionFinished, BreakerChanged, ModelCalled)
)
# Calls in a row that failed at the provider, the number that opens its breaker in a worker's gateway. The breaker
# is in that worker's memory; the calls are in the log.
_FAULTS = 3
# An open breaker without a try for this long says nothing about today.
_BREAKER_AGE = timedelta(days=1)


class SettledMission(msgspec.Struct, frozen=True):
    """The time at which a mission was last settled, and whether an engine failure was the cause."""

    time: datetime
    failed: bool


class AlertMemo(msgspec.Struct, kw_only=True):
    """The memo of alerts between rounds: the log up to `position`, and the last value of each rule.

    `checking` adds up, by mission, the seconds that the project's own commands ran since its last verdict.
    `settled` holds the missions of the window, `faults` the failed calls in a row of each provider, `breakers`
    when each open breaker opened, `channels` the last error of each channel ("" after a success), `untold` the
    queued notices.
    """

    position: int | None = None
    looked: datetime | None = None
    checking: dict[str, float] = {}
    settled: dict[str, SettledMission] = {}
    faults: dict[str, int] = {}
    breakers: dict[str, datetime] = {}
    channels: dict[str, str] = {}
    values: dict[str, float] = {}
    untold: tuple[UntoldNotice, ...] = ()


def decode_memo(content: bytes) -> AlertMemo:
    """Decode a memo; return an empty one, which begins with the next line of the log, if it is unreadable."""
    try:
        return decode_as(content, AlertMemo)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return AlertMemo()


def thresholds_of(config: Config) -> dict[str, Threshold]:
    """Return the threshold of each rule from the user's configuration, without rules that cannot occur."""
    alerts, calm = config.alerts, config.alerts.calm
    found = {
        "checkpoint_slow": Threshold(limit=alerts.checkpoint, calm=calm, single=True),
        "validation_slow": Threshold(limit=alerts.validation, calm=calm, single=True),
        "missions_failing": Threshold(limit=alerts.failed_percent / 100, calm=calm),
        "disk_low": Threshold(limit=alerts.disk_percent / 100, calm=calm, below=True),
        "memory_low": Threshold(limit=alerts.memory_percent / 100, calm=calm, below=True),
        # The event that ends them also reports them.
        "breaker_open": Threshold(limit=0.0, calm=0.0),
        "channel_failing": Threshold(limit=0.0, calm=0.0),
    }
    if config.limits.day_usd is not None:
        found["day_budget"] = Threshold(limit=alerts.budget_percent / 100, calm=calm, reached=True)
    return found


def read_log(memo: AlertMemo, event: Event) -> Iterator[Reading]:
    """Yield the readings of one line of the log, and update the memo."""
    now = datetime.fromisoformat(event.time)
    match read_payload(event):
        case CheckpointMade(seconds=float(seconds)):
            yield Reading(rule="checkpoint_slow", value=seconds, time=now)
        case SandboxClosed() as sandbox if sandbox.purpose == CHECKS:
            ran = max(0.0, sandbox.seconds - sandbox.ready_seconds)
            memo.checking[event.mission] = memo.checking.get(event.mission, 0.0) + ran
        case StepFinished() as done if _is_validation(done.step):
            ran = memo.checking.pop(event.mission, 0.0)
            # Two sandboxes may run at once: their sum may exceed the step's duration.
            yield Reading(rule="validation_slow", value=max(0.0, done.seconds - ran), time=now)
        case MissionFinished() as finished if finished.status in ENDED:
            memo.checking.pop(event.mission, None)
            end = Ending(status=finished.status, reasons=finished.reasons, base=None, tree=None)
            cause = mission_cause(end)
            memo.settled[event.mission] = SettledMission(now, cause is not None and cause.kind == "engine")
        case BreakerChanged() as breaker:
            name = breaker.agent if breaker.model is None else f"{breaker.agent} {breaker.model}"
            yield _read_breaker(memo, name, now, is_open=breaker.state != "closed")
        case ModelCalled() as called if called.provider and called.status in ("ok", "failed", "cut"):
            # A client error, or a request to wait, is an answer: the provider is up.
            failed = called.status != "ok" and not 0 < called.http_status < 500
            memo.faults[called.provider] = memo.faults.get(called.provider, 0) + 1 if failed else 0
            if failed and memo.faults[called.provider] < _FAULTS:
                return
            memo.faults = {name: count for name, count in memo.faults.items() if count}
            yield _read_breaker(memo, called.provider, now, is_open=failed)


def _read_breaker(memo: AlertMemo, name: str, now: datetime, *, is_open: bool) -> Reading:
    if is_open:
        memo.breakers[name] = now
    else:
        memo.breakers.pop(name, None)
    return Reading(rule="breaker_open", value=float(is_open), time=now, subject=name)


def read_levels(memo: AlertMemo, reader: StateReader, config: Config, now: datetime) -> Iterator[Reading]:
    """Yield the current readings of the machine, the budget and the memo."""
    # Drop entries that are too old to count.
    since = now - timedelta(seconds=config.alerts.failed_window)
    memo.settled = {mission: each for mission, each in memo.settled.items() if each.time >= since}
    memo.breakers = {name: time for name, time in memo.breakers.items() if now - time < _BREAKER_AGE}
    disk = shutil.disk_usage(reader.home)
    yield Reading(rule="disk_low", value=disk.free / max(1, disk.total), time=now)
    memory = free_memory()
    if memory is not None:
        yield Reading(rule="memory_low", value=memory, time=now)
    if config.limits.day_usd is not None:
        booked = reader.store.spending.booked_on(now.date().isoformat())
        yield Reading(rule="day_budget", value=booked / config.limits.day_usd, time=now)
    failed = sum(each.failed for each in memo.settled.values())
    yield Reading(rule="missions_failing", value=failed / max(1, len(memo.settled)), time=now)
    # Also read raised subjects that are no longer known: that reading ends their alerts.
    raised = {(alert.rule, alert.subject) for alert in reader.store.alerts.raised()}
    for subject in sorted(memo.breakers.keys() | {name for rule, name in raised if rule == "breaker_open"}):
        yield Reading(rule="breaker_open", value=float(subject in memo.breakers), time=now, subject=subject)
    for subject in sorted(memo.channels.keys() | {name for rule, name in raised if rule == "channel_failing"}):
        failing = bool(memo.channels.get(subject))
        yield Reading(rule="channel_failing", value=float(failing), time=now, subject=subject)


def _is_validation(step: str) -> bool:
    parts = step.split("/")
    return parts[0] in ("verdict", "merge-verdict") or (parts[0] == "attempt" and parts[2:] == ["verdict"])
