"""Builds everything from configuration: the one place that knows concrete classes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from chargehand.agents import open_agent
from chargehand.app._config_agents import agent_from_option, find_agent
from chargehand.app._config_files import load_user_file, state_home, user_config_path
from chargehand.app._config_model import REPOSITORY_FILE, Option, RepositoryFile, Resolved
from chargehand.app._config_resolve import resolve
from chargehand.app._tiers import choose_driver, require_tier
from chargehand.checks import detect_checks, detect_setup
from chargehand.core import AgentConfig, Base, Clock, DriverName, RepositoryError, SystemClock
from chargehand.missions import (
    DepotReader,
    Liveness,
    Look,
    Missions,
    Registries,
    Services,
    Watch,
    ignore,
    system_errors,
)
from chargehand.sandbox import ProbeReport, ProcessTier, Toolchain, discover, probe
from chargehand.store import ProjectRow, Store, open_store
from chargehand.workspace import Depot, find_repository


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A project, its depot and the base that work starts from."""

    project: ProjectRow
    depot: Depot
    base: Base


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One project at one base, configured, with everything needed to work on it."""

    project: ProjectRow
    depot: Depot
    base: Base
    resolved: Resolved
    missions: Missions
    driver: DriverName

    def agent(self, option: str) -> AgentConfig:
        """Return the agent that `--agent` names: a configured one, or `command:PROGRAM ARG…`."""
        return named_agent(self.resolved, option)


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """What a tree says of its checks (with what speaks for each, in `why`) and its setup; nothing was run."""

    checks: tuple[str, ...]
    why: tuple[str, ...]
    setup: str | None


def named_agent(resolved: Resolved, option: str) -> AgentConfig:
    """Return the agent of that name or short form; raises `NotFoundError` or `ConfigError`."""
    return agent_from_option(option) if ":" in option else find_agent(resolved.config, option)


class App:
    """Chargehand for one state directory; a context manager."""

    def __init__(self, *, environ: Mapping[str, str], cwd: Path, clock: Clock | None = None) -> None:
        self.environ = environ
        self.cwd = cwd
        self.home = state_home(environ)
        self.clock = clock or SystemClock()
        self._store: Store | None = None

    @classmethod
    @contextlib.contextmanager
    def open(cls, *, environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> Iterator[App]:
        """Open the app of the calling user; the store is opened when it is first needed."""
        app = cls(environ=os.environ if environ is None else environ, cwd=cwd or Path.cwd())
        try:
            yield app
        finally:
            app.close()

    def close(self) -> None:
        """Close the store."""
        if self._store is not None:
            self._store.close()

    @property
    def store(self) -> Store:
        """The state directory's store; raises `StoreError` as `open_store` does."""
        if self._store is None:
            self._store = open_store(self.home, clock=self.clock)
        return self._store

    @property
    def liveness(self) -> Liveness:
        """The locks of all missions."""
        return Liveness(self.home)

    @property
    def look(self) -> Look:
        """What reads missions."""
        return Look(store=self.store, liveness=self.liveness)

    def identity(self) -> str:
        """Return who acts: the operating system's name for the user, or their number where there is none."""
        user = os.getuid()
        try:
            return f"os:{pwd.getpwuid(user).pw_name}"
        except KeyError:
            return f"os:{user}"

    def project(self, repository: Path | None = None) -> ProjectRow:
        """Return the project of a repository (the working directory's by default), registered when new."""
        found = find_repository(self.cwd / repository if repository else self.cwd)
        return self.store.projects.register(found.path)

    def depot(self, project: ProjectRow) -> Depot:
        """Open the depot of a project."""
        with system_errors():
            return Depot.open(self.home / "projects" / project.id, repository=project.path)

    def find(self, repository: Path | None = None, *, revision: str | None = None) -> Found:
        """Return the project of a repository, its depot and a base; raises what each of these does."""
        with system_errors():
            place = find_repository(self.cwd / repository if repository else self.cwd)
            project = self.store.projects.register(place.path)
            depot = Depot.open(self.home / "projects" / project.id, repository=place)
            return Found(project=project, depot=depot, base=depot.resolve_base(revision))

    def configuration(
        self,
        project: ProjectRow,
        depot: Depot,
        base: Base,
        *,
        options: Mapping[str, Option] | None = None,
        head: bool = True,
    ) -> Resolved:
        """Return the configuration in force for a project at a base.

        `head` says that the base is what is checked out, so that an uncommitted `chargehand.toml` counts.
        """
        return resolve(
            user=load_user_file(user_config_path(self.environ)),
            environ=self.environ,
            options=options,
            repository=self._repository_file(project, depot, base, head=head),
            is_trusted=lambda digest: self.store.trust.is_trusted(project.id, digest),
        )

    def detected(self, depot: Depot, base: Base) -> Detected:
        """Return the checks and the setup that the files of a base suggest."""
        reader = DepotReader(depot)
        found = detect_checks(reader, base.tree)
        return Detected(checks=found.commands, why=found.why, setup=detect_setup(reader, base.tree))

    def user_configuration(self) -> Resolved:
        """Return the configuration in force outside of any repository."""
        return resolve(user=load_user_file(user_config_path(self.environ)), environ=self.environ)

    def _repository_file(
        self, project: ProjectRow, depot: Depot, base: Base, *, head: bool
    ) -> RepositoryFile | None:
        entry = depot.lookup(base.tree, REPOSITORY_FILE)
        committed = depot.read_blob(entry.id) if entry else None
        own = project.path / REPOSITORY_FILE
        if head and own.is_file() and not own.is_symlink():
            content = own.read_bytes()
            if content != committed:
                return RepositoryFile(content=content)
        return RepositoryFile(content=committed, commit=base.commit) if committed is not None else None

    def toolchain(self, resolved: Resolved | None = None) -> Toolchain:
        """Return the host programs that sandboxes may use."""
        extra = resolved.config.sandbox.toolchain if resolved else ()
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        return discover(
            search=self.environ.get("PATH", os.defpath), extra=extra, cache=self.home / "toolchain.json"
        )

    async def probe(self) -> ProbeReport:
        """Try for real what sandboxes this machine can offer."""
        return await probe(self.toolchain(), scratch=self.home)

    @contextlib.asynccontextmanager
    async def session(
        self,
        repository: Path | None = None,
        *,
        revision: str | None = None,
        options: Mapping[str, Option] | None = None,
        found: Found | None = None,
        watch: Watch = ignore,
    ) -> AsyncIterator[Session]:
        """Open everything for one project at one base; what dead processes left half done is finished first.

        `found` is what `find` returned for the same repository and revision, so that git is not asked again.
        """
        with system_errors():
            if found is None:
                found = await asyncio.to_thread(self.find, repository, revision=revision)
            project, depot, base = found.project, found.depot, found.base
            resolved = self.configuration(project, depot, base, options=options, head=revision is None)
            require_tier(resolved.config.sandbox.tier)
            toolchain = await asyncio.to_thread(self.toolchain, resolved)
            async with ProcessTier(toolchain) as tier:
                driver = await choose_driver(self.home, toolchain, strategy=resolved.config.project.strategy)
                services = Services(
                    home=self.home,
                    project=project.id,
                    store=self.store,
                    depot=depot,
                    tier=tier,
                    tier_name="process",
                    driver=driver,
                    toolchain=toolchain.id,
                    config=resolved.config,
                    liveness=self.liveness,
                    open_agent=lambda name: open_agent(name, named_agent(resolved, name)),
                    open_registries=self._registries,
                    clock=self.clock,
                    watch=watch,
                )
                missions = Missions(services)
                await missions.recover()
                yield Session(
                    project=project, depot=depot, base=base, resolved=resolved, missions=missions, driver=driver
                )

    @contextlib.asynccontextmanager
    async def _registries(self) -> AsyncIterator[Registries]:
        from chargehand.sandbox import RegistryConfig, RegistryMirror

        config = await asyncio.to_thread(RegistryConfig.from_user, self.environ)
        with tempfile.TemporaryDirectory(dir=self.home, prefix="registries-") as directory:
            async with RegistryMirror(Path(directory, "mirror.sock"), config=config) as mirror:
                yield mirror

    @contextlib.asynccontextmanager
    async def mission_session(self, mission: str, *, watch: Watch = ignore) -> AsyncIterator[tuple[str, Session]]:
        """Open the session of a mission given by its id or a part of it: its repository, at its base."""
        found = self.store.log.find(mission)
        state = self.look.state(found)
        if not Path(state.repository).is_dir():
            raise RepositoryError(
                f"the repository of mission {found!r} is gone: {state.repository!r}", code="repository_gone"
            )
        revision = state.base.commit if state.base else None
        async with self.session(Path(state.repository), revision=revision, watch=watch) as session:
            yield found, session
