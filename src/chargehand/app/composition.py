"""The composition root: builds everything that changes state, from the configuration."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

from msgspec.structs import replace

from chargehand import __version__
from chargehand.app.forge.request_target import RequestTarget
from chargehand.app.selection.agents import requested_agent
from chargehand.app.selection.deciders import make_decider
from chargehand.app.wiring.code_map import map_opener
from chargehand.app.wiring.gateways import AttemptGateways, ProviderHealthRegistry
from chargehand.app.wiring.network import PackageMirrors, SandboxNetwork
from chargehand.app.wiring.preparation import Preparation, Sandboxes
from chargehand.app.wiring.session import ProjectBase, Session
from chargehand.app.wiring.tiers import (
    OpenTiers,
    SessionSnippets,
    choose_driver,
)
from chargehand.configuration.records import (
    OptionValue,
    ResolvedConfig,
    content_digest,
)
from chargehand.core.clock import Clock
from chargehand.core.config import Config
from chargehand.core.errors import RefusedError
from chargehand.core.events import OnEvent, ignore_event
from chargehand.core.ports import DriverName
from chargehand.core.records import TierChoice
from chargehand.decisions.decider import Decider
from chargehand.durable.orders import give_order, taking_orders
from chargehand.durable.workers import Membership, Role
from chargehand.missions.control import Controls
from chargehand.missions.missions import Missions
from chargehand.missions.services import Services, Tier, available_cores, system_errors
from chargehand.missions.steering import Steering
from chargehand.reports.known_secrets import KnownSecrets
from chargehand.reports.reading import StateReader, working_directory
from chargehand.sandbox.toolchain import Toolchain

# How long an order is retried while a worker holds a mission, and the error codes that mean this.
_RETRY_SECONDS = 10.0
_TRANSIENT_ERRORS = frozenset({"mission_held", "not_running", "promoting", "task_busy"})


class App(StateReader):
    """Chargehand for one state directory: reads it, and builds everything that changes it.

    `role` is the role of this process among the workers: a `command` ends with the missions that a person named.
    `decider` has the chooser of all agents and models, by default that of the user's configuration. Commands use
    `preparation` and `sandboxes` before they change anything.
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
        self._decider = decider
        self.controls = Controls()
        self._standings = ProviderHealthRegistry()
        self._role = role
        self._loop: asyncio.AbstractEventLoop | None = None
        self._member: Membership | None = None
        self._taking_orders = 0
        self._tiers = OpenTiers()
        self.preparation = Preparation(self, lambda: self.decider)
        self.sandboxes = Sandboxes(self, self.preparation)

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

    @cached_property
    def decider(self) -> Decider:
        """The chooser of agents and models: the given one, else that of the user's own configuration."""
        return self._decider or make_decider(self.user_configuration().config, lambda: self.store)

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
            open_depot=self.projects.mission_depot,
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
                found = await asyncio.to_thread(self.preparation.find, repository, revision=revision)
            if config is not None:
                # Trust refers to the repository's file as recorded with the base, not to the current file.
                own = found.repository_file(head=False)
                resolved = ResolvedConfig(config=config, origins={}, digest=own.digest if own else "")
            else:
                resolved = self.preparation.configuration(found, options=options, head=revision is None)
            places = await asyncio.to_thread(self.preparation.places, found, resolved)
            resolved, choice, toolchain = await self.sandboxes.settle(found, resolved, choice)
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
                    rules=await asyncio.to_thread(self.preparation.rules, found.depot, found.base),
                    choice=choice,
                    is_trusted=self._command_trust(found, resolved, head=revision is None),
                    open_snippets=snippets,
                    open_map=map_opener(found.depot, resolved.config.knowledge, self.home),
                )
                missions = Missions(services, controls=self.controls)
                # Before anything new: a process may have died between swapping a branch and recording it.
                await missions.recover()
                yield Session(
                    project=found.project, depot=found.depot, base=found.base, start=found.start, places=places,
                    resolved=resolved, missions=missions, driver=driver, choice=choice,
                )  # fmt: skip

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
            projects=(found.project.id, str(found.project.path)),
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
            redact=KnownSecrets(self, resolved.config).redact,
            decider=self.decider,
            prepare_task=self.preparation.task_assigner(found, resolved).assign,
            check_plan=self.preparation.plan_check(found, resolved),
            stop_mission=self._stop_mission,
            targets=(functools.partial(RequestTarget, self),),
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
        at = await asyncio.to_thread(self.preparation.find, revision=revision, recorded=True, mission=state)
        # The directory that was requested, wherever the person is now.
        at = replace(at, start=state.request.directory if state.request else "")
        seen = watch or ignore_event
        async with self.session(revision=revision, found=at, config=config, choice=choice, watch=seen) as session:
            yield found, session
