"""Server-sent events as bytes and as records (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from chargehand.models.contract import GatewayFault

EVENT_STREAM = "text/event-stream"
_BLANK = re.compile(rb"\r?\n\r?\n|\r\r")
_LINE_END = re.compile(rb"\r\n|\n|\r")
# The same limit as for a whole reply (`contract.REPLY_BYTES`).
_EVENT_BYTES = 64 * 1_048_576


class EventSplitter:
    """Splits a byte stream into events without changing a byte."""

    def __init__(self) -> None:
        self._rest = b""
        self._seen = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that are complete now, each with the blank line after it."""
        buffer = self._rest + data if self._rest else data
        events = []
        start = 0
        for blank in _BLANK.finditer(buffer, self._seen):
            events.append(buffer[start : blank.end()])
            start = blank.end()
        self._rest = buffer[start:]
        # A blank line may be split over two pieces, so the last three bytes are searched again.
        self._seen = max(0, len(self._rest) - 3)
        if len(self._rest) > _EVENT_BYTES:
            raise GatewayFault("upstream_malformed", f"an event of the stream is larger than {_EVENT_BYTES} B")
        return events

    def rest(self) -> bytes:
        """Return the last event, completed, if the stream ended without a blank line."""
        rest = self._rest
        self._rest = b""
        return rest.rstrip() + b"\n\n" if rest.strip() else b""


def event_data(event: bytes) -> bytes:
    """Return the data of one event with its lines joined."""
    lines = [line[5:].lstrip(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    return lines[0] if len(lines) == 1 else b"\n".join(lines)


class SseEvent(Struct, frozen=True, kw_only=True):
    """One event: its name (may be empty) and its data lines joined by newlines."""

    data: str
    event: str = ""


def parse_events(body: bytes) -> Iterator[SseEvent]:
    """Yield the complete events of a stream, without comments, ids and an incomplete last event."""
    name = ""
    data = list[str]()
    # str.splitlines would also split at characters that JSON may hold unescaped.
    for raw in _LINE_END.split(body)[:-1]:
        line = raw.decode(errors="replace")
        if not line:
            if data:
                yield SseEvent(event=name, data="\n".join(data))
            name = ""
            data = []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)


def event_bytes(data: str, event: str = "") -> bytes:
    """Return one event as bytes for the wire."""
    head = f"event: {event}\n" if event else ""
    return (head + "".join(f"data: {line}\n" for line in data.split("\n")) + "\n").encode()
