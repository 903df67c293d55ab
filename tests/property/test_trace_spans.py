"""For any log, spans are made, each once, and alerts can be read from it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.core_strategies import payloads

from chargehand.core.events import GENESIS, Event, Payload, encode
from chargehand.reports.alerting.readings import AlertMemo, read_log
from chargehand.reports.tracing.export import otlp_document
from chargehand.reports.tracing.spans import mission_spans

START = datetime(2026, 1, 1, tzinfo=UTC)


def lines(written: list[Payload], gaps: list[int]) -> list[Event]:
    """Return a log with these payloads, whole seconds apart."""
    found, now = [], START
    for seq, (payload, gap) in enumerate(zip(written, gaps, strict=False), 1):
        now += timedelta(seconds=gap)
        found.append(Event("m-1", seq, now.isoformat(), payload.type, encode(payload), GENESIS, GENESIS, GENESIS))
    return found


LOGS = st.builds(lines, st.lists(payloads(), max_size=20), st.lists(st.integers(0, 100), min_size=20, max_size=20))


@given(LOGS)
def test_spans_of_any_log_are_valid_and_exported_once(log: list[Event]) -> None:
    spans = mission_spans(log)
    assert all(START <= span.start <= span.end for span in spans)
    assert all(span.parent or span.name == "mission" for span in spans)
    for number in range(len(log) + 1):
        assert mission_spans(log[:number]) + mission_spans(log, after=number) == spans
    assert len(otlp_document(spans)["resourceSpans"][0]["scopeSpans"][0]["spans"]) == len(spans)


@given(LOGS)
def test_alerts_are_read_from_any_log(log: list[Event]) -> None:
    memo = AlertMemo()
    for line in log:
        for reading in read_log(memo, line):
            assert reading.time == datetime.fromisoformat(line.time)
