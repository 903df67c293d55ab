"""Runs work in a thread that a cancelled component waits for before it closes what the work uses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Event


async def run_in_thread(work: Callable[[], object], *, stopping: Event) -> None:
    """Run `work` in a thread; where this is cancelled, set `stopping` and wait until the work has ended."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        # Shielded, since a thread cannot be cancelled: it would go on with a store that is closed.
        await asyncio.shield(task)
    except asyncio.CancelledError:
        stopping.set()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # retrieved, so that nothing warns of it: nobody waits for the result any more
        raise
