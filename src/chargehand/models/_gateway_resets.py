"""How providers say when to ask again, in headers and bodies of errors, read as seconds from now."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from chargehand.core.clock import Clock
from chargehand.models._gateway_dialect import document, mapping, objects

LONGEST_REST = 31 * 86_400.0
"""What says more than that is taken for that: nobody's quota lasts longer than a month."""
_NO_QUOTA = frozenset({"insufficient_quota", "quota_exceeded", "billing_hard_limit_reached"})
_NO_QUOTA_SECONDS = 300.0
"""How long a provider is left alone that has no quota and does not say until when."""
_MILLISECONDS = 1e11
_MOMENT = 1e9
"""Numbers from here on are a moment in seconds since 1970, and from `_MILLISECONDS` on in milliseconds."""
_NUMBER = re.compile(r"\d{1,15}(\.\d{1,9})?", re.ASCII)
_DURATION = re.compile(
    r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?", re.ASCII
)
_UNITS = (86_400.0, 3_600.0, 60.0, 1.0, 0.001)
_WINDOWS = (
    # a window's reset, and what says how much of it is left
    ("anthropic-ratelimit-requests-reset", "anthropic-ratelimit-requests-remaining"),
    ("anthropic-ratelimit-tokens-reset", "anthropic-ratelimit-tokens-remaining"),
    ("anthropic-ratelimit-input-tokens-reset", "anthropic-ratelimit-input-tokens-remaining"),
    ("anthropic-ratelimit-output-tokens-reset", "anthropic-ratelimit-output-tokens-remaining"),
    ("x-ratelimit-reset-requests", "x-ratelimit-remaining-requests"),
    ("x-ratelimit-reset-tokens", "x-ratelimit-remaining-tokens"),
    ("x-ratelimit-reset", "x-ratelimit-remaining"),
    ("ratelimit-reset", "ratelimit-remaining"),
)
_BODY_SECONDS = ("resets_in_seconds", "retry_after", "retry_after_seconds")
_BODY_MOMENTS = ("resets_at", "reset_at", "quota_reset_at")


def asked_wait(headers: Mapping[str, str], clock: Clock, body: bytes = b"") -> float | None:
    """Return the seconds that an error reply asks to wait for, `None` where it does not say.

    The first that says it: `retry-after` in seconds or as a date (RFC 9110), `retry-after-ms`, Anthropic's
    `anthropic-ratelimit-unified-reset`, the resets of single windows (the latest of those that are used up, else
    the earliest of those that do not say how much is left), Google's `RetryInfo`, fields of the body, the codes of
    accounts without quota (300 s). `headers` have names in lower case. At most `LONGEST_REST`.
    """
    now = clock.now()
    for way in (_plain, _millis, _unified, _windows):
        found = way(headers, now)
        if found is not None:
            return _bounded(found)
    found = _from_body(body, now) if body else None
    return None if found is None else _bounded(found)


def _bounded(seconds: float) -> float:
    return min(max(0.0, seconds), LONGEST_REST)


def _plain(headers: Mapping[str, str], now: datetime) -> float | None:
    given = headers.get("retry-after", "").strip()
    if _NUMBER.fullmatch(given):
        return float(given)
    return _until_date(given, now) if given else None


def _millis(headers: Mapping[str, str], now: datetime) -> float | None:
    given = headers.get("retry-after-ms", "").strip()
    return float(given) / 1000 if _NUMBER.fullmatch(given) else None


def _unified(headers: Mapping[str, str], now: datetime) -> float | None:
    return _seconds(headers.get("anthropic-ratelimit-unified-reset", ""), now)


def _windows(headers: Mapping[str, str], now: datetime) -> float | None:
    resets = [(wait, headers.get(left, "").strip()) for reset, left in _WINDOWS
              if (wait := _seconds(headers.get(reset, ""), now)) is not None]  # fmt: skip
    used_up = [wait for wait, left in resets if left == "0"]
    if used_up:
        return max(used_up)
    # A window of which something is left is not what refused the call.
    return min((wait for wait, left in resets if not left), default=None)


def _seconds(given: str, now: datetime) -> float | None:
    """Return a reset as seconds from now: a number, a duration such as `6m0s`, or a moment in ISO 8601."""
    given = given.strip()
    if _NUMBER.fullmatch(given):
        return _from_number(float(given), now)
    spell = _DURATION.fullmatch(given) if given else None
    if spell is not None:
        return sum(float(part) * unit for part, unit in zip(spell.groups(), _UNITS, strict=True) if part)
    return _until_moment(given, now)


def _from_number(number: float, now: datetime) -> float:
    if number >= _MILLISECONDS:
        number /= 1000
    return number - now.timestamp() if number >= _MOMENT else number


def _until_date(given: str, now: datetime) -> float | None:
    try:
        return _from_now(parsedate_to_datetime(given), now)
    except (ValueError, OverflowError):
        return _until_moment(given, now)


def _until_moment(given: str, now: datetime) -> float | None:
    try:
        return _from_now(datetime.fromisoformat(given), now) if given else None
    except (ValueError, OverflowError):
        return None


def _from_now(moment: datetime, now: datetime) -> float:
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - now).total_seconds()


def _from_body(body: bytes, now: datetime) -> float | None:
    try:
        found = document(body)
    except ValueError:
        return None
    error = mapping(mapping(found[0] if isinstance(found, list) and found else found).get("error"))
    ways: tuple[Callable[[], Iterator[float | None]], ...] = (
        lambda: (_seconds(str(detail.get("retryDelay", "")), now) for detail in objects(error.get("details"))),
        lambda: (_seconds(_text(error.get(name)), now) for name in (*_BODY_SECONDS, *_BODY_MOMENTS)),
        lambda: iter([_routed(error, now)]),
    )
    for way in ways:
        for wait in way():
            if wait is not None:
                return wait
    return _NO_QUOTA_SECONDS if _NO_QUOTA & {_text(error.get("code")), _text(error.get("type"))} else None


def _routed(error: Mapping[str, Any], now: datetime) -> float | None:
    """Return what a router tells of the headers that it got itself (OpenRouter: `error.metadata.headers`)."""
    told = mapping(mapping(error.get("metadata")).get("headers"))
    headers = {name.lower(): _text(value) for name, value in told.items()}
    found = _plain(headers, now)
    return _windows(headers, now) if found is None else found


def _text(value: object) -> str:
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
