"""Server-sent events as bytes and as records."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

EVENT_STREAM = "text/event-stream"
_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True, kw_only=True)
class SseEvent:
    """One event: its name, empty where it has none, and its data lines joined by newlines."""

    data: str
    event: str = ""


def parse_events(body: bytes) -> Iterator[SseEvent]:
    """Yield the complete events of a stream; comments, ids and an event that is cut short are left out."""
    name, data = "", list[str]()
    # str.splitlines would also split at characters that JSON may hold as they are.
    for raw in _LINE_END.split(body)[:-1]:
        line = raw.decode(errors="replace")
        if not line:
            if data:
                yield SseEvent(event=name, data="\n".join(data))
            name, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)


def event_bytes(data: str, event: str = "") -> bytes:
    """Return one event as it goes over the wire."""
    head = f"event: {event}\n" if event else ""
    return (head + "".join(f"data: {line}\n" for line in data.split("\n")) + "\n").encode()
