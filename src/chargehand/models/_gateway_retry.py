"""When and how long to wait before a call is sent again."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

from chargehand.core import Clock
from chargehand.models._gateway_dialect import document, mapping, objects

AGAIN = frozenset({429, 500, 502, 503, 529})
LONGEST_SECONDS = 60.0
"""A wait that a client does not notice much; what asks for more is a quota, and said so."""
_RESETS = ("anthropic-ratelimit-unified-reset", "x-ratelimit-reset")
_NO_QUOTA = frozenset({"insufficient_quota", "quota_exceeded", "billing_hard_limit_reached"})
_NO_QUOTA_SECONDS = 300.0
"""How long a provider is left alone that has no quota and does not say until when."""
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


def asked_wait(headers: Mapping[str, str], clock: Clock, body: bytes = b"") -> float | None:
    """Return the seconds that a 429 or 503 asks to wait for, `None` where it does not say.

    `Retry-After` in seconds or as a date (RFC 9110), `retry-after-ms`, the second at which a quota of Anthropic's
    begins anew, Google's `RetryInfo`, and the error codes of accounts without quota.
    """
    given = headers.get("retry-after", "").strip()
    if given:
        return _retry_after(given, clock)
    if (millis := headers.get("retry-after-ms", "")).isdigit():
        return int(millis) / 1000
    for name in _RESETS:
        if (moment := headers.get(name, "")).isdigit():
            return max(0.0, int(moment) - clock.now().timestamp())
    return _from_body(body) if body else None


def _from_body(body: bytes) -> float | None:
    try:
        found = document(body)
    except ValueError:
        return None
    error = mapping(mapping(found[0] if isinstance(found, list) and found else found).get("error"))
    for detail in objects(error.get("details")):
        delay = str(detail.get("retryDelay", ""))
        if delay.endswith("s") and delay[:-1].replace(".", "", 1).isdigit():
            return float(delay[:-1])
    return _NO_QUOTA_SECONDS if error.get("code") in _NO_QUOTA or error.get("type") in _NO_QUOTA else None


def _retry_after(given: str, clock: Clock) -> float | None:
    try:
        return max(0.0, float(given)) if given.replace(".", "", 1).isdigit() else _until(given, clock)
    except (ValueError, OverflowError):
        return None


def _until(date: str, clock: Clock) -> float:
    moment = parsedate_to_datetime(date)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - clock.now()).total_seconds())
