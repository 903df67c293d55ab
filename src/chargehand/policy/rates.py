"""Limits how often a client may call: a pure function of the given clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from chargehand.core.errors import RateLimitedError

# docs/how-to/mcp-server.md documents these bounds for clients.
_BURST = 200.0
_PER_SECOND = 50.0


class RateLimit:
    """A token bucket: a burst of calls at once, then a number of calls per second."""

    def __init__(
        self,
        *,
        burst: float = _BURST,
        per_second: float = _PER_SECOND,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._burst, self._per_second, self._now = burst, per_second, now
        self._left, self._at = burst, now()

    def take(self, *, hint: str = "") -> None:
        """Take one call from the bucket. Raises `RateLimitedError` if it is empty, with `hint` as another way."""
        wait = self._take_or_wait()
        if wait:
            rate = (
                f"more than {self._per_second:g} calls a second" if self._per_second >= 1 else "too many attempts"
            )
            again = f"try again in {wait} s{hint and f'; {hint}'}"
            raise RateLimitedError(
                rate,
                retry_seconds=wait,
                hint="call again in a second; follow a mission or the feed instead of asking again and again"
                if wait <= 1 and not hint
                else again,
            )

    def try_take(self) -> bool:
        """Take one call from the bucket; return whether one was left."""
        return self._take_or_wait() == 0

    def _take_or_wait(self) -> int:
        """Take one call, or return the whole seconds until the next one."""
        at = self._now()
        self._left = min(self._burst, self._left + (at - self._at) * self._per_second)
        self._at = at
        if self._left < 1:
            return math.ceil((1 - self._left) / self._per_second)
        self._left -= 1
        return 0

    def put_back(self) -> None:
        """Put the last call back, since it does not count."""
        self._left = min(self._burst, self._left + 1)
