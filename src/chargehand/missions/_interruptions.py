"""What ends under a mission without being its doing: the work continues from the last recorded step.

A sandbox that is killed looks the same whether the kernel's memory killer, another program or a fault of ours did
it, and says nothing about the work in it. The same recovery serves as for a worker that was killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from chargehand.core.errors import InfrastructureError
from chargehand.core.mission_events import MissionInterrupted
from chargehand.missions.journal import Journal

_T = TypeVar("_T")
# What may pass by itself in a new sandbox. Not among them: `sandbox_memory`, which the work itself used up.
_PASSING = frozenset({"sandbox_died", "launcher_lost", "forwarder_failed", "freeze_timeout", "link_failed"})
# Interruptions without one recorded step between them; more of them are no accident.
MOST_INTERRUPTIONS = 5
# Processes of the sandbox that died may take a moment to be gone; a machine without memory needs longer.
_PAUSES = (0.3, 0.3, 0.5, 1.0, 3.0)


async def run_interruptible(journal: Journal, work: Callable[[], Awaitable[_T]]) -> _T:
    """Do work made of recorded steps, again where a sandbox ended under it; each interruption is recorded.

    Raises what interrupted it once that happened `MOST_INTERRUPTIONS` times without a step further.
    """
    while True:
        try:
            return await work()
        except InfrastructureError as error:
            seen = journal.state.fruitless_claims
            if error.code not in _PASSING or seen >= MOST_INTERRUPTIONS:
                raise
            journal.record(MissionInterrupted(code=error.code, message=error.message))
            await asyncio.sleep(_PAUSES[seen])
