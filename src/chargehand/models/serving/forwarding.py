"""Forwards a stream to the client event by event, and refuses events that do not fit the dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chargehand.models._json import parse_json
from chargehand.models.contract import GatewayFault
from chargehand.models.dialects.base import RequestFormat, StreamMeter
from chargehand.models.event_stream import EVENT_STREAM, EventSplitter


class StreamForwarder:
    """Turns pieces of a stream into complete, unchanged events for the client.

    `limit` is the granted number of output tokens, `None` for no limit.
    """

    def __init__(self, meter: StreamMeter, limit: int | None) -> None:
        self._meter = meter
        self._limit = limit
        self._split = EventSplitter()

    def take(self, piece: bytes) -> bytes:
        """Return the events that the piece completes."""
        return self._forward(self._split.feed(piece))

    def finish(self) -> bytes:
        """Return the last event if the stream ended in the middle of it."""
        rest = self._split.rest()
        return self._forward([rest]) if rest else b""

    def check_events(self) -> None:
        """Raise `GatewayFault` for a malformed event, and for output beyond the limit."""
        if self._meter.malformed:
            raise GatewayFault("upstream_malformed", self._meter.malformed)
        if self._is_over():
            message = f"the provider exceeded the limit of {self._limit} output tokens"
            raise GatewayFault("budget_exhausted", message)

    def _is_over(self) -> bool:
        return self._limit is not None and self._meter.deltas > self._limit

    def _forward(self, events: list[bytes]) -> bytes:
        kept = []
        for event in events:
            if self._is_over() or self._meter.ended or self._meter.malformed:
                break
            if self._meter.see(event) and not self._is_over():
                kept.append(event)
        return b"".join(kept)


def find_reply_fault(
    rules: RequestFormat, request: Mapping[str, Any], headers: Mapping[str, str], content: bytes
) -> str:
    """Explain why a complete reply does not fit the dialect; "" if clients can read it."""
    if not headers.get("content-type", "").lower().startswith(EVENT_STREAM):
        try:
            return rules.find_fault(parse_json(content))
        except ValueError:
            return "the reply is not JSON"
    meter, split = rules.stream_meter(request), EventSplitter()
    for event in (*split.feed(content), split.rest()):
        if event and not meter.ended:
            meter.see(event)
        if meter.malformed:
            return meter.malformed
    return ""
