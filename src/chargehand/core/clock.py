"""Time as a port, so that tests can step it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


# Two kinds of time, since wall time jumps when the machine's clock is set, which must not end a limit early. A
# monotonic value means nothing after a restart, so only differences of it are recorded.
class Clock(Protocol):
    """Wall time for records and monotonic time for limits."""

    def now(self) -> datetime:
        """Return the wall time, timezone-aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go backwards."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Return the wall time in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return `time.monotonic()`."""
        return time.monotonic()


class SteppedClock:
    """A clock that moves only by `advance(seconds)`."""

    def __init__(self, start: datetime | None = None) -> None:
        self._start = start or datetime(2026, 1, 1, tzinfo=UTC)
        self._seconds = 0.0

    def advance(self, seconds: float) -> None:
        """Advance both clocks by `seconds`."""
        self._seconds += seconds

    def now(self) -> datetime:
        """Return the start plus all seconds advanced."""
        return datetime.fromtimestamp(self._start.timestamp() + self._seconds, UTC)

    def monotonic(self) -> float:
        """Return the seconds advanced so far."""
        return self._seconds
