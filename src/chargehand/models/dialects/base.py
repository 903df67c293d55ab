"""What the dialects have in common, as the gateway sees them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from chargehand.models.contract import Dialect, GatewayFault, Usage

_BLANK = re.compile(rb"\r?\n\r?\n|\r\r")
_EVENT_BYTES = 64 * 1_048_576
EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metered:
    """The tokens of one reply; `hour_writes` of `usage.cache_write` are kept for an hour, at twice the price."""

    usage: Usage
    hour_writes: int = 0


class Tally(Protocol):
    """What is known of one stream so far.

    `deltas` counts pieces of output (one token each at least); `finished`: the model said that it is done;
    `ended`: the last event is there; `failed`: what the provider reported as an error inside the stream.
    """

    deltas: int
    finished: bool
    ended: bool
    failed: str

    def see(self, event: bytes) -> bool:
        """Take in one event; return whether it goes on to the client."""
        ...

    def metered(self) -> Metered:
        """Return the usage reported so far."""
        ...


class DialectRules(Protocol):
    """How one dialect spells limits, usage, errors and streams."""

    name: Dialect

    def error(self, status: int, code: str, message: str) -> bytes:
        """Return the body of an error reply."""
        ...

    def error_event(self, status: int, code: str, message: str) -> bytes:
        """Return the event that breaks a stream off."""
        ...

    def output_limit(self, body: Mapping[str, Any]) -> int | None:
        """Return the output tokens that the client asks for at most, `None` where it does not say."""
        ...

    def choices(self, body: Mapping[str, Any]) -> int:
        """Return how many replies are asked for, each of that length."""
        ...

    def prepared(self, body: Mapping[str, Any], model: str, cap: int | None) -> dict[str, Any]:
        """Return the body for the upstream: its model name, the output limit, usage asked for."""
        ...

    def metered(self, document: Mapping[str, Any]) -> Metered:
        """Return the usage that a whole reply reports."""
        ...

    def tally(self, body: Mapping[str, Any]) -> Tally:
        """Return the counter of one stream, for the client's own body."""
        ...


class EventSplitter:
    """Cuts a byte stream into server-sent events without changing a byte."""

    def __init__(self) -> None:
        self._rest = b""
        self._seen = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that are whole now, each with the blank line behind it."""
        buffer = self._rest + data if self._rest else data
        events, start = [], 0
        for blank in _BLANK.finditer(buffer, self._seen):
            events.append(buffer[start : blank.end()])
            start = blank.end()
        self._rest = buffer[start:]
        # A blank line may be split over two pieces: look again at its last three bytes.
        self._seen = max(0, len(self._rest) - 3)
        if len(self._rest) > _EVENT_BYTES:
            raise GatewayFault("upstream_malformed", f"an event of the stream is larger than {_EVENT_BYTES} B")
        return events

    def rest(self) -> bytes:
        """Return the last event, made whole, where the stream ended without a blank line."""
        rest, self._rest = self._rest, b""
        return rest.rstrip() + b"\n\n" if rest.strip() else b""


def event_data(event: bytes) -> bytes:
    """Return the data of one event, its lines joined."""
    lines = [line[5:].lstrip(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    return lines[0] if len(lines) == 1 else b"\n".join(lines)


def document(data: bytes) -> Any:
    """Decode JSON as a provider sends it; raises `ValueError`."""
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError):
        pass
    try:
        # Takes what JavaScript writes and strict decoders refuse: halves of surrogate pairs, NaN.
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def tokens(value: object) -> int | None:
    """Return a count of tokens, `None` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        return None
    return int(value)


def mapping(value: object) -> Mapping[str, Any]:
    """Return `value` where it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def objects(value: object) -> list[Mapping[str, Any]]:
    """Return the objects of a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


EVENT_STREAMSse = "text/event-stream"
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
