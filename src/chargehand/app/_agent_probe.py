"""Starts the program of an agent in a sandbox of its own, to see what it is."""

from __future__ import annotations

from pathlib import Path

from chargehand.agents.probe import AgentIdentity, identify_agent
from chargehand.core.config import AgentConfig
from chargehand.core.ports import DriverName
from chargehand.sandbox._contract import SandboxLimits, SandboxSpec
from chargehand.sandbox._probe import scratch_plan
from chargehand.sandbox._process import ProcessTier
from chargehand.sandbox._toolchain import Toolchain

_LIMITS = SandboxLimits(memory_mb=4096, processes=256, tmp_mb=256)


async def probe_agent(
    config: AgentConfig, toolchain: Toolchain, *, scratch: Path, driver: DriverName = "worktree"
) -> AgentIdentity:
    """Look at a `cli` or `acp` agent inside a sandbox below `scratch`; nothing of it reaches a model.

    Raises `TierUnavailableError` where no sandbox can be had.
    """
    async with ProcessTier(toolchain) as tier:
        with scratch_plan(scratch, driver) as plan:
            sandbox = await tier.open(SandboxSpec(mounts=plan, limits=_LIMITS))
            try:
                return await identify_agent(config, sandbox)
            finally:
                await sandbox.close()
