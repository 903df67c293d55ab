"""What one process knows of providers: all its missions share it, other event loops and limits do not."""

from __future__ import annotations

import asyncio

from chargehand.app.wiring.gateways import ProviderHealthRegistry
from chargehand.core.clock import SystemClock
from chargehand.models.providers import ProviderLimits

PLACE = "https://a.example"


async def test_missions_with_the_same_limits_share_what_is_known() -> None:
    standings, clock = ProviderHealthRegistry(), SystemClock()
    known = standings.of({PLACE: ProviderLimits(concurrency=2)}, clock)
    known.of(PLACE, "m").note_failure()
    again = standings.of({PLACE: ProviderLimits(concurrency=2)}, clock)
    assert again is known
    assert again.of(PLACE, "m") is known.of(PLACE, "m")
    assert standings.of({PLACE: ProviderLimits(concurrency=3)}, clock) is not known


def test_another_event_loop_begins_anew() -> None:
    standings, clock = ProviderHealthRegistry(), SystemClock()

    async def known() -> object:
        return standings.of({}, clock)

    assert asyncio.run(known()) is not asyncio.run(known())
