"""Reads how long a provider's error reply asks clients to wait."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from chargehand.core.clock import Clock
from chargehand.models._json import as_mapping, as_mappings, parse_json
from chargehand.models.dialects.base import DialectTable

# Seconds. Longer waits are cut to this: no quota is renewed less often than once a month.
LONGEST_REST = 31 * 86_400.0
_NO_QUOTA = frozenset({"insufficient_quota", "quota_exceeded", "billing_hard_limit_reached"})
# The wait for a provider without quota that does not say until when.
_NO_QUOTA_SECONDS = 300.0
# Numbers from here on are a moment in seconds since 1970, smaller ones a number of seconds from now.
_MOMENT_SECONDS = 1e9
# Numbers from here on are a moment in milliseconds since 1970.
_MOMENT_MILLISECONDS = 1e11
_NUMBER = re.compile(r"\d{1,15}(\.\d{1,9})?", re.ASCII)
_DURATION = re.compile(
    r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?", re.ASCII
)
# The seconds of the units in `_DURATION`: days, hours, minutes, seconds, milliseconds.
_UNITS = (86_400.0, 3_600.0, 60.0, 1.0, 0.001)
# Windows outside any dialect: the header of a window's reset, and the header of its remaining quota.
_COMMON_WINDOWS = (
    ("x-ratelimit-reset", "x-ratelimit-remaining"),
    ("ratelimit-reset", "ratelimit-remaining"),
)
_BODY_FIELDS = (
    *("resets_in_seconds", "retry_after", "retry_after_seconds"),
    *("resets_at", "reset_at", "quota_reset_at"),
)


class RequestedWaits:
    """Reads waits from the headers of all dialects, since a router may pass on headers of another's provider."""

    def __init__(self, dialects: DialectTable, clock: Clock) -> None:
        self._clock = clock
        self._resets = tuple(dialect.reset_header for dialect in dialects.values() if dialect.reset_header)
        windows = (window for dialect in dialects.values() for window in dialect.reset_windows)
        self._windows = (*windows, *_COMMON_WINDOWS)

    def read(self, headers: Mapping[str, str], body: bytes = b"") -> float | None:
        """Return the seconds that an error reply asks to wait, or `None` if it does not say.

        The first of these counts: `retry-after` in seconds or as a date (RFC 9110), `retry-after-ms`, a dialect's
        own reset, the resets of single windows (the latest of those that are used up, else the earliest of those
        that do not say how much is left), Google's `RetryInfo`, fields of the body, headers of its provider that a
        router repeats, the codes of accounts without quota (300 s). `headers` have names in lower case. At most
        `LONGEST_REST`.
        """
        now = self._clock.now()
        found = next((wait for wait in self._list_waits(headers, body, now) if wait is not None), None)
        return None if found is None else min(max(0.0, found), LONGEST_REST)

    def _list_waits(self, headers: Mapping[str, str], body: bytes, now: datetime) -> Iterator[float | None]:
        yield _read_retry_after(headers, now)
        millis = headers.get("retry-after-ms", "").strip()
        yield float(millis) / 1000 if _NUMBER.fullmatch(millis) else None
        for name in self._resets:
            yield _read_seconds(headers.get(name, ""), now)
        yield self._read_windows(headers, now)
        try:
            found = parse_json(body)
        except ValueError:
            return
        error = as_mapping(as_mapping(found[0] if isinstance(found, list) and found else found).get("error"))
        for detail in as_mappings(error.get("details")):
            yield _read_seconds(str(detail.get("retryDelay", "")), now)
        for name in _BODY_FIELDS:
            yield _read_seconds(_as_text(error.get(name)), now)
        # The headers that a router got itself (OpenRouter: `error.metadata.headers`).
        told = as_mapping(as_mapping(error.get("metadata")).get("headers"))
        headers = {name.lower(): _as_text(value) for name, value in told.items()}
        yield _read_retry_after(headers, now)
        yield self._read_windows(headers, now)
        if _NO_QUOTA & {_as_text(error.get("code")), _as_text(error.get("type"))}:
            yield _NO_QUOTA_SECONDS

    def _read_windows(self, headers: Mapping[str, str], now: datetime) -> float | None:
        resets = [
            (wait, headers.get(left, "").strip())
            for reset, left in self._windows
            if (wait := _read_seconds(headers.get(reset, ""), now)) is not None
        ]
        used_up = [wait for wait, left in resets if left == "0"]
        if used_up:
            return max(used_up)
        # A window with quota left is not the one that refused the call.
        return min((wait for wait, left in resets if not left), default=None)


def _read_retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    given = headers.get("retry-after", "").strip()
    if _NUMBER.fullmatch(given):
        return float(given)
    try:
        return _count_to(parsedate_to_datetime(given), now)
    except (ValueError, OverflowError):
        return _read_moment(given, now)


def _read_seconds(given: str, now: datetime) -> float | None:
    """Return a reset as seconds from now: a number, a duration such as `6m0s`, or a moment in ISO 8601."""
    given = given.strip()
    if _NUMBER.fullmatch(given):
        number = float(given)
        number = number / 1000 if number >= _MOMENT_MILLISECONDS else number
        return number - now.timestamp() if number >= _MOMENT_SECONDS else number
    spell = _DURATION.fullmatch(given) if given else None
    if spell is not None:
        return sum(float(part) * unit for part, unit in zip(spell.groups(), _UNITS, strict=True) if part)
    return _read_moment(given, now)


def _read_moment(given: str, now: datetime) -> float | None:
    try:
        return _count_to(datetime.fromisoformat(given), now) if given else None
    except (ValueError, OverflowError):
        return None


def _count_to(moment: datetime, now: datetime) -> float:
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - now).total_seconds()


def _as_text(value: object) -> str:
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
