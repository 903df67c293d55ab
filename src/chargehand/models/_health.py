"""How each provider does: rests it asked for, faults in a row, how much may be asked of it at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from chargehand.core.clock import Clock, SystemClock

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
