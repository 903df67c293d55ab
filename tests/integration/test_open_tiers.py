"""The tiers in which the sessions of one process open their sandboxes."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.contract._places import toolchain, workspace
from tests.crash_kit import nothing_survives

from chargehand.app.wiring.tiers import OpenTiers
from chargehand.core.config import SandboxConfig
from chargehand.core.errors import InfrastructureError
from chargehand.missions.services import Tier
from chargehand.sandbox.toolchain import Toolchain

pytestmark = pytest.mark.needs_bwrap


async def test_sessions_with_the_same_toolchain_share_a_tier_until_closed(tmp_path: Path) -> None:
    tiers, tools = OpenTiers(), toolchain()
    with (
        nothing_survives(),
        (tmp_path / "alive").open("w") as alive,
        workspace(tmp_path / "workspace", memory_mb=1024) as spec,
    ):

        async def use(tools: Toolchain) -> Tier:
            opened = tiers.use(SandboxConfig(), tools, scratch=tmp_path, alive=alive.fileno(), environ={})
            async with opened as tier:
                return tier

        first, second, other = await use(tools), await use(tools), await use(replace(tools, id="another"))
        assert first is second
        assert other is not first
        sandbox = await first.open(spec)
        assert (await sandbox.exec(["true"])).exit_code == 0
        await sandbox.close()
        await tiers.close()
        for closed in (first, other):
            with pytest.raises(InfrastructureError, match="closed"):
                await closed.open(spec)
        assert await use(tools) is not first
        await tiers.close()
