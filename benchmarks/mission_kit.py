"""One repository with the whole product over it, opened as the command line opens it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import timed
from benchmarks.repositories import git, make_repository
from chargehand.app.composition import App
from chargehand.core.ports import DriverName
from chargehand.core.records import Base
from chargehand.sandbox.contract import Sandbox, SandboxSpec
from chargehand.sandbox.process_tier import ProcessTier
from chargehand.sandbox.toolchain import Toolchain
from chargehand.workspace.depot import Depot
from chargehand.workspace.workspace import Workspace

MANY = 50_000
"""From this many files on, a full copy is made only twice in each comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissionKit:
    """A separate directory with a repository and a state directory."""

    place: Path
    files: int
    peers: bool = True

    @classmethod
    def make(cls, place: Path, *, files: int, peers: bool = True) -> MissionKit:
        """Make the repository; without `peers` the comparisons leave out peers that copy all its files."""
        make_repository(place / "repository", files=files)
        return cls(place=place, files=files, peers=peers)

    @property
    def repository(self) -> Path:
        """The person's repository."""
        return self.place / "repository"

    @property
    def environ(self) -> dict[str, str]:
        """The environment for the product, without the machine's own configuration."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.place),
            "CHARGEHAND_HOME": str(self.place / "state"),
            "GIT_CONFIG_NOSYSTEM": "1",
        }

    def app(self) -> App:
        """Return the product over this state directory."""
        return App(environ=self.environ, cwd=self.repository)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Opened]:
        """Open depot, base and sandbox tier; the base's layers are made here, before anything is measured."""
        app = self.app()
        try:
            probed = await app.sandboxes.probe()
            project = app.projects.find()
            with timed() as prepared:
                depot = app.projects.depot(project)
                base = depot.resolve_base()
                depot.base_layers(base)
            toolchain = app.preparation.toolchain()
            async with ProcessTier(toolchain) as tier:
                yield Opened(
                    app=app,
                    depot=depot,
                    base=base,
                    tier=tier,
                    toolchain=toolchain,
                    driver=probed.require(),
                    prepared=prepared[0],
                )
        finally:
            app.close()

    def copy(self, name: str) -> Path:
        """Return a plain worktree of the repository at its commit."""
        target = self.place / name
        git(self.repository, "worktree", "add", "--quiet", "--detach", str(target))
        return target

    def take_down(self, copy: Path) -> None:
        """Remove a worktree."""
        git(self.repository, "worktree", "remove", "--force", str(copy))


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The parts of workspaces and sandboxes; `prepared` is the time for depot and base in seconds."""

    app: App
    depot: Depot
    base: Base
    tier: ProcessTier
    toolchain: Toolchain
    driver: DriverName
    prepared: float

    def workspace(self, tree: str | None = None) -> Workspace:
        """Make a workspace on the base."""
        return Workspace.create(self.depot, self.base, driver=self.driver, tree=tree)

    async def sandbox(self, workspace: Workspace) -> Sandbox:
        """Open a sandbox over a workspace."""
        return await self.tier.open(SandboxSpec(mounts=workspace.mount_plan()))

    @contextlib.asynccontextmanager
    async def both(self) -> AsyncIterator[tuple[Workspace, Sandbox]]:
        """Make a workspace with a sandbox over it and take both down at the end."""
        workspace = await asyncio.to_thread(self.workspace)
        try:
            sandbox = await self.sandbox(workspace)
            try:
                yield workspace, sandbox
            finally:
                await sandbox.close()
        finally:
            workspace.discard()


def remove(place: Path) -> None:
    """Remove a directory; overlayfs leaves directories in it that deny access even to their owner."""
    for directory, names, _ in os.walk(place):
        for name in names:
            path = Path(directory, name)
            if not path.is_symlink() and path.stat().st_mode & stat.S_IRWXU != stat.S_IRWXU:
                path.chmod(0o700)
    shutil.rmtree(place)
