"""A provider that is silent before its reply's head: at work, or gone?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from chargehand.models._contract import UpstreamReply
from chargehand.models._gateway_fault import GatewayFault
from chargehand.models._health import Standing

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
