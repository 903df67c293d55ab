"""Runs work in a thread that a cancelled component awaits before it closes what the work uses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Event


async def run_in_thread(work: Callable[[], object], *, stopping: Event) -> None:
    """Run `work` in a thread; on cancellation, set `stopping` and wait until the work has ended."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        # Shielded, since a thread cannot be cancelled: it would continue with a closed store.
        await asyncio.shield(task)
    except asyncio.CancelledError:
        stopping.set()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # retrieved to avoid a warning: the result is no longer needed
        raise
