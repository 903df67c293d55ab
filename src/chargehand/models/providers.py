"""Provider health, and when to ask again: breakers, rests, retries, probes of a silent provider."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, Literal

from msgspec import Struct

from chargehand.core.clock import Clock, SystemClock
from chargehand.models.contract import GatewayFault, UpstreamReply
from chargehand.models.requested_waits import RequestedWaits

BreakerState = Literal["closed", "open", "half_open"]
# Seconds that a client hardly notices. A provider that asks for more has no quota left for us.
LONGEST_WAIT = 60.0
# Not 408, 504 and 524: a proxy that gave up waiting sends these, and the provider may charge for its reply.
RETRIED_STATUS = frozenset({429, 500, 502, 503, 529})
# How long a provider may be silent before it is probed: reasoning models send their head late.
QUIET_SECONDS = 10.0
PROBE_SECONDS = 2.0
# Probes in a row without an answer.
_DEAD_AFTER = 2
_MINUTE_SECONDS = 60.0
_BUSY_SECONDS = 1.0
_FIRST_SECONDS = 0.5
# Share of the wait, at most.
_JITTER = 0.25


class ProviderLimits(Struct, frozen=True, kw_only=True):
    """Limits of one provider: concurrent calls and calls started per minute, `None` for no limit.

    After `failures` faults in a row it rests for `rest_seconds`, twice as long each time up to `longest_seconds`.
    """

    concurrency: int | None = None
    per_minute: int | None = None
    failures: int = 3
    rest_seconds: float = 15.0
    # As long as a client waits: a provider that did not name a time may be back at any moment.
    longest_seconds: float = LONGEST_WAIT


class CircuitBreaker:
    """Decides whether an address or a model that failed is asked again; for use on one event loop.

    Closed: calls are sent. Open: after several faults in a row, no calls are sent for a while. Half open: that
    time is over, and one call or one probe finds out whether the provider is back.
    """

    def __init__(self, limits: ProviderLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._failed = 0
        self._opened = 0
        self._open_until: float | None = None
        self._trying = False

    @property
    def state(self) -> BreakerState:
        """The current state; an open breaker becomes half open by the clock alone."""
        if self._open_until is None:
            return "closed"
        return "open" if self._open_until > self._clock.monotonic() else "half_open"

    def wait(self) -> float:
        """Return the seconds until the breaker lets a call through; 0 means now."""
        if self._open_until is None:
            return 0.0
        # Another call may be finding out already: the caller asks again in a second.
        return max(0.0, self._open_until - self._clock.monotonic(), float(self._trying))

    def note_success(self) -> None:
        """Close the breaker: the provider answered, so its earlier faults no longer count."""
        self._failed = self._opened = 0
        self._open_until = None
        self._trying = False

    def note_failure(self) -> None:
        """Count a fault; ignore a call that was sent before the breaker opened and fails only now."""
        if self.state == "open":
            return
        self._failed += 1
        tried = self.state == "half_open"
        self._trying = False
        if tried or self._failed >= self._limits.failures:
            # Twice as long each time: a provider that is down for hours is not asked every few seconds.
            rest = min(self._limits.longest_seconds, self._limits.rest_seconds * 2**self._opened)
            # Bounded, or the power of two would overflow a float for a provider that is down for days.
            self._opened = min(self._opened + 1, 16)
            self._open_until = self._clock.monotonic() + rest

    def begin_probe(self) -> bool:
        """Return whether the caller must find out if the provider is back; it must then note the outcome."""
        if self.state != "half_open" or self._trying:
            return False
        self._trying = True
        return True

    def end_probe(self) -> None:
        """Let another caller find out: the caller that should have done so left without an outcome."""
        self._trying = False


class ProviderAddress:
    """One address of a provider: its breaker, and the slots for calls that all models there share."""

    def __init__(self, limits: ProviderLimits, clock: Clock) -> None:
        self.breaker = CircuitBreaker(limits, clock)
        self._limits = limits
        self._clock = clock
        self._slots = asyncio.Semaphore(limits.concurrency) if limits.concurrency else None
        self._gate = asyncio.Lock()
        self._turn = 0.0

    @contextlib.asynccontextmanager
    async def hold_slot(self, sleep: Callable[[float], Awaitable[object]]) -> AsyncIterator[None]:
        """Wait for a free slot and for the minute's share, first come first served, and hold the slot."""
        async with self._slots if self._slots is not None else contextlib.nullcontext():
            if self._limits.per_minute:
                # Under a lock, so that a caller who stops waiting takes nothing from those behind it.
                async with self._gate:
                    if (wait := self._turn - self._clock.monotonic()) > 0:
                        await sleep(wait)
                    self._turn = (
                        max(self._clock.monotonic(), self._turn) + _MINUTE_SECONDS / self._limits.per_minute
                    )
            yield


