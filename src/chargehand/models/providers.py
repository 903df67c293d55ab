"""How each provider does: rests it asked for, faults in a row, how much may be asked of it at once."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal

from chargehand.core.clock import Clock, SystemClock
from chargehand.models.contract import GatewayFault, UpstreamReply
from chargehand.models.dialects.base import document, mapping, objects

_MINUTE = 60.0
State = Literal["closed", "open", "half_open"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderLimits:
    """What one provider is given: calls at once and calls begun in a minute, `None` for as many as come.

    After `failures` faults in a row it rests for `rest_seconds`, twice as long each time up to `longest_seconds`.
    """

    concurrency: int | None = None
    per_minute: int | None = None
    failures: int = 3
    rest_seconds: float = 15.0
    longest_seconds: float = 300.0


class Standing:
    """How one provider does; its methods are for one event loop.

    Closed: it is asked. Open: after faults in a row it is left alone for a while. Half open: that while is over,
    and one call, or one probe, finds out whether it is back. A rest that the provider asked for comes on top.
    """

    def __init__(self, name: str, limits: ProviderLimits, clock: Clock) -> None:
        self.name = name
        self._limits = limits
        self._clock = clock
        self._failed = 0
        self._opened = 0
        self._open_until: float | None = None
        self._rests_until = 0.0
        self._trying = False
        self._slots = asyncio.Semaphore(limits.concurrency) if limits.concurrency else None
        self._gate = asyncio.Lock()
        self._turn = 0.0

    @property
    def state(self) -> State:
        """Where its breaker stands."""
        if self._open_until is None:
            return "closed"
        return "open" if self._open_until > self._clock.monotonic() else "half_open"

    @property
    def resting(self) -> float:
        """Seconds of the rest that the provider itself asked for."""
        return max(0.0, self._rests_until - self._clock.monotonic())

    def wait(self) -> float:
        """Return the seconds until it may be asked, 0 for now."""
        if self.state == "half_open" and self._trying:
            return max(self.resting, 1.0)
        opened = 0.0 if self._open_until is None else self._open_until - self._clock.monotonic()
        return max(0.0, self.resting, opened)

    def good(self) -> None:
        """It answered: whatever was held against it is forgotten."""
        self._failed = self._opened = 0
        self._open_until, self._trying = None, False

    def bad(self) -> None:
        """It could not be reached, failed by itself, or broke off."""
        self._failed += 1
        tried, self._trying = self.state == "half_open", False
        if tried or self._failed >= self._limits.failures:
            rest = min(self._limits.longest_seconds, self._limits.rest_seconds * 2**self._opened)
            self._opened = min(self._opened + 1, 16)
            self._open_until = self._clock.monotonic() + rest

    def rest(self, seconds: float) -> None:
        """It asked to be left alone for that long."""
        self._trying = False
        self._rests_until = max(self._rests_until, self._clock.monotonic() + seconds)

    def try_out(self) -> bool:
        """Return whether the caller is the one who finds out if it is back; `good` or `bad` has to follow."""
        if self.state != "half_open" or self._trying or self.resting:
            return False
        self._trying = True
        return True

    def give_up(self) -> None:
        """Whoever was to find out left without knowing."""
        self._trying = False

    @contextlib.asynccontextmanager
    async def place(self, sleep: Callable[[float], Awaitable[object]]) -> AsyncIterator[None]:
        """Wait for a free place and for the minute's share, first come first served, and hold the place."""
        async with self._slots if self._slots is not None else contextlib.nullcontext():
            if self._limits.per_minute:
                # In line, so that whoever leaves while waiting has taken nothing from those behind.
                async with self._gate:
                    if (wait := self._turn - self._clock.monotonic()) > 0:
                        await sleep(wait)
                    self._turn = max(self._clock.monotonic(), self._turn) + _MINUTE / self._limits.per_minute
            yield


class Providers:
    """The standing of every provider, shared by the gateways of one event loop."""

    def __init__(self, limits: Mapping[str, ProviderLimits] | None = None, *, clock: Clock | None = None) -> None:
        self._limits = limits or {}
        self._clock = clock or SystemClock()
        self._known: dict[str, Standing] = {}

    def of(self, name: str) -> Standing:
        """Return the standing of a provider."""
        if name not in self._known:
            self._known[name] = Standing(name, self._limits.get(name, ProviderLimits()), self._clock)
        return self._known[name]

    def states(self) -> dict[str, tuple[State, float]]:
        """Return each provider's breaker and the seconds until it may be asked."""
        return {name: (standing.state, standing.wait()) for name, standing in self._known.items()}


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


QUIET_SECONDS = 10.0
"""Models that think send their head late: so long nobody asks what is the matter."""
PROBE_SECONDS = 2.0
_DEAD_AFTER = 2
Probe = Callable[[float], Awaitable[bool]]


async def head_or_gone(
    sending: Coroutine[Any, Any, UpstreamReply], probe: Probe, standing: Standing | None, *, quiet: float
) -> UpstreamReply:
    """Wait for the head of a reply; after each `quiet` seconds of silence, probe its provider beside it.

    A provider that answers a probe is at work, and the wait goes on. One that fails two in a row is given up: the
    call may have reached it, so it counts as sent, with its cost unknown and its reserve booked. Raises
    `GatewayFault` (`upstream_timeout`) then, and what `sending` raises.
    """
    head = asyncio.create_task(sending)
    failed = 0
    try:
        while not await _ended(head, quiet):
            asked = asyncio.ensure_future(probe(PROBE_SECONDS))
            try:
                await asyncio.wait((head, asked), return_when=asyncio.FIRST_COMPLETED)
                if head.done():
                    break
                failed = 0 if asked.result() else failed + 1
            finally:
                await _dropped(asked)
            if failed and standing is not None:
                standing.bad()
            if failed >= _DEAD_AFTER:
                raise GatewayFault("upstream_timeout", "the provider is silent, and answers no probe either")
        return head.result()
    finally:
        await _dropped(head)


async def _ended(head: asyncio.Task[UpstreamReply], seconds: float) -> bool:
    return bool((await asyncio.wait((head,), timeout=seconds))[0])


async def _dropped(work: asyncio.Future[Any]) -> None:
    if not work.done():
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
