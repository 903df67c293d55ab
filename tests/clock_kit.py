"""Time that a test decides about, so that what is limited by it depends on no machine's speed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from chargehand.core.clock import SystemClock
from chargehand.missions.control import GRACE_SECONDS, Control


class AheadClock(SystemClock):
    """The machine's clock, whose monotonic time a test puts forward."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def monotonic(self) -> float:
        """Return `time.monotonic()` and what was put forward."""
        return super().monotonic() + self._ahead

    def put_forward(self, seconds: float) -> None:
        """Let `seconds` pass at once, for the running event loop too: what waits no longer than that is due."""
        loop = asyncio.get_running_loop()
        now = loop.time
        # What is due is compared with this method, which a loop has no other way to be given.
        loop.time = lambda: now() + seconds  # type: ignore[method-assign]
        self._ahead += seconds


@contextmanager
def time_of_an_agent(seconds: float) -> Iterator[None]:
    """Give each agent these seconds, however long what comes before it took of the mission's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Control, "seconds_left", lambda _: GRACE_SECONDS + seconds)
        yield
