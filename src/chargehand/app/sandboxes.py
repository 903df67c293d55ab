"""The abilities of this machine's sandboxes: probes, the tier of a mission, the kernel of virtual machines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from chargehand.app.preparation import Preparation
from chargehand.app.wiring.session import ProjectBase
from chargehand.app.wiring.tiers import choose_driver, require_tier, settle_tier, try_tier, with_tier
from chargehand.configuration.records import ResolvedConfig
from chargehand.core.ports import DriverName
from chargehand.core.records import TierChoice, TierName
from chargehand.reports.reading import StateReader
from chargehand.sandbox.probe import ProbeReport
from chargehand.sandbox.tiers import MACHINES
from chargehand.sandbox.tool_versions import ToolVersion, read_tool_versions
from chargehand.sandbox.toolchain import Toolchain
from chargehand.sandbox.vm_kernel import VmKernel


class Sandboxes:
    """The sandboxes of one state directory's machine."""

    def __init__(self, reader: StateReader, preparation: Preparation) -> None:
        self._reader = reader
        self._preparation = preparation

    def set_up_machines(self, packages: Sequence[Path] = ()) -> VmKernel:
        """Install the kernel of virtual machines in the state directory; see `set_up_kernel`."""
        from chargehand.sandbox.vm_kernel import set_up_kernel

        self._reader.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        return set_up_kernel(self._reader.home / MACHINES, packages=packages, environ=self._reader.environ)

    async def probe(self, tier: TierName = "process") -> ProbeReport:
        """Probe what sandboxes of a tier can offer on this machine, by real tries."""
        config = replace(self._reader.user_configuration().config.sandbox, tier=tier)
        return await try_tier(
            config, self._preparation.toolchain(), home=self._reader.home, environ=self._reader.environ
        )

    async def tools(self, driver: DriverName) -> tuple[ToolVersion, ...]:
        """Start every known program of the toolchain inside a sandbox."""
        return await read_tool_versions(
            self._preparation.toolchain(self._reader.user_configuration()),
            scratch=self._reader.home,
            driver=driver,
        )

    async def settle(
        self, found: ProjectBase, resolved: ResolvedConfig, choice: TierChoice | None
    ) -> tuple[ResolvedConfig, TierChoice, Toolchain]:
        """Return the configuration with the chosen tier, the choice, and the toolchain."""
        require_tier(resolved.config.sandbox.tier)
        toolchain = await asyncio.to_thread(self._preparation.toolchain, resolved)
        trusted = self._reader.store.trust.is_trusted(found.project.id, resolved.trusted_by)
        choice = choice or await settle_tier(
            resolved, trusted=trusted, home=self._reader.home, toolchain=toolchain, environ=self._reader.environ
        )
        return with_tier(resolved, choice), choice, toolchain

    async def prove_tier(self, found: ProjectBase, resolved: ResolvedConfig) -> None:
        """Return if the tier that a mission would use works here; probe it unless an earlier probe decided it.

        Raises `TierUnavailableError`. Workers that share a database may be elsewhere: then nothing is tried.
        """
        if self._reader.engine.url is not None:
            return
        settled, _, toolchain = await self.settle(found, resolved, None)
        config = settled.config
        await choose_driver(
            self._reader.home,
            toolchain,
            strategy=config.project.strategy,
            config=config.sandbox,
            environ=self._reader.environ,
        )
