"""Workspaces with sandboxes over them, opened for one purpose and always taken down again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from chargehand.core import Base, Bind, SandboxOpened
from chargehand.missions._journal import Notes
from chargehand.missions._services import Registries, Services
from chargehand.sandbox import WORKSPACE, Sandbox, SandboxSpec
from chargehand.workspace import Workspace, WorkspaceLimits

VENV = f"{WORKSPACE}/.venv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What every workspace of a mission stands on: the base and, where setup made one, its layer."""

    base: Base
    environment: Path | None = None

    @property
    def path(self) -> tuple[str, ...]:
        """What comes first on PATH: the virtual environment of the layer where it has one."""
        has_venv = self.environment is not None and (self.environment / ".venv/bin/python").is_symlink()
        return (f"{VENV}/bin",) if has_venv else ()

    @property
    def variables(self) -> dict[str, str]:
        """What tells programs of that virtual environment."""
        return {"VIRTUAL_ENV": VENV} if self.path else {}


class Places:
    """Opens workspaces and sandboxes for one mission, and notes each in its log."""

    def __init__(self, services: Services, journal: Notes) -> None:
        self._services = services
        self._journal = journal

    @contextlib.asynccontextmanager
    async def workspace(self, ground: Ground, *, tree: str | None = None) -> AsyncIterator[Workspace]:
        """Make a workspace that shows `tree` (the base's by default) and remove its files at the end."""
        services = self._services
        making = asyncio.ensure_future(
            asyncio.to_thread(
                Workspace.create,
                services.depot,
                ground.base,
                driver=services.driver,
                tree=tree,
                environment=ground.environment,
                include=services.config.project.include,
                limits=WorkspaceLimits(disk_bytes=services.config.sandbox.disk_mb << 20),
            )
        )
        try:
            yield await asyncio.shield(making)
        finally:
            made = await making  # a thread cannot be cancelled: what it still makes is removed all the same
            await asyncio.shield(asyncio.to_thread(made.discard))

    @contextlib.asynccontextmanager
    async def sandbox(
        self,
        workspace: Workspace,
        ground: Ground,
        *,
        purpose: str,
        binds: tuple[Bind, ...] = (),
        registries: Registries | None = None,
        path: tuple[str, ...] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Sandbox]:
        """Open a sandbox over a workspace and close it, with all that runs in it, at the end."""
        services = self._services
        spec = SandboxSpec(
            mounts=workspace.mount_plan(),
            environment={**ground.variables, **(environment or {})},
            path=ground.path if path is None else path,
            binds=binds,
            limits=services.limits(),
            registries=registries.socket_path if registries else None,
        )
        sandbox = await services.tier.open(spec)
        try:
            self._journal.note(
                SandboxOpened(
                    sandbox=sandbox.id,
                    purpose=purpose,
                    tier=sandbox.tier,
                    driver=services.driver,
                    limits=dict(sandbox.limits_in_force),
                )
            )
            yield sandbox
        finally:
            await asyncio.shield(sandbox.close())
