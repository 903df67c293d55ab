"""Stops an agent that writes more than it may, or on a disk that is full."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from chargehand.agents.contract import AgentOutcome
from chargehand.core.clock import Clock
from chargehand.core.errors import RefusedError
from chargehand.workspace._quota import AttemptQuota
from chargehand.workspace._workspace import Workspace

_LOOK_SECONDS = 2.0


async def quota_of(workspace: Workspace) -> AttemptQuota:
    """Return what bounds an attempt in a workspace; what a plain directory holds already is not its own."""
    before = await asyncio.to_thread(workspace.usage) if workspace.holds_base else (0, 0)
    return AttemptQuota(workspace.scan_root(), workspace.limits, before=before)


async def run_within(
    quota: AttemptQuota, work: Coroutine[Any, Any, AgentOutcome], *, clock: Clock
) -> AgentOutcome:
    """Return how the agent ended: as failed by `disk` where it wrote too much, stopped within seconds if it runs.

    Raises `InfrastructureError` (`no_space`) when the disk is full: nothing the agent did caused that, and what
    it makes of it says nothing.
    """
    began = clock.monotonic()
    working, watching = asyncio.create_task(work), asyncio.create_task(_watch(quota))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        problem = await _problem(quota) if working.done() else watching.result()
        if problem is None:
            return working.result()
        seconds = clock.monotonic() - began
        return AgentOutcome(claim="failed", reason=problem.message, code=problem.code, output=b"", seconds=seconds)
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _watch(quota: AttemptQuota) -> RefusedError:
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        problem = await _problem(quota)
        if problem is not None:
            return problem


async def _problem(quota: AttemptQuota) -> RefusedError | None:
    try:
        await asyncio.to_thread(quota.look)
    except RefusedError as problem:
        return problem
    return None
