"""Metrics for Prometheus: missions, queue and disk from the projected rows, and durations of requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from chargehand.app.diagnosis import describe_system
from chargehand.reports.reading import StateReader
from chargehand.reports.statistics import LOOK_METRIC, READING_METRIC, alert_metrics

_BUCKET_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The metrics of one server."""

    def __init__(self, reader: StateReader) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_StateCollector(reader))
        self._requests = Histogram(
            "chargehand_request_seconds",
            "Time to answer a request",
            ("route", "status"),
            buckets=_BUCKET_SECONDS,
            registry=self._registry,
        )

    def note_request(self, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(route, str(status)).observe(seconds)

    def render(self) -> bytes:
        """Return all metrics as text. May block: it reads the store."""
        return generate_latest(self._registry)


class _StateCollector(Collector):
    """Reads the store for every scrape, so that it also counts the work of other processes."""

    def __init__(self, reader: StateReader) -> None:
        self._reader = reader

    def describe(self) -> list[Metric]:
        """Return no descriptions: without this method, registering would read the store."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of missions, workers and disk."""
        log = self._reader.store.log
        is_live = self._reader.watched_workers.live
        missions = GaugeMetricFamily("chargehand_missions", "Missions by status", labels=["status"])
        for status, count in log.counts(is_live).items():
            missions.add_metric([status], count)
        yield missions
        system = describe_system(self._reader)
        for name, about, value in (
            ("workers", "Living workers", sum(each.role == "worker" for each in system.workers)),
            ("missions_held", "Missions that a living process holds", system.running),
            ("missions_queued", "Missions that wait for a worker", system.queued),
            ("missions_sleeping", "Missions that wait for quota", system.sleeping),
            ("questions_open", "Questions that wait for a person", system.open_questions),
            ("disk_free_bytes", "Free bytes on the disk of the state directory", system.disk_free_mb << 20),
            ("events", "Lines in all logs", system.position),
        ):
            yield GaugeMetricFamily(f"chargehand_{name}", about, value=value)
        alerts = alert_metrics(self._reader)
        families: tuple[tuple[str, str, Mapping[str, float]], ...] = (
            ("chargehand_alert_raised", "Alerts that are raised", alerts.raised),
            (READING_METRIC, "Last value of the measure that decides an alert", alerts.values),
        )
        for metric, what, values in families:
            family = GaugeMetricFamily(metric, what, labels=["rule"])
            for rule, reading in values.items():
                family.add_metric([rule], reading)
            yield family
        if alerts.looked is not None:
            yield GaugeMetricFamily(LOOK_METRIC, "When alerts were looked at last", value=alerts.looked)
