"""When and how long to wait before a call is sent again."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

from chargehand.core import Clock

AGAIN = frozenset({429, 500, 502, 503, 529})
_LONGEST_SECONDS = 60.0
_FIRST_SECONDS = 0.5
_JITTER = 0.25


class Retries:
    """The tries that one request has left, and the waits between them."""

    def __init__(self, count: int, clock: Clock, sleep: Callable[[float], Awaitable[object]]) -> None:
        self._left = count
        self._clock = clock
        self._sleep = sleep
        self._next = _FIRST_SECONDS

    async def again(self, headers: Mapping[str, str] | None = None) -> bool:
        """Wait and return true where another try is due; at once false where none is, or the wait is too long."""
        asked = _retry_after(headers or {}, self._clock)
        if self._left <= 0 or (asked or 0.0) > _LONGEST_SECONDS:
            return False
        self._left -= 1
        wait = self._next * (1 + random.uniform(0, _JITTER)) if asked is None else asked
        self._next *= 2
        await self._sleep(wait)
        return True


def _retry_after(headers: Mapping[str, str], clock: Clock) -> float | None:
    given = headers.get("retry-after", "").strip()
    if not given:
        return None
    try:
        return max(0.0, float(given)) if given.replace(".", "", 1).isdigit() else _until(given, clock)
    except (ValueError, OverflowError):
        return None


def _until(date: str, clock: Clock) -> float:
    moment = parsedate_to_datetime(date)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - clock.now()).total_seconds())
