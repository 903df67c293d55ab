"""Export of spans to a collector, as OTLP in JSON: a component of `chargehand up` sends them as they end."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from chargehand import __version__
from chargehand.core.codec import decode_as
from chargehand.core.errors import ChargehandError
from chargehand.core.events import Event
from chargehand.core.mission_events import MissionFinished
from chargehand.core.own_config import TracesConfig
from chargehand.core.redaction import Redactor
from chargehand.reports._threads import run_in_thread
from chargehand.reports.reading import StateReader
from chargehand.reports.tracing.spans import Attribute, Span, SpanBuilder
from chargehand.store.alerts import FollowerMemo

FOLLOWER = "traces"
_LOG = logging.getLogger("chargehand.traces")
_PATH = "/v1/traces"
_KINDS = {"internal": 1, "client": 3}
_ERROR = 2
_LOOK_SECONDS = 5.0
_LONGEST_DELAY_SECONDS = 300.0
_REQUEST_SECONDS = 10.0
# The limit of one request; a collector accepts 4 MiB by default.
_MOST_SPANS = 500
# The number of missions whose builders are kept, so that their logs are not read again from the beginning.
_MOST_BUILDERS = 1000


class TraceMemo(msgspec.Struct, kw_only=True):
    """The position of the last line whose spans a collector has; `None` before the first look."""

    position: int | None = None


class ExportFailedError(Exception):
    """A collector did not accept spans; with `permanent` it never will. The message contains no secret."""

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent


class TraceExporter:
    """Sends the spans of missions as they end; the position of sent spans is stored, also over restarts.

    A process that is killed between sending and recording sends the same spans, with the same ids, again.
    """

    def __init__(self, reader: StateReader) -> None:
        self._reader = reader
        self._stopping = threading.Event()
        self._builders: dict[str, SpanBuilder] = {}

    async def run(self) -> None:
        """Send until cancelled; an unreachable collector is retried with growing delays, and logged once."""
        delay, problem = _LOOK_SECONDS, ""
        while True:
            try:
                await run_in_thread(self.export, stopping=self._stopping)
                delay, problem = _LOOK_SECONDS, ""
            except (ChargehandError, ExportFailedError, OSError) as error:
                if str(error) != problem:
                    _LOG.warning("traces are not sent: %s", error)
                delay, problem = min(delay * 2, _LONGEST_DELAY_SECONDS), str(error)
            await asyncio.sleep(delay)

    def export(self) -> int:
        """Send the spans that ended since the last call; return their number.

        Raises `ExportFailedError` if the collector accepts nothing now, `StoreError`, `ConfigError`.
        """
        config = self._reader.user_configuration().config.traces
        if config.endpoint is None:
            return 0
        kept = self._reader.store.followers.load(FOLLOWER)
        position = _decode(kept.content).position
        if position is None:
            # Spans that ended before traces were configured are not sent.
            position = self._reader.store.log.last_position()
            kept = self._keep(kept, position)
        # The builders are kept only if all their spans are sent: otherwise their lines are read again.
        builders, self._builders = self._builders, {}
        sent = 0
        for reached, spans in self._ended_after(position, builders):
            self._send(config, spans)
            kept = self._keep(kept, reached)
            sent += len(spans)
            if self._stopping.is_set():
                return sent
        self._builders = builders
        return sent

    def _ended_after(
        self, position: int, builders: dict[str, SpanBuilder]
    ) -> Iterator[tuple[int, Sequence[Span]]]:
        """Yield the spans that ended after a position, one request at a time, with the position reached."""
        while page := self._reader.store.log.after(position):
            spans: list[Span] = []
            for line in page:
                spans += self._ended_by(line.event, builders)
                if len(spans) >= _MOST_SPANS or line.event.type == MissionFinished.type:
                    yield line.position, spans
                    spans = []
            position = page[-1].position
            yield position, spans

    def _ended_by(self, line: Event, builders: dict[str, SpanBuilder]) -> Sequence[Span]:
        builder = builders.pop(line.mission, None) or SpanBuilder()
        if builder.seq < line.seq - 1:
            # The line continues a log whose earlier lines were processed before.
            missing = line.seq - 1 - builder.seq
            for before in self._reader.store.log.read(line.mission, after=builder.seq, limit=missing):
                builder.take(before)
        if line.type != MissionFinished.type:
            builders[line.mission] = builder
            if len(builders) > _MOST_BUILDERS:
                del builders[next(iter(builders))]
        return builder.take(line)

    def _send(self, config: TracesConfig, spans: Sequence[Span]) -> None:
        for trace in dict.fromkeys(span.trace for span in spans):
            try:
                send_spans(config, [span for span in spans if span.trace == trace], secret=self._secret(config))
            except ExportFailedError as error:
                if not error.permanent:
                    raise
                # Otherwise one mission that a collector refuses would hold back those of all others.
                _LOG.warning("spans of trace %s are left out: %s", trace, error)

    def _secret(self, config: TracesConfig) -> str | None:
        if config.secret is None:
            return None
        found = self._reader.credentials.get(config.secret)
        if found is None:
            raise ExportFailedError(
                f"the secret {config.secret} is not set: chargehand secret set {config.secret}"
            )
        return found

    def _keep(self, kept: FollowerMemo, position: int) -> FollowerMemo:
        written = FollowerMemo(kept.revision, msgspec.json.encode(TraceMemo(position=position)))
        if not self._reader.store.followers.save(FOLLOWER, written):
            raise ExportFailedError("another process sends them as well")
        return FollowerMemo(kept.revision + 1, written.content)


def send_spans(config: TracesConfig, spans: Sequence[Span], *, secret: str | None) -> None:
    """Post spans to the configured collector. Raises `ExportFailedError`."""
    from chargehand.network.http_client import WebClient, WebError

    assert config.endpoint is not None
    base = config.endpoint.rstrip("/")
    url = base if base.endswith(_PATH) else base + _PATH
    headers = {"Content-Type": "application/json"} | ({config.header: secret} if secret else {})
    body = json.dumps(otlp_document(spans)).encode()
    try:
        with WebClient(seconds=_REQUEST_SECONDS) as client:
            status = client.status("POST", url, content=body, headers=headers)
    except WebError as error:
        raise ExportFailedError(f"no answer from the collector: {error}") from None
    if not 200 <= status < 300:
        # Only errors in the spans themselves are permanent.
        raise ExportFailedError(f"the collector answered {status}", permanent=status in (400, 413, 422))


def otlp_document(spans: Sequence[Span]) -> dict[str, Any]:
    """Return spans as the JSON of an OTLP ExportTraceServiceRequest (opentelemetry.io/docs/specs/otlp)."""
    resource: dict[str, Attribute] = {
        "service.name": "chargehand",
        "service.version": __version__,
        "host.name": socket.gethostname(),
    }
    scope = {"name": "chargehand", "version": __version__}
    # Names of agents and programs are chosen by a person, and may contain something like a key.
    found = Redactor().tree([_span(span) for span in spans])
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [{"scope": scope, "spans": found}],
            }
        ]
    }


def _span(span: Span) -> dict[str, Any]:
    made: dict[str, Any] = {
        "traceId": span.trace,
        "spanId": span.id,
        "name": span.name,
        "kind": _KINDS[span.kind],
        "startTimeUnixNano": _nanoseconds(span.start),
        "endTimeUnixNano": _nanoseconds(span.end),
        "attributes": _attributes(span.attributes),
        "events": [
            {
                "name": event.name,
                "timeUnixNano": _nanoseconds(event.time),
                "attributes": _attributes(event.attributes),
            }
            for event in span.events
        ],
        "status": {"code": _ERROR, "message": span.problem} if span.problem else {},
    }
    return made | ({"parentSpanId": span.parent} if span.parent else {})


def _attributes(values: Mapping[str, Attribute]) -> list[dict[str, Any]]:
    def value_of(value: Attribute) -> dict[str, Any]:
        match value:
            case bool():
                return {"boolValue": value}
            case int():
                return {"intValue": str(value)}  # a number in JSON cannot hold 64 bits
            case float():
                return {"doubleValue": value}
        return {"stringValue": value}

    return [{"key": name, "value": value_of(value)} for name, value in values.items()]


def _nanoseconds(time: datetime) -> str:
    # In whole microseconds first: as a float, a present-day time is exact only to a quarter of one.
    return str(round(time.timestamp() * 1_000_000) * 1000)


def _decode(content: bytes) -> TraceMemo:
    try:
        return decode_as(content, TraceMemo)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return TraceMemo()