class ProviderHealth:
    """The health of one model of one provider; for use on one event loop.

    Faults of the model open only its own `breaker`. Failed connections open the breaker of its `address`, which
    holds back all models there. A rest that the provider asked for is added.
    """

    def __init__(self, address: ProviderAddress, limits: ProviderLimits, clock: Clock) -> None:
        self.address = address
        self.breaker = CircuitBreaker(limits, clock)
        self._clock = clock
        self._rests_until = 0.0

    @property
    def state(self) -> BreakerState:
        """The state of the breaker that holds the model back most."""
        states = (self.address.breaker.state, self.breaker.state)
        return "open" if "open" in states else "half_open" if "half_open" in states else "closed"

    @property
    def resting(self) -> float:
        """The seconds left of the rest that the provider itself asked for."""
        return max(0.0, self._rests_until - self._clock.monotonic())

    def wait(self) -> float:
        """Return the seconds until the model may be asked; 0 means now."""
        return max(self.resting, self.address.breaker.wait(), self.breaker.wait())

    def note_success(self) -> None:
        """Note a reply: earlier faults of the model and its address no longer count."""
        self.note_reached()
        self.breaker.note_success()

    def note_reached(self) -> None:
        """Note that the provider was connected to, whatever it answered."""
        self.address.breaker.note_success()

    def note_failure(self) -> None:
        """Note that the model failed, broke off its reply, or wrote an unreadable one."""
        self.breaker.note_failure()

    def note_unreachable(self) -> None:
        """Note that the address cannot be connected to, or does not answer at all."""
        self.address.breaker.note_failure()

    def note_rest(self, seconds: float) -> None:
        """Note that the provider asked for a rest of `seconds`."""
        # That is an answer, so a probe under way has its outcome.
        self.end_probe()
        self._rests_until = max(self._rests_until, self._clock.monotonic() + seconds)

    def note_error(self, status: int, wait: float | None) -> None:
        """Note an error reply of the model; `wait` is the seconds that the reply asks for, if any."""
        if status in (429, 503, 529) and wait is not None:
            self.note_rest(wait)
        elif status == 429:
            # Busy is not broken: if no time is given, the model rests for a moment with its breaker closed.
            self.note_rest(_BUSY_SECONDS)
        elif status >= 500:
            self.note_failure()
        else:
            # A refusal is an answer too: the provider is up.
            self.note_success()

    def begin_probe(self) -> bool:
        """Return whether the caller's call must find out if the model is back; it must then note the outcome."""
        if self.wait() > 0:
            return False
        # Both breakers if both are half open: one call tests the address and the model.
        return any([self.address.breaker.begin_probe(), self.breaker.begin_probe()])

    def end_probe(self) -> None:
        """Let another caller find out: the caller that should have done so left without an outcome."""
        self.address.breaker.end_probe()
        self.breaker.end_probe()


class Providers:
    """The health of every provider's models, shared by the gateways of one event loop; limits are by address."""

    def __init__(self, limits: Mapping[str, ProviderLimits] | None = None, *, clock: Clock | None = None) -> None:
        self._limits = limits or {}
        self._clock = clock or SystemClock()
        self._addresses: dict[str, ProviderAddress] = {}
        self._known: dict[tuple[str, str], ProviderHealth] = {}

    def of(self, address: str, model: str) -> ProviderHealth:
        """Return the health of a model, by the provider's name for it."""
        if (address, model) not in self._known:
            limits = self._limits.get(address, ProviderLimits())
            place = self._addresses.setdefault(address, ProviderAddress(limits, self._clock))
            self._known[address, model] = ProviderHealth(place, limits, self._clock)
        return self._known[address, model]


class Retries:
    """The remaining retries of one request, and the waits between them."""

    def __init__(self, count: int, waits: RequestedWaits, sleep: Callable[[float], Awaitable[object]]) -> None:
        self.waits = waits
        self._left = count
        self._sleep = sleep
        self._next = _FIRST_SECONDS

    async def wait_for_retry(self, headers: Mapping[str, str] | None = None, body: bytes = b"") -> bool:
        """Wait and return true if a retry is due; return false at once if not, or if the wait is too long."""
        asked = self.waits.read(headers or {}, body)
        # A provider that asks for a longer wait is out of quota, which the client learns at once.
        if self._left <= 0 or (asked or 0.0) > LONGEST_WAIT:
            return False
        self._left -= 1
        # Jitter, so that attempts which failed together do not come back together.
        wait = self._next * (1 + random.uniform(0, _JITTER)) if asked is None else asked
        self._next *= 2
        await self._sleep(wait)
        return True


async def await_head(
    sending: Coroutine[Any, Any, UpstreamReply],
    probe: Callable[[float], Awaitable[bool]],
    health: ProviderHealth | None,
    *,
    quiet: float,
) -> UpstreamReply:
    """Wait for the head of a reply; after each `quiet` seconds of silence, probe its provider in parallel.

    A provider that answers a probe is at work, and the wait continues. After two failed probes in a row the call
    is given up: it may have reached the provider, so it counts as sent, with its cost unknown and its reserve
    booked. Raises `GatewayFault` (`upstream_timeout`) then, and the errors of `sending`.
    """
    head = asyncio.create_task(sending)
    failed = 0
    try:
        while not (await asyncio.wait((head,), timeout=quiet))[0]:
            # On its own connection: a request that was sent is never repeated on suspicion.
            probing = asyncio.ensure_future(probe(PROBE_SECONDS))
            try:
                await asyncio.wait((head, probing), return_when=asyncio.FIRST_COMPLETED)
                if head.done():
                    break
                failed = 0 if probing.result() else failed + 1
            finally:
                await _cancel(probing)
            if failed and health is not None:
                health.note_unreachable()
            if failed >= _DEAD_AFTER:
                if health is not None:
                    health.note_unreachable()
                raise GatewayFault("upstream_timeout", "the provider does not answer, not even a probe")
        return head.result()
    finally:
        await _cancel(head)


async def _cancel(work: asyncio.Future[Any]) -> None:
    if not work.done():
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
