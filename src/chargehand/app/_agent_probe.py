"""Starts the program of an agent in a sandbox of its own, to see what it is."""

from __future__ import annotations

from pathlib import Path

from chargehand.agents import AgentSeen, see_agent
from chargehand.core import AgentConfig, DriverName
from chargehand.sandbox import ProcessTier, SandboxLimits, SandboxSpec, Toolchain, scratch_plan

_LIMITS = SandboxLimits(memory_mb=4096, processes=256, tmp_mb=256)


async def probe_agent(
    config: AgentConfig, toolchain: Toolchain, *, scratch: Path, driver: DriverName = "worktree"
) -> AgentSeen:
    """Look at a `cli` or `acp` agent inside a sandbox below `scratch`; nothing of it reaches a model.

    Raises `TierUnavailableError` where no sandbox can be had.
    """
    async with ProcessTier(toolchain) as tier:
        with scratch_plan(scratch, driver) as plan:
            sandbox = await tier.open(SandboxSpec(mounts=plan, limits=_LIMITS))
            try:
                return await see_agent(config, sandbox)
            finally:
                await sandbox.close()
