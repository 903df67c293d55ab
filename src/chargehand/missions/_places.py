"""Workspaces with sandboxes over them, opened for one purpose and always taken down again."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from chargehand.core.attempt_events import SandboxClosed, SandboxOpened
from chargehand.core.errors import ChargehandError, FencedError, NotFoundError, WaitingError
from chargehand.core.ports import Bind
from chargehand.core.records import Base
from chargehand.core.state import MissionState
from chargehand.missions._control import Control
from chargehand.missions._journal import Journal, Notes
from chargehand.missions._network import NetworkLog
from chargehand.missions._packages import layer_variables
from chargehand.missions._services import Egress, Registries, Services
from chargehand.sandbox.contract import WORKSPACE, Sandbox, SandboxSpec
from chargehand.workspace.scan import WorkspaceLimits
from chargehand.workspace.workspace import Workspace

VENV = f"{WORKSPACE}/.venv"
SETUP, CHECKS, AGENT = "setup", "checks", "agent"


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
        """What tells programs of that virtual environment, and of the packages in the layer."""
        return {**({"VIRTUAL_ENV": VENV} if self.path else {}), **layer_variables(self.environment)}


class Places:
    """Opens workspaces and sandboxes for one mission, and notes each in its log.

    Where `control` is given, nothing new begins while the mission is paused, and what runs can be paused.
    """

    def __init__(self, services: Services, journal: Notes, *, control: Control | None = None) -> None:
        self._services = services
        self._journal = journal
        self._control = control
        self._making: dict[str, float] = {}

    @contextlib.asynccontextmanager
    async def workspace(
        self, ground: Ground, *, purpose: str, tree: str | None = None
    ) -> AsyncIterator[Workspace]:
        """Make a workspace that shows `tree` (the base's by default) and remove its files at the end.

        A mission has one workspace per `purpose` at a time: what a dead worker left of it is removed first. The
        claim is part of the name: a worker that was given up and still works keeps out of its successor's files.
        """
        mission, epoch = self._journal.mission, self._journal.epoch

        def make() -> Workspace:
            if mission is None:
                return self._make(ground, tree)
            _remove(self._services, mission, f"{purpose}-*")
            return self._make(ground, tree, id=f"{_prefix(mission)}{purpose}-{epoch or 0}")

        async with self._kept(make) as workspace:
            yield workspace

    @contextlib.asynccontextmanager
    async def workspace_again(
        self, id: str, ground: Ground, *, tree: str, quiet: bool
    ) -> AsyncIterator[tuple[Workspace, bool]]:
        """Find a lost attempt's workspace and let it show `tree`; tell whether its ignored files are kept.

        What it held instead of `tree` is kept as a checkpoint first. `quiet` says that nobody writes there any
        more; where that is not known, new files are laid out.
        """
        kept = quiet

        def find() -> Workspace:
            nonlocal kept
            try:
                found = Workspace.load(self._services.depot, id)
            except NotFoundError:
                kept = False
                return self._make(ground, tree, id=id)
            scan = found.scan(trust_cache=False)
            if not quiet or scan.tree != tree or scan.findings:
                kept = False
                found.reset(tree, "resumed")
                found.tidy()
            return found

        async with self._kept(find) as workspace:
            yield workspace, kept

    @contextlib.asynccontextmanager
    async def _kept(self, make: Callable[[], Workspace]) -> AsyncIterator[Workspace]:
        """Have a workspace for the block; its files go at the end unless somebody goes on with them."""
        if self._control is not None:
            await self._control.may_go_on()
        began = self._services.clock.monotonic()
        making = asyncio.ensure_future(asyncio.to_thread(make))
        asked = False
        try:
            made = await asyncio.shield(making)
            self._making[made.id] = self._services.clock.monotonic() - began
            yield made
        except WaitingError:
            asked = True
            raise
        finally:
            made = await making  # a thread cannot be cancelled: what it still makes is removed all the same
            stopped = self._control is not None and self._control.stopped in ("release", "lost")
            if not (stopped or asked or self._journal.fenced):
                await asyncio.shield(asyncio.to_thread(made.discard))

    def _make(self, ground: Ground, tree: str | None, *, id: str | None = None) -> Workspace:
        config = self._services.config
        return Workspace.create(
            self._services.depot,
            ground.base,
            driver=self._services.driver,
            tree=tree,
            environment=ground.environment,
            include=config.project.include,
            limits=WorkspaceLimits(disk_bytes=config.sandbox.disk_mb << 20, files=config.sandbox.files),
            id=id,
        )

    @contextlib.asynccontextmanager
    async def egress(self, *, purpose: str, attempt: str | None = None) -> AsyncIterator[Egress | None]:
        """Open the way of one sandbox to the configured hosts, `None` where it has none; each request is noted."""
        config = self._services.config.sandbox
        if not config.network or (purpose == CHECKS and not config.network_checks):
            yield None
            return
        seen = NetworkLog(self._journal, clock=self._services.clock, purpose=purpose, attempt=attempt)
        async with self._services.open_egress(log=seen.see) as opened:
            try:
                yield opened
            finally:
                await opened.close()
                seen.end()

    @contextlib.asynccontextmanager
    async def sandbox(
        self,
        workspace: Workspace,
        ground: Ground,
        *,
        purpose: str,
        binds: tuple[Bind, ...] = (),
        registries: Registries | None = None,
        gateway: Path | None = None,
        egress: Egress | None = None,
        path: tuple[str, ...] | None = None,
        environment: Mapping[str, str] | None = None,
        attempt: str | None = None,
        read_only: bool = False,
    ) -> AsyncIterator[Sandbox]:
        """Open a sandbox over a workspace and close it, with all that runs in it, at the end.

        With `read_only` nothing inside can write to the workspace.
        """
        services, began = self._services, self._services.clock.monotonic()
        spec = SandboxSpec(
            mounts=replace(workspace.mount_plan(), read_only=read_only),
            environment={**ground.variables, **(environment or {})},
            path=ground.path if path is None else path,
            binds=binds,
            limits=services.limits(),
            registries=registries.socket_path if registries else None,
            gateway=gateway,
            egress=egress.socket_path if egress else None,
        )
        sandbox = await services.tier.open(spec)
        ready = services.clock.monotonic() - began + self._making.get(workspace.id, 0.0)
        try:
            if self._control is not None:
                self._control.hold(sandbox)
                if self._control.paused:  # it came up while the mission was being paused
                    await sandbox.freeze()
            self._journal.note(
                SandboxOpened(
                    sandbox=sandbox.id,
                    purpose=purpose,
                    tier=sandbox.tier,
                    driver=workspace.driver,
                    limits=dict(sandbox.limits_in_force),
                    attempt=attempt,
                    egress=egress is not None,
                )
            )
            yield sandbox
        finally:
            if self._control is not None:
                self._control.let_go(sandbox)
            await asyncio.shield(sandbox.close())
            await self._note_closed(sandbox, workspace, purpose, attempt, began=began, ready=ready)

    async def _note_closed(
        self,
        sandbox: Sandbox,
        workspace: Workspace,
        purpose: str,
        attempt: str | None,
        *,
        began: float,
        ready: float,
    ) -> None:
        """Note what a sandbox took, and what was written in it where an agent worked there."""
        if self._journal.mission is None:
            return
        files = written = None
        if purpose == AGENT and not workspace.holds_base:
            with contextlib.suppress(ChargehandError, OSError):
                files, written = await asyncio.to_thread(workspace.usage)
        used = sandbox.usage()
        closed = SandboxClosed(
            sandbox=sandbox.id,
            purpose=purpose,
            ready_seconds=ready,
            seconds=self._services.clock.monotonic() - began,
            peak_memory=used.peak_memory,
            freezes=used.freezes,
            written_files=files,
            written_bytes=written,
            attempt=attempt,
            cpu_seconds=used.cpu_seconds,
            peak_processes=used.peak_processes,
            disk_written=used.disk_written,
            output=used.output,
            sampled=used.sampled,
        )
        with contextlib.suppress(FencedError):  # whoever took the mission over counts its own
            self._journal.note(closed)


def clear(services: Services, state: MissionState) -> None:
    """Remove what dead workers left of a settled mission; its checkpoints stay in the depot."""
    with contextlib.suppress(ChargehandError, OSError):  # how the mission ended matters more; `gc` comes later
        _remove(services, state.id, "*")
    for path in services.home.glob(f"acceptance-{state.id}-*"):
        shutil.rmtree(path, ignore_errors=True)


def attempt_purpose(number: int) -> str:
    """Return what the workspace of that attempt is for."""
    return f"attempt-{number}"


def acceptance_place(services: Services, journal: Journal) -> Path:
    """Return where a mission's acceptance files lie while its checks run under this claim."""
    return services.home / f"acceptance-{journal.mission}-{journal.epoch or 0}"


def _prefix(mission: str) -> str:
    return f"w-{mission.removeprefix('m-')}-"


def _remove(services: Services, mission: str, which: str) -> None:
    """Remove the files of a mission's workspaces, those half made included."""
    directory = services.depot.root / "workspaces"
    for path in directory.glob(f"{_prefix(mission)}{which}"):
        with contextlib.suppress(NotFoundError):
            Workspace.load(services.depot, path.name).discard()
    for path in directory.glob(f".new-{_prefix(mission)}{which}"):
        shutil.rmtree(path, ignore_errors=True)
