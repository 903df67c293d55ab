"""Prepares work on a repository: its base, configuration, roles and sandboxes, and whether agents can start."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from chargehand.app.providers.served import existing_keys
from chargehand.app.selection.directories import named_directory, standing_directory
from chargehand.app.selection.readiness import StartPlace, require_ready
from chargehand.app.selection.roles import RoleCatalogue
from chargehand.app.selection.tasks import PlanCheck, TaskAssigner
from chargehand.app.wiring.policy_files import load_rules
from chargehand.app.wiring.session import ConfiguredBase, DetectedChecks, ProjectBase, WorkPlaces
from chargehand.app.wiring.tiers import choose_driver, require_tier, settle_tier, try_tier, with_tier
from chargehand.checks.detection import detect_checks, detect_setups, find_project
from chargehand.configuration.locations import load_user_file, user_config_path
from chargehand.configuration.records import OptionValue, ResolvedConfig
from chargehand.configuration.resolve import REGISTRIES, allow_registries, resolve
from chargehand.core.config import SandboxConfig
from chargehand.core.ports import DriverName
from chargehand.core.records import Base, TierChoice, TierName
from chargehand.core.state import MissionState
from chargehand.decisions.decider import Decider
from chargehand.missions.services import DepotReader, system_errors
from chargehand.policy.rules import Rules
from chargehand.reports.reading import StateReader, mission_project
from chargehand.sandbox.probe import ProbeReport
from chargehand.sandbox.tiers import MACHINES
from chargehand.sandbox.tool_versions import ToolVersion, read_tool_versions
from chargehand.sandbox.toolchain import Toolchain, discover
from chargehand.sandbox.vm_kernel import VmKernel
from chargehand.store.projects import ProjectRow
from chargehand.workspace.depot import Depot
from chargehand.workspace.repository import find_repository


class Preparation:
    """Prepares work with one state directory; `decider` returns the chooser of the agents of tasks."""

    def __init__(self, reader: StateReader, decider: Callable[[], Decider]) -> None:
        self._reader = reader
        self._decider = decider

    def register_project(self, repository: Path | None = None) -> ProjectRow:
        """Return the project of a repository (the working directory's by default); register a new one."""
        found = find_repository(self._reader.cwd / repository if repository else self._reader.cwd)
        return self._reader.projects.registry.find(found, register=True)

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
            at = self._reader.cwd / repository if repository else self._reader.cwd
            if mission is None:
                place = find_repository(at)
                project = self._reader.projects.registry.find(place, register=not only_reads)
            else:
                place = self._reader.projects.mission_repository(mission)
                at, project = place.path, mission_project(mission, place)
            open_depot = Depot.view if only_reads else Depot.open
            depot = open_depot(
                self._reader.home / "projects" / project.id, repository=place, room=self._reader.projects.room
            )
            base = depot.resolve_base(revision, recorded=recorded)
            if directory is None:
                start = standing_directory(place, at)
            else:
                start = named_directory(depot, base, directory, at=place.path if repository else self._reader.cwd)
            return ProjectBase(project=project, depot=depot, base=base, start=start)

    def places(self, found: ProjectBase, resolved: ResolvedConfig) -> WorkPlaces:
        """Return the directories in which the agent and the checks of a mission start."""
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
        trust = self._reader.store.trust
        resolved = resolve(
            user=load_user_file(user_config_path(self._reader.environ)),
            environ=self._reader.environ,
            options=options,
            repository=found.repository_file(head=head),
            is_trusted=lambda digest: trust.is_trusted(project.id, digest),
            machine=self._reader.profile.said(),
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
        if self._reader.projects.current(repository) is None:
            return self._reader.user_configuration()
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
        require_ready(
            resolved.config,
            name,
            models,
            place=place,
            keys=existing_keys(self._reader.credentials, found.project),
            environ=self._reader.environ,
        )

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
        rules = load_rules(self._reader.environ, depot, base.tree if base is not None else None)
        if len(rules.sources) > 1:  # the shipped rules are valid, and parsed at first use
            rules.check()
        return rules

    def roles(self, found: ProjectBase | None = None) -> RoleCatalogue:
        """Return the roles of a project at a base, or those outside any repository; files are read at use."""
        if found is None:
            return RoleCatalogue(self._reader.environ)
        is_trusted = functools.partial(self._reader.store.trust.is_trusted, found.project.id)
        return RoleCatalogue(self._reader.environ, depot=found.depot, tree=found.base.tree, is_trusted=is_trusted)

    def toolchain(self, resolved: ResolvedConfig | None = None) -> Toolchain:
        """Return the host programs that sandboxes may use."""
        wanted = resolved.config.sandbox if resolved else SandboxConfig()
        self._reader.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        return discover(
            search=self._reader.environ.get("PATH", os.defpath),
            extra=wanted.toolchain,
            packages=wanted.host_packages,
            cache=self._reader.home / "toolchain.json",
            environ=self._reader.environ,
        )

    def task_assigner(self, found: ProjectBase, resolved: ResolvedConfig) -> TaskAssigner:
        """Return the assigner for tasks of a plan on a base."""
        return TaskAssigner(
            resolved=resolved,
            roles=self.roles(found),
            environ=self._reader.environ,
            keys=existing_keys(self._reader.credentials, found.project),
            artifacts=self._reader.store.artifacts,
            decider=self._decider(),
        )

    def plan_check(self, found: ProjectBase, resolved: ResolvedConfig) -> PlanCheck:
        """Return the check whether an agent can do each task of a plan on a base."""
        return PlanCheck(
            assigner=self.task_assigner(found, resolved),
            require_ready=lambda agent, models: self.require_ready_agent(found, resolved, agent, models),
        )


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
