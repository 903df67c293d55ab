"""The composition root: builds everything that changes something, from the configuration."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import pwd
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from chargehand import __version__
from chargehand.app._policy_files import load_rules
from chargehand.app.config.records import (
    REPOSITORY_FILE,
    OptionValue,
    RepositoryFile,
    ResolvedConfig,
    content_digest,
)
from chargehand.app.config.resolve import resolve
from chargehand.app.locations import load_user_file, state_home, user_config_path
from chargehand.app.selection.agents import requested_agent
from chargehand.app.selection.roles import RoleCatalogue
from chargehand.app.wiring.disk import StillNeeded
from chargehand.app.wiring.gateways import AttemptGateways, Standings
from chargehand.app.wiring.network import PackageMirrors, SandboxNetwork
from chargehand.app.wiring.profile import MachineProfile, profile_for, read_machine
from chargehand.app.wiring.session import DetectedChecks, ExecutionEnvironment, ProjectBase, Session
from chargehand.app.wiring.tiers import (
    MACHINES,
    SessionSnippets,
    choose_driver,
    open_tier,
    require_tier,
    settle_tier,
    try_tier,
    with_tier,
)
from chargehand.checks._detect import detect_checks, detect_setup
from chargehand.core.clock import Clock, SystemClock
from chargehand.core.config import Config, EngineConfig, SandboxConfig
from chargehand.core.config import Tier as TierName
from chargehand.core.errors import RepositoryError
from chargehand.core.ports import DriverName
from chargehand.core.records import Base
from chargehand.core.tiers import TierChoice
from chargehand.credentials._credentials import Credentials, open_credentials
from chargehand.durable._leases import LeasedWorkers
from chargehand.durable._orders import give_order, taking_orders
from chargehand.durable._workers import LocalWorkers, Membership, Role, Workers
from chargehand.missions._control import Controls
from chargehand.missions._journal import Watch, ignore
from chargehand.missions._missions import Look, Missions
from chargehand.missions._reader import DepotReader
from chargehand.missions._services import Services, Tier, cores
from chargehand.missions._steer import Steering
from chargehand.missions._system import system_errors
from chargehand.policy._rules import Rules
from chargehand.sandbox._probe import ProbeReport
from chargehand.sandbox._toolchain import Toolchain, discover
from chargehand.sandbox._toolchain_seen import ToolSeen, tools_inside
from chargehand.sandbox._vm_guest import Guest
from chargehand.store._projects import ProjectRow
from chargehand.store._store import Store, open_store
from chargehand.workspace._depot import Depot
from chargehand.workspace._quota import StateQuota
from chargehand.workspace._repository import find_repository


class App:
    """Chargehand for one state directory; a context manager.

    `role` says what this process is among the workers: a `command` ends with what a person named.
    """

    def __init__(
        self, *, environ: Mapping[str, str], cwd: Path, clock: Clock | None = None, role: Role = "command"
    ) -> None:
        self.environ = environ
        self.cwd = cwd
        self.home = state_home(environ)
        self.clock = clock or SystemClock()
        self.controls = Controls()
        self._local = LocalWorkers(self.home, version=__version__)
        self._standings = Standings()
        self._role = role
        self._loop: asyncio.AbstractEventLoop | None = None
        self._store: Store | None = None
        self._member: Membership | None = None
        self._taking_orders = 0

    @classmethod
    @contextlib.contextmanager
    def open(
        cls, *, environ: Mapping[str, str] | None = None, cwd: Path | None = None, role: Role = "command"
    ) -> Iterator[App]:
        """Open the app of the calling user; the store is opened when it is first needed."""
        app = cls(environ=os.environ if environ is None else environ, cwd=cwd or Path.cwd(), role=role)
        try:
            yield app
        finally:
            app.close()

    def close(self) -> None:
        """Close the store and leave the workers."""
        if self._store is not None:
            self._store.close()
        if self._member is not None:
            self._member.leave()

    @property
    def store(self) -> Store:
        """The state directory's store; raises `StoreError` as `open_store` does."""
        if self._store is None:
            self._store = open_store(self.home, clock=self.clock)
        return self._store

    @cached_property
    def engine(self) -> EngineConfig:
        """What schedules missions over workers: the user's own configuration, never a repository's."""
        return self.user_configuration().config.engine

    @cached_property
    def credentials(self) -> Credentials:
        """The keys of model providers: in the environment, the system's keyring, or the user's own file."""
        return open_credentials(self.environ, user_config_path(self.environ).parent)

    @property
    def engine_url(self) -> str:
        """The engine's database."""
        return self.engine.url or f"sqlite:///{self.home / 'engine.db'}"

    @cached_property
    def workers(self) -> Workers:
        """Who is alive: on this machine by locks, with a shared database also by leases."""
        if self.engine.url is None:
            return self._local
        return LeasedWorkers(self.engine.url, self._local, ttl=self.engine.lease, beat=self.engine.lease / 4)

    @property
    def member(self) -> Membership:
        """This process among the workers, joined when it is first needed."""
        if self._member is None:
            with system_errors():
                self._member = self.workers.join(self._role, on_lost=self._given_up)
        return self._member

    def _given_up(self) -> None:
        """Stop every mission, told by a thread that the others take this process for dead."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.controls.stop_all, "lost")

    @property
    def look(self) -> Look:
        """What reads missions."""
        return Look(store=self.store, workers=self.workers)

    def order(self, mission: str, order: str, **more: str) -> bool:
        """Give an order to the worker that holds a mission; `False` where none does. Raises `RefusedError`."""
        row = self.store.log.get(mission)
        if row.owner is None:
            return False
        request = {"mission": mission, "order": order, "identity": self.identity(), **more}
        return give_order(self._local.socket(row.owner), request) is not None

    def has_work(self) -> bool:
        """Tell whether any mission should go on that nobody alive holds."""
        return any(not self.look.live(row) for row in self.store.log.takeable())

    @property
    def steering(self) -> Steering:
        """What steers missions that nobody runs."""
        return Steering(store=self.store, look=self.look, worker=self.member.id, identity=self.identity())

    @contextlib.asynccontextmanager
    async def taking_orders(self) -> AsyncIterator[None]:
        """Take orders for the missions of this process while the block runs; blocks may be nested."""
        self._taking_orders += 1
        self._loop = asyncio.get_running_loop()
        try:
            async with contextlib.AsyncExitStack() as stack:
                if self._taking_orders == 1:
                    socket = self._local.socket(self.member.id)
                    await stack.enter_async_context(taking_orders(socket, self.controls.take))
                yield
        finally:
            self._taking_orders -= 1

    def identity(self) -> str:
        """Return who acts: the operating system's name for the user, or their number where there is none."""
        user = os.getuid()
        try:
            return f"os:{pwd.getpwuid(user).pw_name}"
        except KeyError:
            return f"os:{user}"

    @property
    def user(self) -> str:
        """Who pays for the missions that are started here: `CHARGEHAND_USER`, else the account (`identity`)."""
        return self.environ.get("CHARGEHAND_USER", "").strip()[:200] or self.identity()

    @cached_property
    def room(self) -> StateQuota:
        """What sees to it that there is disk space, by the limits of the user's own configuration."""
        limits = self.user_configuration().config.limits
        return StateQuota(
            lambda: sorted((self.home / "projects").glob("*/")),
            limit=limits.state_mb << 20,
            needed=lambda: self.needed,
            max_age=limits.workspace_age,
        )

    @property
    def needed(self) -> StillNeeded:
        """What of the state directory the missions still need, as of now."""
        return StillNeeded(self.look.all())

    def project(self, repository: Path | None = None) -> ProjectRow:
        """Return the project of a repository (the working directory's by default), registered when new."""
        found = find_repository(self.cwd / repository if repository else self.cwd)
        return self.store.projects.register(found.path)

    def depot(self, project: ProjectRow) -> Depot:
        """Open the depot of a project."""
        with system_errors():
            return Depot.open(self.home / "projects" / project.id, repository=project.path, room=self.room)

    def find(self, repository: Path | None = None, *, revision: str | None = None) -> ProjectBase:
        """Return the project of a repository, its depot and a base; raises what each of these does."""
        with system_errors():
            place = find_repository(self.cwd / repository if repository else self.cwd)
            project = self.store.projects.register(place.path)
            depot = Depot.open(self.home / "projects" / project.id, repository=place, room=self.room)
            return ProjectBase(project=project, depot=depot, base=depot.resolve_base(revision))

    def configuration(
        self,
        project: ProjectRow,
        depot: Depot,
        base: Base,
        *,
        options: Mapping[str, OptionValue] | None = None,
        head: bool = True,
    ) -> ResolvedConfig:
        """Return the configuration in force for a project at a base.

        `head` says that the base is what is checked out, so that an uncommitted `chargehand.toml` counts.
        """
        return resolve(
            user=load_user_file(user_config_path(self.environ)),
            environ=self.environ,
            options=options,
            repository=self._repository_file(project, depot, base, head=head),
            is_trusted=lambda digest: self.store.trust.is_trusted(project.id, digest),
            machine=self.profile.said(),
        )

    def detected(self, depot: Depot, base: Base) -> DetectedChecks:
        """Return the checks and the setup that the files of a base suggest."""
        reader = DepotReader(depot)
        found = detect_checks(reader, base.tree)
        return DetectedChecks(checks=found.commands, why=found.why, setup=detect_setup(reader, base.tree))

    def rules(self, depot: Depot | None = None, base: Base | None = None) -> Rules:
        """Return the rules in force, of a base or outside of any; raises `ConfigError` where they are wrong."""
        rules = load_rules(self.environ, depot, base.tree if base is not None else None)
        if len(rules.sources) > 1:  # those that are shipped are right, and parsed when they are first asked
            rules.check()
        return rules

    def roles(self, found: ProjectBase | None = None) -> RoleCatalogue:
        """Return the roles of a project at a base, or those outside of any; files are read when they are asked."""
        if found is None:
            return RoleCatalogue(self.environ)
        is_trusted = functools.partial(self.store.trust.is_trusted, found.project.id)
        return RoleCatalogue(self.environ, depot=found.depot, tree=found.base.tree, is_trusted=is_trusted)

    def user_configuration(self) -> ResolvedConfig:
        """Return the configuration in force outside of any repository."""
        user = load_user_file(user_config_path(self.environ))
        return resolve(user=user, environ=self.environ, machine=self.profile.said())

    @cached_property
    def profile(self) -> MachineProfile:
        """What this machine's size makes of the defaults, within the memory that the person gives to sandboxes."""
        own = resolve(user=load_user_file(user_config_path(self.environ)), environ=self.environ)
        return profile_for(read_machine(), budget_mb=own.config.engine.memory_mb)

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

    def toolchain(self, resolved: ResolvedConfig | None = None) -> Toolchain:
        """Return the host programs that sandboxes may use."""
        extra = resolved.config.sandbox.toolchain if resolved else ()
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        return discover(
            search=self.environ.get("PATH", os.defpath),
            extra=extra,
            cache=self.home / "toolchain.json",
            environ=self.environ,
        )

    def set_up_machines(self, packages: Sequence[Path] = ()) -> Guest:
        """Put the kernel of virtual machines into the state directory; see `set_up_guest`."""
        from chargehand.sandbox._vm_guest import set_up_guest

        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        return set_up_guest(self.home / MACHINES, packages=packages, environ=self.environ)

    async def probe(self, tier: TierName = "process") -> ProbeReport:
        """Try for real what sandboxes of a tier this machine can offer."""
        config = replace(self.user_configuration().config.sandbox, tier=tier)
        return await try_tier(config, self.toolchain(), home=self.home, environ=self.environ)

    async def tools(self, driver: DriverName) -> tuple[ToolSeen, ...]:
        """Start every known program of the toolchain inside a sandbox."""
        return await tools_inside(self.toolchain(self.user_configuration()), scratch=self.home, driver=driver)

    @contextlib.asynccontextmanager
    async def session(
        self,
        repository: Path | None = None,
        *,
        revision: str | None = None,
        options: Mapping[str, OptionValue] | None = None,
        found: ProjectBase | None = None,
        config: Config | None = None,
        choice: TierChoice | None = None,
        watch: Watch = ignore,
    ) -> AsyncIterator[Session]:
        """Open everything for one project at one base; what dead processes left half promoted is finished first.

        `found` is what `find` returned for the same repository and revision, so that git is not asked again;
        `config` is what was in force when a mission was asked for, instead of what is in force now; `choice` is
        the tier that it had.
        """
        with system_errors():
            if found is None:
                found = await asyncio.to_thread(self.find, repository, revision=revision)
            project, depot, base = found.project, found.depot, found.base
            if config is not None:
                resolved = self._recorded(project, depot, base, config)
            else:
                resolved = self.configuration(project, depot, base, options=options, head=revision is None)
            require_tier(resolved.config.sandbox.tier)
            toolchain = await asyncio.to_thread(self.toolchain, resolved)
            trusted = self.store.trust.is_trusted(project.id, resolved.trusted_by)
            choice = choice or await settle_tier(
                resolved, trusted=trusted, home=self.home, toolchain=toolchain, environ=self.environ
            )
            resolved = with_tier(resolved, choice)
            opening = self._opening(resolved.config.sandbox, toolchain)
            async with self.taking_orders(), opening as tier, SessionSnippets() as snippets:
                place = await self._place(project, depot, tier, toolchain, resolved)
                rules = await asyncio.to_thread(self.rules, depot, base)
                rest = self._services(place, resolved, watch, rules)
                vouched = self._vouched(place, base, resolved, head=revision is None)
                missions = Missions(replace(rest, choice=choice, vouched=vouched, open_snippets=snippets))
                await missions.recover()
                yield Session(
                    project=project,
                    depot=depot,
                    base=base,
                    resolved=resolved,
                    missions=missions,
                    driver=place.driver,
                    choice=choice,
                )

    def _opening(self, config: SandboxConfig, toolchain: Toolchain) -> AbstractAsyncContextManager[Tier]:
        # The launcher keeps this worker alive to the others until the last of its sandboxes is gone.
        return open_tier(config, toolchain, scratch=self.home, alive=self.member.fileno(), environ=self.environ)

    async def _place(
        self, project: ProjectRow, depot: Depot, tier: Tier, toolchain: Toolchain, resolved: ResolvedConfig
    ) -> ExecutionEnvironment:
        own = resolved.config
        driver = await choose_driver(
            self.home,
            toolchain,
            strategy=own.project.strategy,
            config=own.sandbox,
            environ=self.environ,
        )
        tools = _tools(toolchain, resolved)
        return ExecutionEnvironment(project=project, depot=depot, driver=driver, tier=tier, toolchain=tools)

    def _recorded(self, project: ProjectRow, depot: Depot, base: Base, config: Config) -> ResolvedConfig:
        """Return a recorded configuration with the content of the repository's file that it may be trusted by."""
        own = self._repository_file(project, depot, base, head=False)
        return ResolvedConfig(config=config, origins={}, digest=own.digest if own else "")

    def _vouched(
        self, place: ExecutionEnvironment, base: Base, resolved: ResolvedConfig, *, head: bool
    ) -> Callable[[str], bool]:
        """Return what tells whether a person wrote a command, or trusts the repository that it is from."""
        file = self._repository_file(place.project, place.depot, base, head=head)
        if file is not None and self.store.trust.is_trusted(place.project.id, content_digest(file.content)):
            return lambda command: True
        own = self.user_configuration().config.project
        typed = {*(own.checks or ()), *resolved.extra_checks, *(resolved.only_checks or ()), own.setup}
        return typed.__contains__

    def _services(
        self, place: ExecutionEnvironment, resolved: ResolvedConfig, watch: Watch, rules: Rules
    ) -> Services:
        gateways = AttemptGateways(
            config=resolved.config,
            spending=self.store.spending,
            keys=self.credentials,
            environ=self.environ,
            scratch=self._local.scratch(self.member.id),
            clock=self.clock,
            user=self.user,
            standings=self._standings,
        )
        return Services(
            home=self.home,
            project=place.project.id,
            store=self.store,
            depot=place.depot,
            tier=place.tier,
            tier_name=resolved.config.sandbox.tier,
            driver=place.driver,
            toolchain=place.toolchain,
            config=resolved.config,
            workers=self.workers,
            worker=(self.member.id, self._role),
            controls=self.controls,
            version=__version__,
            open_agent=lambda request: requested_agent(resolved, request),
            open_gateway=gateways,
            open_registries=PackageMirrors(environ=self.environ, scratch=self._local.scratch(self.member.id)),
            open_egress=SandboxNetwork(
                config=resolved.config.sandbox, scratch=self._local.scratch(self.member.id)
            ),
            clock=self.clock,
            watch=watch,
            rules=rules,
            attempts_at_once=self.engine.attempts_at_once,
            checks_at_once=self.engine.checks_at_once or cores(),
            user=self.user,
        )

    @contextlib.asynccontextmanager
    async def mission_session(
        self, mission: str, *, recorded: bool = False, watch: Watch = ignore
    ) -> AsyncIterator[tuple[str, Session]]:
        """Open the session of a mission given by its id or a part of it: its repository, at its base.

        `recorded` says that the configuration it was asked for with is in force, not the present one.
        """
        found = self.store.log.find(mission)
        state = self.look.state(found)
        if not Path(state.repository).is_dir():
            raise RepositoryError(
                f"the repository of mission {found!r} is gone: {state.repository!r}", code="repository_gone"
            )
        revision = state.base.commit if state.base else None
        config = state.config if recorded else None
        choice = state.tier if recorded else None
        where = Path(state.repository)
        async with self.session(where, revision=revision, config=config, choice=choice, watch=watch) as session:
            yield found, session


def _tools(toolchain: Toolchain, resolved: ResolvedConfig) -> str:
    """Return what tells the programs of sandboxes, so of a layer and of what checks said, from others."""
    image = resolved.config.sandbox.container_image
    return f"{toolchain.id}-{image}" if image else toolchain.id
