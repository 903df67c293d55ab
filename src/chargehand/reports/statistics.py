"""Statistics: outcomes, costs and durations of missions; results of each model; alerts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from chargehand.configuration.extras import has_extra
from chargehand.core.attempt_events import ModelCalled
from chargehand.core.errors import UsageError
from chargehand.core.events import read_payload
from chargehand.core.records import Alert
from chargehand.decisions.explanation import LearnedArm
from chargehand.missions.model_statistics import ModelStats, gather_model_statistics
from chargehand.missions.statistics import (
    AttemptStats,
    CheckpointStats,
    MissionStats,
    NetworkStats,
    Rates,
    SandboxStats,
    gather_statistics,
)
from chargehand.policy.alerts import ALERT_RULES
from chargehand.reports.alerting.readings import FOLLOWER, decode_memo, thresholds_of
from chargehand.reports.alerting.words import LOOK_METRIC as LOOK_METRIC  # these two are parts of this face
from chargehand.reports.alerting.words import READING_METRIC as READING_METRIC
from chargehand.reports.alerting.words import alert_text, prometheus_rules
from chargehand.reports.documents import Document
from chargehand.reports.reading import StateReader, parse_since

# `up` checks the alerts every ten seconds.
_WATCHED_SECONDS = 60.0


class CountedCause(Document, frozen=True):
    """The number of missions and attempts that ended for one cause."""

    kind: str = msgspec.field(name="class")
    code: str | None
    remedy: str
    missions: int
    attempts: int


class StatisticsDocument(Document, frozen=True):
    """`stats`: the missions of one project (`project`), or of all, created at `since` or later."""

    project: str | None
    since: str | None
    missions: MissionStats
    rates: Rates
    attempts: AttemptStats
    causes: list[CountedCause]
    agents: Mapping[str, AttemptStats]
    checkpoints: CheckpointStats
    sandboxes: SandboxStats
    network: NetworkStats


class ModelStatisticsDocument(Document, frozen=True):
    """`model stats`: one entry for each model, provider and address called.

    `learned` has the beliefs about each agent with its model in the project. It is empty unless `learns`:
    decisions are learned, and the optional part for that is installed.
    """

    project: str | None
    since: str | None
    models: list[ModelStats]
    learned: tuple[LearnedArm, ...] = ()
    learns: bool = False


class InvoiceLine(Document, frozen=True):
    """One call that a provider may charge for; tokens and `cost_usd` are null if not reported.

    `input_tokens` include tokens read from or written to a cache. `status` is as in the event `model.called`.
    """

    provider: str
    time: str
    mission: str
    call: str
    model: str
    operation: str
    status: str
    input_tokens: int | None
    cached_tokens: int | None
    cache_write_tokens: int | None
    hour_write_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None
    booked_usd: float


class InvoiceDocument(Document, frozen=True):
    """`model invoice`: the calls in the order in which they ended, for comparison with a provider's invoice."""

    project: str | None
    since: str | None
    lines: list[InvoiceLine]


class StatisticsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The missions to count: of a repository (default: the working directory's) or all; created since when."""

    repo: Path | None = None
    everywhere: bool = False
    since: str | None = None


class AlertDocument(Document, frozen=True):
    """An alert: its start, last breach and number of breaches; `value` is the worst one against `limit`.

    `ended` is null while it is raised, `text` describes it.
    """

    rule: str
    subject: str
    text: str
    raised: str
    last: str
    ended: str | None
    value: float
    limit: float
    count: int


class ChannelDocument(Document, frozen=True):
    """A channel for notices, and why it last failed; null if it succeeded, or was not used yet."""

    channel: str
    problem: str | None


class AlertsDocument(Document, frozen=True):
    """`alerts`: the raised alerts, and the ended ones, the newest first; `looked`: `up` last looked then.

    `watched`: that was less than a minute ago.
    """

    looked: str | None
    watched: bool
    raised: list[AlertDocument]
    ended: list[AlertDocument]
    channels: list[ChannelDocument]


class TrialDocument(Document, frozen=True):
    """`alerts test`: the channels of a trial notice, and the results."""

    channels: list[ChannelDocument]


class AlertMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The number of raised alerts by rule, the last value of each, and its time (seconds since 1970)."""

    raised: Mapping[str, int]
    values: Mapping[str, float]
    looked: float | None


class _Selection(msgspec.Struct, frozen=True, kw_only=True):
    project: str | None
    since: datetime | None

    @property
    def since_text(self) -> str | None:
        return None if self.since is None else self.since.isoformat(timespec="seconds")


def mission_statistics(reader: StateReader, request: StatisticsRequest) -> StatisticsDocument:
    """Return the outcomes of missions. Raises `UsageError`, `StoreError`."""
    chosen = _select(reader, request)
    counted = gather_statistics(
        reader.mission_reader, project=chosen.project, since=chosen.since, known=reader.tallied
    )
    return StatisticsDocument(
        project=chosen.project,
        since=chosen.since_text,
        missions=counted.missions,
        rates=counted.rates,
        attempts=counted.attempts,
        causes=[
            CountedCause(
                kind=one.cause.kind,
                code=one.cause.code,
                remedy=one.cause.remedy,
                missions=one.missions,
                attempts=one.attempts,
            )
            for one in counted.causes
        ],
        agents=counted.agents,
        checkpoints=counted.checkpoints,
        sandboxes=counted.sandboxes,
        network=counted.network,
    )


def model_statistics(reader: StateReader, request: StatisticsRequest) -> ModelStatisticsDocument:
    """Return the results of each model. Raises `UsageError`, `StoreError`."""
    chosen = _select(reader, request)
    models = gather_model_statistics(reader.mission_reader, project=chosen.project, since=chosen.since)
    learned: tuple[LearnedArm, ...] = ()
    learns = reader.user_configuration().config.decisions.learned and has_extra("decisions")
    if learns and chosen.project is not None:
        from chargehand.decisions.learned_arms import learn_arms
        from chargehand.reports.outcomes import OutcomeHistory

        learned = learn_arms(OutcomeHistory(lambda: reader.store)(), chosen.project)
    return ModelStatisticsDocument(
        project=chosen.project, since=chosen.since_text, models=list(models), learned=learned, learns=learns
    )


def model_invoice(reader: StateReader, request: StatisticsRequest) -> InvoiceDocument:
    """Return the calls that providers may charge for; `since` refers to the call, not its mission.

    Raises `UsageError`, `StoreError`.
    """
    chosen = _select(reader, request)
    lines: list[InvoiceLine] = []
    position = 0
    while page := reader.store.log.after(position, project=chosen.project, types=("model.called",)):
        position = page[-1].position
        for event in (each.event for each in page):
            called = read_payload(event)
            # A refused call was never sent, and a replayed one was paid for under the call that it repeats.
            if not isinstance(called, ModelCalled) or called.status in ("refused", "replayed"):
                continue
            if chosen.since is None or datetime.fromisoformat(event.time) >= chosen.since:
                lines.append(
                    InvoiceLine(
                        provider=called.provider,
                        time=event.time,
                        mission=event.mission,
                        call=called.call,
                        model=called.upstream or called.model,
                        operation=called.operation,
                        status=called.status,
                        input_tokens=called.input_tokens,
                        cached_tokens=called.cached_tokens,
                        cache_write_tokens=called.cache_write_tokens,
                        hour_write_tokens=called.hour_write_tokens,
                        output_tokens=called.output_tokens,
                        cost_usd=called.cost_usd if called.cost_known else None,
                        booked_usd=called.booked_usd,
                    )
                )
    return InvoiceDocument(project=chosen.project, since=chosen.since_text, lines=lines)


async def watch_alerts(reader: StateReader) -> None:
    """Raise, report and end alerts until cancelled; one of the components of `chargehand up`."""
    from chargehand.reports.alerting.watch import AlertWatch

    await AlertWatch(reader).run()


async def export_traces(reader: StateReader) -> None:
    """Send the spans of missions as they end, until cancelled; one of the components of `chargehand up`."""
    from chargehand.reports.tracing.export import TraceExporter

    await TraceExporter(reader).run()


def mission_trace(reader: StateReader, mission: str) -> dict[str, Any]:
    """Return the spans of a mission so far as OTLP in JSON, for sending to a collector by hand.

    Raises `NotFoundError`, `StoreError`.
    """
    from chargehand.reports.tracing.export import otlp_document
    from chargehand.reports.tracing.spans import mission_spans

    return otlp_document(mission_spans(reader.store.log.read(reader.find_mission(mission))))


def list_alerts(reader: StateReader, *, limit: int = 50) -> AlertsDocument:
    """Return the raised alerts and at most `limit` ended ones. Raises `StoreError`, `ConfigError`."""
    memo = decode_memo(reader.store.followers.load(FOLLOWER).content)
    looked = memo.looked
    return AlertsDocument(
        looked=None if looked is None else looked.isoformat(timespec="seconds"),
        watched=looked is not None and (reader.clock.now() - looked).total_seconds() < _WATCHED_SECONDS,
        raised=[_alert_document(alert) for alert in reader.store.alerts.raised()],
        ended=[_alert_document(alert) for alert in reader.store.alerts.ended(limit)],
        channels=[_channel_document(name, problem) for name, problem in memo.channels.items()],
    )


def try_channels(reader: StateReader) -> TrialDocument:
    """Send a trial notice through each configured channel. Raises `StoreError`, `ConfigError`."""
    from chargehand.reports.alerting.watch import send_trial

    return TrialDocument(channels=[_channel_document(*each) for each in send_trial(reader).items()])


def show_on_desktop(text: str, environ: Mapping[str, str]) -> None:
    """Show one text with notify-send if it is installed and a person is logged in; a failure has no effect."""
    from chargehand.reports.alerting.channels import show_on_desktop as show

    show(text, environ)


def alert_rules(reader: StateReader) -> str:
    """Return the alerts as Prometheus rules, as YAML. Raises `ConfigError`."""
    return prometheus_rules(thresholds_of(reader.user_configuration().config))


def alert_metrics(reader: StateReader) -> AlertMetrics:
    """Return the metrics of alerts for `/metrics`. Raises `StoreError`."""
    memo = decode_memo(reader.store.followers.load(FOLLOWER).content)
    raised = Counter(alert.rule for alert in reader.store.alerts.raised())
    looked = None if memo.looked is None else memo.looked.timestamp()
    return AlertMetrics(raised={rule: raised[rule] for rule in ALERT_RULES}, values=memo.values, looked=looked)


def _alert_document(alert: Alert) -> AlertDocument:
    return AlertDocument(
        rule=alert.rule,
        subject=alert.subject,
        text=alert_text(alert),
        raised=alert.raised,
        last=alert.last,
        ended=alert.ended or None,
        value=alert.value,
        limit=alert.limit,
        count=alert.count,
    )


def _channel_document(name: str, problem: str) -> ChannelDocument:
    return ChannelDocument(channel=name, problem=problem or None)


def _select(reader: StateReader, request: StatisticsRequest) -> _Selection:
    if request.repo is not None and request.everywhere:
        raise UsageError(f"both --repo {str(request.repo)!r} and --all were given", hint="give one of them")
    since = None if request.since is None else parse_since(request.since, now=reader.clock.now())
    project = None if request.everywhere else reader.projects.current(request.repo)
    return _Selection(project=project.id if project else None, since=since)
