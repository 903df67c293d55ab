"""The pieces of one reply on their way to the client."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace

from chargehand.models.contract import GatewayFault
from chargehand.models.dialects.base import EventSplitter, Metered, Tally
from chargehand.models.serving.admission import UNKNOWN

LEFT_OUT = "x-chargehand-left-out"
_KEPT_HEADERS = (
    "content-type",
    "retry-after",
    "retry-after-ms",
    "x-request-id",
    "request-id",
    "x-should-retry",
    LEFT_OUT,
)


class Forward:
    """Turns pieces of a stream into what goes on to the client: whole events, as they came."""

    def __init__(self, tally: Tally, limit: int | None) -> None:
        self._tally = tally
        self._limit = limit
        self._split = EventSplitter()

    def take(self, piece: bytes) -> bytes:
        """Return what the piece completes."""
        return self._kept(self._split.feed(piece))

    def finish(self) -> bytes:
        """Return the last event, where the stream ended in the middle of it."""
        rest = self._split.rest()
        return self._kept([rest]) if rest else b""

    def check(self) -> None:
        """Raise where the upstream wrote more than it was allowed to."""
        if self._over():
            raise GatewayFault(
                "budget_exhausted", f"the provider went on past the limit of {self._limit} output tokens"
            )

    def _over(self) -> bool:
        return self._limit is not None and self._tally.deltas > self._limit

    def _kept(self, events: list[bytes]) -> bytes:
        kept = []
        for event in events:
            if self._over() or self._tally.ended:
                break
            goes_on = self._tally.see(event)
            if goes_on and not self._over():
                kept.append(event)
        return b"".join(kept)


def so_far(tally: Tally | None) -> Metered:
    """Return the usage of a reply that is not whole: what it wrote is not known."""
    if tally is None:
        return UNKNOWN
    if tally.finished:
        return tally.metered()
    known = tally.metered().usage
    return Metered(usage=replace(known, output=None, cost_usd=None))


def lower(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers with their names in lower case."""
    return {name.lower(): value for name, value in headers.items()}


def kept_headers(headers: Mapping[str, str], call: str) -> dict[str, str]:
    """Return the headers that the client gets, and the id of its call."""
    kept = {name: headers[name] for name in _KEPT_HEADERS if headers.get(name, "\n").isascii() and name in headers}
    return {**kept, "x-chargehand-call": call}


@contextlib.asynccontextmanager
async def closing(chunks: AsyncIterator[bytes]) -> AsyncGenerator[None, None]:
    """Close what is left of a reply, where it can be closed."""
    try:
        yield
    finally:
        close: Callable[[], Awaitable[None]] | None = getattr(chunks, "aclose", None)
        if close is not None:
            await close()
