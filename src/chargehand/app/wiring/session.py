"""A project at a base: resolved, configured, and opened as a session for missions."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import Struct

from chargehand.app.selection.agents import named_agent
from chargehand.checks.detection import above
from chargehand.configuration.records import REPOSITORY_FILE, RepositoryFile, ResolvedConfig
from chargehand.core.config import AgentConfig
from chargehand.core.ports import DriverName
from chargehand.core.records import Base, TierChoice
from chargehand.missions.missions import Missions
from chargehand.sandbox.contract import Sandbox
from chargehand.store.projects import ProjectRow
from chargehand.workspace.depot import Depot
from chargehand.workspace.workspace import Workspace


class ProjectBase(Struct, frozen=True, kw_only=True):
    """A project, its depot and the base that work starts from; `start` is the directory in which work starts."""

    project: ProjectRow
    depot: Depot
    base: Base
    start: str = ""

    def repository_file(self, *, head: bool) -> RepositoryFile | None:
        """Return the nearest `chargehand.toml`, from the start directory upwards.

        The base's own file, or with `head` the file in the person's checkout if it differs.
        """
        depot = self.depot
        base = self.base
        for directory in (self.start, *above(self.start)):
            entry = depot.lookup(base.tree, posixpath.join(directory, REPOSITORY_FILE))
            committed = depot.read_blob(entry.id) if entry else None
            own = self.project.path / directory / REPOSITORY_FILE
            # Not through a link: it may point anywhere on the host, while a commit contains only the link.
            direct = own.is_file() and own.resolve() == self.project.path.resolve() / directory / own.name
            if head and direct and depot.has_directory(base.tree, directory):
                content = own.read_bytes()
                if content != committed:
                    return RepositoryFile(content=content, directory=directory)
            if committed is not None:
                return RepositoryFile(content=committed, commit=base.commit, directory=directory)
        return None


class ConfiguredBase(ProjectBase, frozen=True, kw_only=True):
    """A project at a base, with the configuration in force there."""

    resolved: ResolvedConfig


class WorkPlaces(Struct, frozen=True, kw_only=True):
    """The directories of a base in which a mission works: one for its agent, another for checks and setup."""

    agent: str = ""
    checks: str = ""


class Session(Struct, frozen=True, kw_only=True):
    """One project at one base, configured, with everything needed to work on it."""

    project: ProjectRow
    depot: Depot
    base: Base
    resolved: ResolvedConfig
    missions: Missions
    driver: DriverName
    choice: TierChoice
    start: str
    places: WorkPlaces

    @asynccontextmanager
    async def open_workspace(
        self, *, tree: str | None = None, directory: str = ""
    ) -> AsyncIterator[tuple[Workspace, Sandbox]]:
        """Open a sandbox and its workspace on the base, or on a tree over it, for one command of a person.

        It starts in `directory`, or at the top if the tree has no such directory.
        """
        exists = self.depot.has_directory(tree or self.base.tree, directory)
        async with self.missions.open_workspace(
            self.base, tree=tree, directory=directory if exists else "", setup_directory=self.places.checks
        ) as opened:
            yield opened

    def agent(self, option: str) -> AgentConfig:
        """Return the agent of an `--agent` value: a configured one, or `command:PROGRAM ARG…`."""
        return named_agent(self.resolved.config, option)


class DetectedChecks(Struct, frozen=True, kw_only=True):
    """The checks that a tree suggests (`why` has the evidence for each) and its setup; nothing was run."""

    checks: tuple[str, ...]
    why: tuple[str, ...]
    setup: str | None
