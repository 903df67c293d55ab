"""When and how long to wait before a call is sent again."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping

from chargehand.core.clock import Clock
from chargehand.models._gateway_resets import asked_wait

AGAIN = frozenset({429, 500, 502, 503, 529})
LONGEST_SECONDS = 60.0
"""A wait that a client does not notice much; what asks for more is a quota, and said so."""
_FIRST_SECONDS = 0.5
_JITTER = 0.25


class Retries:
    """The tries that one request has left, and the waits between them."""

    def __init__(self, count: int, clock: Clock, sleep: Callable[[float], Awaitable[object]]) -> None:
        self._left = count
        self._clock = clock
        self._sleep = sleep
        self._next = _FIRST_SECONDS

    async def again(self, headers: Mapping[str, str] | None = None, body: bytes = b"") -> bool:
        """Wait and return true where another try is due; at once false where none is, or the wait is too long."""
        asked = asked_wait(headers or {}, self._clock, body)
        if self._left <= 0 or (asked or 0.0) > LONGEST_SECONDS:
            return False
        self._left -= 1
        wait = self._next * (1 + random.uniform(0, _JITTER)) if asked is None else asked
        self._next *= 2
        await self._sleep(wait)
        return True
