"""The composition root: builds everything that changes state, from the configuration."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from chargehand import __version__
from chargehand.app.selection.agents import requested_agent
from chargehand.app.selection.directories import named_directory, standing_directory
from chargehand.app.selection.readiness import StartPlace, require_ready
from chargehand.app.selection.roles import RoleCatalogue
from chargehand.app.selection.tasks import PlanCheck, TaskAssigner
from chargehand.app.wiring.gateways import AttemptGateways, ProviderHealthRegistry
from chargehand.app.wiring.network import PackageMirrors, SandboxNetwork
from chargehand.app.wiring.policy_files import load_rules
from chargehand.app.wiring.session import ConfiguredBase, DetectedChecks, ProjectBase, Session, WorkPlaces
from chargehand.app.wiring.tiers import (
    OpenTiers,
    SessionSnippets,
    choose_driver,
    require_tier,
    settle_tier,
    try_tier,
    with_tier,
)
from chargehand.checks.detection import detect_checks, detect_setups, find_project
from chargehand.configuration.locations import load_user_file, user_config_path
from chargehand.configuration.records import (
    OptionValue,
    ResolvedConfig,
    content_digest,
)
from chargehand.configuration.resolve import REGISTRIES, allow_registries, resolve
from chargehand.core.clock import Clock
from chargehand.core.config import Config, SandboxConfig
from chargehand.core.errors import RefusedError
from chargehand.core.events import OnEvent, ignore_event
from chargehand.core.ports import DriverName
from chargehand.core.records import Base, TierChoice, TierName
from chargehand.core.state import MissionState
from chargehand.decisions.decider import Decider
from chargehand.durable.orders import give_order, taking_orders
from chargehand.durable.workers import Membership, Role
from chargehand.missions.control import Controls
from chargehand.missions.missions import Missions
from chargehand.missions.services import DepotReader, Services, Tier, available_cores, system_errors
from chargehand.missions.steering import Steering
from chargehand.policy.rules import Rules
from chargehand.reports.reading import StateReader, mission_project, working_directory
from chargehand.sandbox.probe import ProbeReport
from chargehand.sandbox.tiers import MACHINES
from chargehand.sandbox.tool_versions import ToolVersion, read_tool_versions
from chargehand.sandbox.toolchain import Toolchain, discover
from chargehand.sandbox.vm_kernel import VmKernel
from chargehand.store.projects import ProjectRow
from chargehand.workspace.depot import Depot
from chargehand.workspace.repository import find_repository

# How long an order is retried while a worker holds a mission, and the error codes that mean this.
_RETRY_SECONDS = 10.0
_TRANSIENT_ERRORS = frozenset({"mission_held", "not_running", "promoting", "task_busy"})


class App(StateReader):
    """Chargehand for one state directory: reads it, and builds everything that changes it.

    `role` is the role of this process among the workers: a `command` ends with the missions that a person named.
    `decider` has the chooser of all agents and models, by default the fixed rules.
    """

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        cwd: Path,
        clock: Clock | None = None,
        role: Role = "command",
        actor: str = "",
        starts_workers: bool = True,
        decider: Decider | None = None,
    ) -> None:
        super().__init__(environ=environ, cwd=cwd, clock=clock, actor=actor, starts_workers=starts_workers)
        self.decider = decider or Decider()
        self.controls = Controls()
        self._standings = ProviderHealthRegistry()
        self._role = role
        self._loop: asyncio.AbstractEventLoop | None = None
        self._member: Membership | None = None
        self._taking_orders = 0
        self._tiers = OpenTiers()

    @classmethod
    @contextlib.contextmanager
    def open(
        cls, *, environ: Mapping[str, str] | None = None, cwd: Path | None = None, role: Role = "command"
    ) -> Iterator[App]:
        """Open the state directory as `StateReader.open` does; leave the workers at the end."""
        app = cls(environ=os.environ if environ is None else environ, cwd=cwd or working_directory(), role=role)
        try:
            yield app
        finally:
            app.close()

    def close(self) -> None:
        """Close the store and leave the workers."""
        super().close()
        if self._member is not None:
            self._member.leave()

    @property
    def engine_url(self) -> str:
        """The URL of the engine's database."""
        return self.engine.url or f"sqlite:///{self.home / 'engine.db'}"

    @property
    def member(self) -> Membership:
        """This process's membership among the workers, joined at first use."""
        if self._member is None:
            with system_errors():
                self._member = self.workers.join(self._role, on_lost=self._stop_lost_missions)
        return self._member

    def _stop_lost_missions(self) -> None:
        """Stop every mission, since the other workers consider this process dead; called in another thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.controls.stop_all, "lost")

    def order(self, mission: str, order: str, **more: str) -> bool:
        """Give an order to a mission's worker; return `False` if it has none. Raises `RefusedError`."""
        row = self.store.log.get(mission)
        if row.owner is None:
            return False
        request = {"mission": mission, "order": order, "identity": self.identity(), **more}
        # If the socket has no listener, the owner is dead or about to end: the caller then steers the mission
        # itself.
        return give_order(self._local.socket(row.owner), request) is not None

    def steer(self, mission: str, order: str, at_rest: Callable[[], object], **more: str) -> None:
        """Give an order to a mission's worker, or call `at_rest` if it has none. Raises `RefusedError`.

        Retried for a while if a worker is claiming or releasing the mission, or is in a step that it does not
        interrupt: coordinators are held only for moments.
        """
        deadline = time.monotonic() + _RETRY_SECONDS
        while True:
            try:
                if not self.order(mission, order, **more):
                    at_rest()
                return
            except RefusedError as error:
                if error.code not in _TRANSIENT_ERRORS or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    @property
    def steering(self) -> Steering:
        """The operations on missions that no worker runs."""
        return Steering(
            store=self.store,
            look=self.acting_reader,
            worker=self.member.id,
            identity=self.identity(),
            open_depot=self.mission_depot,
            clock=self.clock,
        )

    @contextlib.asynccontextmanager
    async def taking_orders(self) -> AsyncIterator[None]:
        """Take orders for this process's missions while the block runs; the outermost closes shared tiers."""
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
            if not self._taking_orders:
                await self._tiers.close()

    def register_project(self, repository: Path | None = None) -> ProjectRow:
        """Return the project of a repository (the working directory's by default); register a new one."""
        found = find_repository(self.cwd / repository if repository else self.cwd)
        return self.registry.find(found, register=True)

    def find(
        self,
        repository: Path | None = None,
        *,
        revision: str | None = None,
        directory: str | None = None,
        only_reads: bool = False,
        recorded: bool = False,
        mission: MissionState | None = None,
    ) -> ProjectBase:
        """Return the project of a repository, or of a `mission`, with its depot and a base; raise their errors.

        `directory` is where work starts, as given by `--dir`; by default the current directory. With `only_reads`
        neither a project nor a depot is created, so that it works on a full disk. `recorded`: see `resolve_base`.
        """
        with system_errors():
            at = self.cwd / repository if repository else self.cwd
            if mission is None:
                place = find_repository(at)
                project = self.registry.find(place, register=not only_reads)
            else:
                place = self.mission_repository(mission)
                at, project = place.path, mission_project(mission, place)
            open_depot = Depot.view if only_reads else Depot.open
            depot = open_depot(self.home / "projects" / project.id, repository=place, room=self.room)
            base = depot.resolve_base(revision, recorded=recorded)
            if directory is None:
                start = standing_directory(place, at)
            else:
                start = named_directory(depot, base, directory, at=place.path if repository else self.cwd)
            return ProjectBase(project=project, depot=depot, base=base, start=start)

    def places(self, found: ProjectBase, resolved: ResolvedConfig) -> WorkPlaces:
        """Return the directories where a mission's agent and checks start."""
        directory = find_project(DepotReader(found.depot), found.base.tree, found.start)
        checks = directory if resolved.commands_from is None else resolved.commands_from
        # The deeper one: an uncommitted configuration makes its directory a project as well.
        return WorkPlaces(agent=max(directory, checks, key=len), checks=checks)

    def configuration(
        self, found: ProjectBase, *, options: Mapping[str, OptionValue] | None = None, head: bool = True
    ) -> ResolvedConfig:
        """Return the configuration in force for a project at a base.

        `head` says that the base is checked out, so that an uncommitted `chargehand.toml` counts.
        """
        project = found.project
        trust = self.store.trust
        resolved = resolve(
            user=load_user_file(user_config_path(self.environ)),
            environ=self.environ,
            options=options,
            repository=found.repository_file(head=head),
            is_trusted=lambda digest: trust.is_trusted(project.id, digest),
            machine=self.profile.said(),
        )
        return allow_registries(resolved) if trust.is_trusted(project.id, REGISTRIES) else resolved

    def configured(
        self,
        repository: Path | None,
        *,
        revision: str | None = None,
        directory: str | None = None,
        options: Mapping[str, OptionValue] | None = None,
        only_reads: bool = False,
    ) -> ConfiguredBase:
        """Return a repository's base, as `find` does, with the configuration in force for it."""
        found = self.find(repository, revision=revision, directory=directory, only_reads=only_reads)
        resolved = self.configuration(found, options=options, head=revision is None)
        return ConfiguredBase(
            project=found.project, depot=found.depot, base=found.base, start=found.start, resolved=resolved
        )

    def configuration_here(self, repository: Path | None) -> ResolvedConfig:
        """Return the configuration in force in a repository, or the user's own outside any repository."""
        if self.current_project(repository) is None:
            return self.user_configuration()
        return self.configured(repository, only_reads=True).resolved

    def detected(self, depot: Depot, base: Base, directory: str) -> DetectedChecks:
        """Return the checks and the setup that the files of a base suggest for a directory."""
        reader = DepotReader(depot)
        found = detect_checks(reader, base.tree, directory)
        setups = detect_setups(reader, base.tree, directory)
        return DetectedChecks(checks=found.commands, why=found.why, setup=next(iter(setups), None))

    def require_ready_agent(
        self, found: ProjectBase, resolved: ResolvedConfig, name: str, models: tuple[str, ...]
    ) -> None:
        """Return if an agent with these models can start on a base; raise as `require_ready` does."""
        places = self.places(found, resolved)
        setup = resolved.config.project.setup
        place = StartPlace(
            depot=found.depot,
            tree=found.base.tree,
            directory=places.agent,
            toolchain=lambda: self.toolchain(resolved),
            setup_expected=lambda: bool(setup or self.detected(found.depot, found.base, places.checks).setup),
        )
        require_ready(resolved.config, name, models, place=place, keys=self.credentials, environ=self.environ)

    def require_recorded_agent(self, state: MissionState, model: str | None = None) -> None:
        """Return if a mission's recorded agent can start, by default with its recorded model.

        Raises as `require_ready` does, and if its repository is gone.
        """
        request = state.request
        config = state.config
        if request is None or config is None or state.base is None:  # a damaged log: its reader reports that
            return
        found = replace(self.find(revision=state.base.commit, mission=state), start=request.directory)
        first = model or request.model
        models = (*((first,) if first else ()), *request.fallback)
        self.require_ready_agent(found, ResolvedConfig(config=config, origins={}), request.agent, models)

    def rules(self, depot: Depot | None = None, base: Base | None = None) -> Rules:
        """Return the rules in force, of a base or outside any repository; raise `ConfigError` if invalid."""
        rules = load_rules(self.environ, depot, base.tree if base is not None else None)
        if len(rules.sources) > 1:  # the shipped rules are valid, and parsed at first use
            rules.check()
        return rules

    def roles(self, found: ProjectBase | None = None) -> RoleCatalogue:
        """Return the roles of a project at a base, or those outside any repository; files are read at use."""
        if found is None:
            return RoleCatalogue(self.environ)
        is_trusted = functools.partial(self.store.trust.is_trusted, found.project.id)
        return RoleCatalogue(self.environ, depot=found.depot, tree=found.base.tree, is_trusted=is_trusted)

    def toolchain(self, resolved: ResolvedConfig | None = None) -> Toolchain:
        """Return the host programs that sandboxes may use."""
        wanted = resolved.config.sandbox if resolved else SandboxConfig()
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        return discover(
            search=self.environ.get("PATH", os.defpath),
            extra=wanted.toolchain,
            packages=wanted.host_packages,
            cache=self.home / "toolchain.json",
            environ=self.environ,
        )

    def set_up_machines(self, packages: Sequence[Path] = ()) -> VmKernel:
        """Install the kernel of virtual machines in the state directory; see `set_up_kernel`."""
        from chargehand.sandbox.vm_kernel import set_up_kernel

        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        return set_up_kernel(self.home / MACHINES, packages=packages, environ=self.environ)

    async def probe(self, tier: TierName = "process") -> ProbeReport:
        """Probe what sandboxes of a tier can offer on this machine, by real tries."""
        config = replace(self.user_configuration().config.sandbox, tier=tier)
        return await try_tier(config, self.toolchain(), home=self.home, environ=self.environ)

    async def tools(self, driver: DriverName) -> tuple[ToolVersion, ...]:
        """Start every known program of the toolchain inside a sandbox."""
        return await read_tool_versions(
            self.toolchain(self.user_configuration()), scratch=self.home, driver=driver
        )

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
        watch: OnEvent = ignore_event,
    ) -> AsyncIterator[Session]:
        """Open everything for one project at one base; first finish promotions that dead processes began.

        `found` is the result of `find` for the same repository and revision, so that git is not called again;
        `config` is the configuration in force when a mission was requested, used instead of the current one;
        `choice` is the mission's tier.
        """
        with system_errors():
            if found is None:
                found = await asyncio.to_thread(self.find, repository, revision=revision)
            if config is not None:
                # Trust refers to the repository's file as recorded with the base, not to the current file.
                own = found.repository_file(head=False)
                resolved = ResolvedConfig(config=config, origins={}, digest=own.digest if own else "")
            else:
                resolved = self.configuration(found, options=options, head=revision is None)
            places = await asyncio.to_thread(self.places, found, resolved)
            resolved, choice, toolchain = await self._settle_tier(found, resolved, choice)
            # The launcher keeps this worker alive for the others until its last sandbox is gone.
            opening = self._tiers.use(
                resolved.config.sandbox,
                toolchain,
                scratch=self.home,
                alive=self.member.fileno(),
                environ=self.environ,
            )
            # Orders first: `mission cancel` and `pause` must reach what runs here.
            async with self.taking_orders(), opening as tier, SessionSnippets() as snippets:
                driver = await choose_driver(
                    self.home,
                    toolchain,
                    strategy=resolved.config.project.strategy,
                    config=resolved.config.sandbox,
                    environ=self.environ,
                )
                services = self._services(found, resolved, tier=tier, driver=driver, toolchain=toolchain)
                services = replace(
                    services,
                    watch=watch,
                    rules=await asyncio.to_thread(self.rules, found.depot, found.base),
                    choice=choice,
                    is_trusted=self._command_trust(found, resolved, head=revision is None),
                    open_snippets=snippets,
                )
                missions = Missions(services, controls=self.controls)
                # Before anything new: a process may have died between swapping a branch and recording it.
                await missions.recover()
                yield Session(
                    project=found.project, depot=found.depot, base=found.base, start=found.start, places=places,
                    resolved=resolved, missions=missions, driver=driver, choice=choice,
                )  # fmt: skip

    async def _settle_tier(
        self, found: ProjectBase, resolved: ResolvedConfig, choice: TierChoice | None
    ) -> tuple[ResolvedConfig, TierChoice, Toolchain]:
        """Return the configuration with the chosen tier, the choice, and the toolchain."""
        require_tier(resolved.config.sandbox.tier)
        toolchain = await asyncio.to_thread(self.toolchain, resolved)
        trusted = self.store.trust.is_trusted(found.project.id, resolved.trusted_by)
        choice = choice or await settle_tier(
            resolved, trusted=trusted, home=self.home, toolchain=toolchain, environ=self.environ
        )
        return with_tier(resolved, choice), choice, toolchain

    async def prove_tier(self, found: ProjectBase, resolved: ResolvedConfig) -> None:
        """Return if the tier that a mission would use works here; probe it unless an earlier probe decided it.

        Raises `TierUnavailableError`. Workers that share a database may be elsewhere: then nothing is tried.
        """
        if self.engine.url is not None:
            return
        settled, _, toolchain = await self._settle_tier(found, resolved, None)
        config = settled.config
        await choose_driver(
            self.home, toolchain, strategy=config.project.strategy, config=config.sandbox, environ=self.environ
        )

    def _command_trust(self, found: ProjectBase, resolved: ResolvedConfig, *, head: bool) -> Callable[[str], bool]:
        """Return a function that says whether a person wrote a command, or trusts the repository it comes from."""
        file = found.repository_file(head=head)
        if file is not None and self.store.trust.is_trusted(found.project.id, content_digest(file.content)):
            return lambda command: True
        # Not the configuration in force, which includes the repository's commands.
        own = self.user_configuration().config.project
        typed = {
            *(own.checks or ()),
            *own.outside_checks,
            *resolved.extra_checks,
            *(resolved.only_checks or ()),
            own.setup,
        }
        return typed.__contains__

    def _services(
        self, found: ProjectBase, resolved: ResolvedConfig, *, tier: Tier, driver: DriverName, toolchain: Toolchain
    ) -> Services:
        """Return the services of one session's missions; its sockets are in the scratch directory."""
        scratch = self._local.scratch(self.member.id)
        sandbox = resolved.config.sandbox
        gateways = AttemptGateways(
            config=resolved.config,
            spending=self.store.spending,
            keys=self.credentials,
            environ=self.environ,
            scratch=scratch,
            clock=self.clock,
            user=self.user,
            standings=self._standings,
        )
        # Environment layers and stored verdicts depend on the programs that made them: host toolchain and image.
        image = sandbox.container_image
        return Services(
            home=self.home,
            project=found.project.id,
            store=self.store,
            depot=found.depot,
            tier=tier,
            tier_name=sandbox.tier,
            driver=driver,
            toolchain=f"{toolchain.id}-{image}" if image else toolchain.id,
            config=resolved.config,
            workers=self.workers,
            worker=(self.member.id, self._role),
            version=__version__,
            open_agent=lambda request: requested_agent(resolved, request),
            open_gateway=gateways,
            open_registries=PackageMirrors(environ=self.environ, scratch=scratch),
            open_egress=SandboxNetwork(config=sandbox, scratch=scratch),
            clock=self.clock,
            attempts_at_once=self.engine.attempts_at_once,
            checks_at_once=self.engine.checks_at_once or available_cores(),
            user=self.user,
            decider=self.decider,
            prepare_task=self.task_assigner(found, resolved).assign,
            check_plan=self.plan_check(found, resolved),
            stop_mission=self._stop_mission,
        )

    def task_assigner(self, found: ProjectBase, resolved: ResolvedConfig) -> TaskAssigner:
        """Return the assigner for tasks of a plan on a base."""
        return TaskAssigner(
            resolved=resolved,
            roles=self.roles(found),
            environ=self.environ,
            keys=self.credentials,
            artifacts=self.store.artifacts,
            decider=self.decider,
        )

    def plan_check(self, found: ProjectBase, resolved: ResolvedConfig) -> PlanCheck:
        """Return the check whether an agent can do each task of a plan on a base."""
        return PlanCheck(
            assigner=self.task_assigner(found, resolved),
            require_ready=lambda agent, models: self.require_ready_agent(found, resolved, agent, models),
        )

    def _stop_mission(self, mission: str, why: str) -> None:
        reason = f"its coordinator stopped it: {why}"
        with contextlib.suppress(RefusedError):  # it ended meanwhile
            if not self.order(mission, "cancel", reason=reason):
                self.steering.cancel(mission, reason)

    @contextlib.asynccontextmanager
    async def mission_session(
        self, mission: str, *, recorded: bool = False, watch: OnEvent | None = None
    ) -> AsyncIterator[tuple[str, Session]]:
        """Open the session of a mission given by its id or a part of it: its repository, at its base.

        `recorded` selects the configuration in force when it was requested, instead of the current one.
        """
        # In threads: a worker has other missions on its loop, and a long log takes long to read.
        found = await asyncio.to_thread(self.store.log.find, mission)
        state = await asyncio.to_thread(self.mission_reader.state, found)
        # The recorded commit, not the branch, which may have moved.
        revision = state.base.commit if state.base else None
        # The environment layer and the checks' results depend on the tier: a mission keeps its tier.
        config, choice = (state.config, state.tier) if recorded else (None, None)
        at = await asyncio.to_thread(self.find, revision=revision, recorded=True, mission=state)
        # The directory that was requested, wherever the person is now.
        at = replace(at, start=state.request.directory if state.request else "")
        seen = watch or ignore_event
        async with self.session(revision=revision, found=at, config=config, choice=choice, watch=seen) as session:
            yield found, session
