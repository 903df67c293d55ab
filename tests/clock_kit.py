"""Clocks that a test controls, so that time limits do not depend on the speed of the machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from chargehand.core.clock import SystemClock
from chargehand.missions.control import GRACE_SECONDS, Control


class AheadClock(SystemClock):
    """The machine's clock; a test can advance its monotonic time."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def monotonic(self) -> float:
        """Return `time.monotonic()` plus the advanced seconds."""
        return super().monotonic() + self._ahead

    def put_forward(self, seconds: float) -> None:
        """Let `seconds` pass at once, also for the running event loop: waits of at most that long become due."""
        loop = asyncio.get_running_loop()
        now = loop.time
        # The loop compares due times with this method; there is no other way to give it a clock.
        loop.time = lambda: now() + seconds  # type: ignore[method-assign]
        self._ahead += seconds


@contextmanager
def time_of_an_agent(seconds: float) -> Iterator[None]:
    """Give each agent these seconds, however much of the mission's time was used before it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Control, "seconds_left", lambda _: GRACE_SECONDS + seconds)
        yield
