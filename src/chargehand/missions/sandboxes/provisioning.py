"""Workspaces and sandboxes of a mission: slots, opening, closing, logged requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from chargehand.checks.detection import NODE_PROGRAMS
from chargehand.core.attempt_events import NetworkRequested, SandboxClosed, SandboxOpened
from chargehand.core.clock import Clock
from chargehand.core.config import SandboxConfig
from chargehand.core.errors import (
    ChargehandError,
    FencedError,
    NotFoundError,
    RefusedError,
    SandboxDiedError,
    WaitingError,
)
from chargehand.core.ports import Bind, sandbox_ids
from chargehand.core.records import Base
from chargehand.missions.journal import AGENT, CHECKS, SETUP, EventSink, Journal
from chargehand.missions.services import FULL_DISK, Egress, Registries, Services
from chargehand.network.contract import EgressRequest, MirrorRequest
from chargehand.sandbox.contract import REGISTRY_PORT, WORKSPACE, LimitsDisk, Sandbox, SandboxSpec
from chargehand.workspace.depot import Depot
from chargehand.workspace.head import Head
from chargehand.workspace.scan import WorkspaceLimits
from chargehand.workspace.space import AttemptQuota, require_room
from chargehand.workspace.workspace import Workspace, discard_workspaces

# Purpose of the sandbox for a candidate's setup, as its events name it.
OFFLINE = "setup without network"
_ATTEMPT = "attempt-"

VENV = f"{WORKSPACE}/.venv"
PACKAGES = ".chargehand"
# Below the workspace, so that they are part of the layer: $HOME ends with each sandbox.
CARGO_HOME, GO_MODULES = f"{PACKAGES}/cargo", f"{PACKAGES}/go"
_MAVEN_HOME = f"{PACKAGES}/maven"
MAVEN_SETTINGS = f"{_MAVEN_HOME}/.m2/settings.xml"
# Java takes the home from the user database, not from $HOME; only maven's own process gets another one.
MAVEN_VARIABLES = {"MAVEN_OPTS": f"-Duser.home={WORKSPACE}/{_MAVEN_HOME}"}


class BaseEnvironment(Struct, frozen=True, kw_only=True):
    """The start of every workspace of a mission: the base and the environment layer that `setup` made.

    Setup and checks start in `directory` of the repository.
    """

    base: Base
    layer: Path | None = None
    setup: str | None = None
    directory: str = ""

    @property
    def path(self) -> tuple[str, ...]:
        """The first entries of PATH: the layer's virtual environment and node programs."""
        if self.layer is None:
            return ()
        venv = (f"{VENV}/bin",) if (self.layer / ".venv/bin/python").is_symlink() else ()
        node = self.layer / NODE_PROGRAMS.removeprefix(f"{WORKSPACE}/") / "bin"
        return (*venv, f"{NODE_PROGRAMS}/bin") if node.is_dir() else venv

    @property
    def variables(self) -> dict[str, str]:
        """Variables that point programs to that virtual environment, and to the packages in the layer."""
        # Otherwise uv would make an environment next to the project, where the checks do not look.
        has_venv = f"{VENV}/bin" in self.path
        found = {"VIRTUAL_ENV": VENV, "UV_PROJECT_ENVIRONMENT": VENV} if has_venv else {}
        # No network here: with these settings cargo and go fail at once instead of trying their registries.
        if self.layer is not None and (self.layer / CARGO_HOME / "registry").is_dir():
            found |= {"CARGO_HOME": f"{WORKSPACE}/{CARGO_HOME}", "CARGO_NET_OFFLINE": "true"}
        if self.layer is not None and (self.layer / GO_MODULES / "cache").is_dir():
            found |= {"GOMODCACHE": f"{WORKSPACE}/{GO_MODULES}", "GOPROXY": "off", "GOFLAGS": "-modcacherw"}
        if self.layer is not None and (self.layer / MAVEN_SETTINGS).is_file():
            found |= MAVEN_VARIABLES
        return found


class PauseControl(Protocol):
    """Pauses and stops the sandboxes of a mission: its `Control`."""

    @property
    def paused(self) -> bool:
        """Whether the mission is paused."""
        ...

    @property
    def stopped(self) -> str | None:
        """Why the mission stops here, `None` while it runs."""
        ...

    async def may_go_on(self) -> None:
        """Wait while the mission is paused."""
        ...

    def attach(self, sandbox: Sandbox) -> None:
        """Let a pause freeze this sandbox until it is detached."""
        ...

    def detach(self, sandbox: Sandbox) -> None:
        """Stop controlling the sandbox from now on."""
        ...


class SandboxRequest(Struct, frozen=True, kw_only=True):
    """The purpose of a sandbox, and its additions to workspace and environment.

    `path` and `directory`, where commands start, are the environment's by default; `variables` add to those of the
    environment. With `read_only` nothing inside can write to the workspace. `attempt` is named in the log.
    """

    purpose: str
    attempt: str | None = None
    binds: tuple[Bind, ...] = ()
    registries: Registries | None = None
    gateway: Path | None = None
    egress: Egress | None = None
    path: tuple[str, ...] | None = None
    variables: Mapping[str, str] = {}
    read_only: bool = False
    directory: str | None = None


@dataclass(eq=False, slots=True)
class SandboxProvisioner:
    """Opens workspaces and sandboxes for one mission, always closes them, and records each in its log.

    With `control`, nothing new starts while the mission is paused, and running sandboxes can be paused.
    """

    services: Services
    journal: EventSink
    _: KW_ONLY
    control: PauseControl | None = None
    _making: dict[str, float] = field(init=False, default_factory=dict)

    @contextlib.asynccontextmanager
    async def workspace(
        self,
        environment: BaseEnvironment,
        *,
        purpose: str,
        tree: str | None = None,
        caches: Path | None = None,
        head: Head | None = None,
    ) -> AsyncIterator[Workspace]:
        """Make a workspace that shows `tree` (the base's by default) and remove its files at the end.

        `caches` is a layer of compilers' earlier caches, for a driver that stacks layers. Its `.git` is at the
        base, or at `head`. A mission has one workspace per `purpose` at a time: a dead worker's remains are
        removed first. The claim is part of the name: an abandoned worker that still runs does not touch its
        successor's files.
        """
        mission, epoch = self.journal.mission, self.journal.epoch

        def make() -> Workspace:
            if mission is None:
                return self._create(environment, tree, caches=caches, head=head)
            # Under any epoch: the name of an earlier claim's files differs.
            discard_workspaces(self.services.depot, f"{workspace_prefix(mission)}{purpose}-*")
            name = f"{workspace_prefix(mission)}{purpose}-{epoch or 0}"
            return self._create(environment, tree, id=name, caches=caches, head=head)

        async with self._until_done(make, resumable=purpose.startswith(_ATTEMPT)) as workspace:
            yield workspace

    @contextlib.asynccontextmanager
    async def resume_workspace(
        self, id: str, environment: BaseEnvironment, *, tree: str, idle: bool
    ) -> AsyncIterator[tuple[Workspace, bool]]:
        """Find a lost attempt's workspace and let it show `tree`; return whether its ignored files are kept.

        If its tree is not `tree`, that is first kept as a checkpoint. `idle` says that no process writes there any
        more; if that is unknown, new files are laid out.
        """
        kept = idle

        def find() -> Workspace:
            nonlocal kept
            try:
                found = Workspace.load(self.services.depot, id)
            except NotFoundError:
                kept = False
                return self._create(environment, tree, id=id)
            scan = found.scan(trust_cache=False)
            if not idle or scan.tree != tree or scan.findings:
                kept = False
                found.reset(tree, "resumed")
                found.tidy()
            return found

        async with self._until_done(find, resumable=True) as workspace:
            yield workspace, kept

    @contextlib.asynccontextmanager
    async def _until_done(self, make: Callable[[], Workspace], *, resumable: bool) -> AsyncIterator[Workspace]:
        """Yield a workspace for the block; its files are removed at the end unless a later run needs them.

        An attempt's files are `resumable`; others are made again, and would only keep a full disk full.
        """
        if self.control is not None:
            await self.control.may_go_on()
        began = self.services.clock.monotonic()
        making = asyncio.ensure_future(asyncio.to_thread(make))
        goes_on = False
        try:
            made = await asyncio.shield(making)
            # Making the files counts towards the time until the sandbox over them is ready.
            self._making[made.id] = self.services.clock.monotonic() - began
            yield made
        except ChargehandError as error:
            passing = isinstance(error, WaitingError | SandboxDiedError) or error.code in FULL_DISK
            goes_on = passing and resumable and self.journal.mission is not None
            raise
        finally:
            made = await making  # a thread cannot be cancelled: its result is removed anyway
            stopped = self.control is not None and self.control.stopped in ("release", "lost")
            # The files stay for the worker that resumes the attempt; a fenced worker's files now belong to its
            # successor.
            if not (stopped or goes_on or self.journal.fenced):
                await asyncio.shield(asyncio.to_thread(made.discard))

    def _create(
        self,
        environment: BaseEnvironment,
        tree: str | None,
        *,
        id: str | None = None,
        caches: Path | None = None,
        head: Head | None = None,
    ) -> Workspace:
        config = self.services.config
        return Workspace.create(
            self.services.depot,
            environment.base,
            driver=self.services.driver,
            tree=tree,
            environment=environment.layer,
            caches=caches,
            include=config.project.include,
            limits=_workspace_limits(config.sandbox),
            id=id,
            head=head,
        )

    @contextlib.asynccontextmanager
    async def egress(self, *, purpose: str, attempt: str | None = None) -> AsyncIterator[Egress | None]:
        """Open one sandbox's access to the configured hosts, `None` without such access; requests are logged."""
        config = self.services.config.sandbox
        if not config.network or (purpose == CHECKS and not config.network_checks):
            yield None
            return
        requests = NetworkLog(self.journal, clock=self.services.clock, purpose=purpose, attempt=attempt)
        async with self.services.open_egress(requests.see) as opened:
            try:
                yield opened
            finally:
                # Closing logs the connections that are still open: the event of the counted requests comes last.
                await opened.close()
                requests.finish()

    @contextlib.asynccontextmanager
    async def sandbox(
        self, workspace: Workspace, environment: BaseEnvironment, request: SandboxRequest
    ) -> AsyncIterator[Sandbox]:
        """Open a sandbox over a workspace and close it, with all its processes, at the end."""
        services = self.services
        purpose = request.purpose
        began = services.clock.monotonic()
        spec = SandboxSpec(
            mounts=replace(workspace.mount_plan(), read_only=request.read_only),
            environment={**environment.variables, **request.variables},
            path=environment.path if request.path is None else request.path,
            binds=request.binds,
            limits=services.limits(),
            registries=request.registries.socket_path if request.registries else None,
            gateway=request.gateway,
            egress=request.egress.socket_path if request.egress else None,
            directory=environment.directory if request.directory is None else request.directory,
        )
        sandbox = await services.tier.open(spec)
        # An agent's writes are watched with its work, and end the attempt rather than one of its commands.
        if purpose != AGENT and not request.read_only and isinstance(sandbox, LimitsDisk):
            before = await asyncio.to_thread(workspace.usage) if workspace.holds_base else (0, 0)
            limits = _workspace_limits(services.config.sandbox, setup=purpose in (SETUP, OFFLINE))
            sandbox.limit_disk(AttemptQuota(workspace.scan_root(), limits, before=before).find_passed)
        ready = services.clock.monotonic() - began + self._making.get(workspace.id, 0.0)
        try:
            if self.control is not None:
                self.control.attach(sandbox)
                if self.control.paused:  # it came up while the mission was being paused
                    await sandbox.freeze()
            self.journal.record(
                SandboxOpened(
                    sandbox=sandbox.id,
                    purpose=purpose,
                    tier=sandbox.tier,
                    driver=workspace.driver,
                    limits=dict(sandbox.limits_in_force),
                    attempt=request.attempt,
                    egress=request.egress is not None,
                )
            )
            async with self._full_disk_first(workspace, purpose):
                yield sandbox
        finally:
            if self.control is not None:
                self.control.detach(sandbox)
            await asyncio.shield(sandbox.close())
            await self._record_closed(sandbox, workspace, request, began=began, ready=ready)

    @contextlib.asynccontextmanager
    async def _full_disk_first(self, workspace: Workspace, purpose: str) -> AsyncIterator[None]:
        """Raise `InfrastructureError` (`no_space`) if the block met a full disk."""
        refusal: RefusedError | None = None
        try:
            yield
        except RefusedError as error:
            refusal = error
        if purpose in (CHECKS, SETUP, OFFLINE):
            await asyncio.to_thread(require_room, workspace.scan_root(), f"{purpose} ran")
        if refusal is not None:
            raise refusal

    async def _record_closed(
        self, sandbox: Sandbox, workspace: Workspace, request: SandboxRequest, *, began: float, ready: float
    ) -> None:
        """Record a sandbox's resource usage, and the written files if an agent worked there."""
        if self.journal.mission is None:
            return
        files = written = None
        if request.purpose == AGENT and not workspace.holds_base:
            with contextlib.suppress(ChargehandError, OSError):
                files, written = await asyncio.to_thread(workspace.usage)
        # After the close: the numbers cover its whole life.
        used = sandbox.usage()
        closed = SandboxClosed(
            sandbox=sandbox.id,
            purpose=request.purpose,
            ready_seconds=ready,
            seconds=self.services.clock.monotonic() - began,
            peak_memory=used.peak_memory,
            freezes=used.freezes,
            written_files=files,
            written_bytes=written,
            attempt=request.attempt,
            cpu_seconds=used.cpu_seconds,
            peak_processes=used.peak_processes,
            disk_written=used.disk_written,
            output=used.output,
            sampled=used.sampled,
        )
        with contextlib.suppress(FencedError):  # the worker that took the mission over counts its own
            self.journal.record(closed)


def _workspace_limits(config: SandboxConfig, *, setup: bool = False) -> WorkspaceLimits:
    if setup:
        return WorkspaceLimits(disk_bytes=config.setup_disk_mb << 20, files=config.setup_files)
    return WorkspaceLimits(disk_bytes=config.disk_mb << 20, files=config.files)


def remove_leftovers(home: Path, open_depot: Callable[[], Depot], *missions: str) -> None:
    """Remove the remains of settled missions' workspaces; their checkpoints stay in the depot."""
    with contextlib.suppress(ChargehandError, OSError):  # the missions' ends matter more; `gc` comes later
        depot = open_depot()
        for mission in missions:
            discard_workspaces(depot, f"{workspace_prefix(mission)}*")
    for mission in missions:
        for path in home.glob(f"acceptance-{mission}-*"):
            shutil.rmtree(path, ignore_errors=True)


def attempt_purpose(number: int) -> str:
    """Return the purpose of that attempt's workspace."""
    return f"{_ATTEMPT}{number}"


def acceptance_directory(services: Services, journal: Journal) -> Path:
    """Return the directory of a mission's acceptance files while its checks run under this claim."""
    return services.home / f"acceptance-{journal.mission}-{journal.epoch or 0}"


def workspace_prefix(mission: str) -> str:
    """Return the prefix of the names of a mission's workspaces."""
    return f"w-{mission.removeprefix('m-')}-"


# --- requests of a sandbox to hosts

# An agent may make thousands of requests in a minute, by mistake or on purpose: its log must stay readable.
_BURST_LINES, _LINES_PER_SECOND = 200.0, 20.0
_MOST_LINES = 5_000


class NetworkLog:
    """Records the requests of one sandbox; those beyond the limits are only counted, in one event of a gap.

    A burst of 200 lines, then 20 a second, 5,000 in all.
    """

    def __init__(self, journal: EventSink, *, clock: Clock, purpose: str, attempt: str | None) -> None:
        self._journal = journal
        self._clock = clock
        self._empty = NetworkRequested(purpose=purpose, attempt=attempt)
        self._gap = self._empty
        self._room, self._at = _BURST_LINES, clock.monotonic()
        self._left = _MOST_LINES

    def see(self, request: EgressRequest) -> None:
        """Record a finished request."""
        now = self._clock.monotonic()
        # A token bucket: each event takes one of `_room`, which fills up again with time.
        self._room = min(_BURST_LINES, self._room + _LINES_PER_SECOND * (now - self._at))
        self._at = now
        if self._room < 1 or self._left <= 0:
            gap = self._gap
            self._gap = replace(
                gap,
                unlisted=gap.unlisted + 1,
                unlisted_refused=gap.unlisted_refused + (not request.allowed),
                bytes_out=gap.bytes_out + request.bytes_out,
                bytes_in=gap.bytes_in + request.bytes_in,
                seconds=gap.seconds + request.seconds,
            )
            return
        self._room -= 1
        self._left -= 1
        self.finish()
        self._record(
            replace(
                self._empty,
                method=request.method,
                host=request.host,
                port=request.port,
                status=request.status,
                allowed=request.allowed,
                entry=request.entry,
                reason=request.reason,
                address=request.address,
                bytes_out=request.bytes_out,
                bytes_in=request.bytes_in,
                seconds=request.seconds,
            )
        )

    def finish(self) -> None:
        """Record the counted requests."""
        if self._gap.unlisted:
            gap, self._gap = self._gap, self._empty
            self._record(gap)

    def _record(self, payload: NetworkRequested) -> None:
        with contextlib.suppress(FencedError):  # the worker that took the mission over logs its own
            self._journal.record(payload)


def as_egress_request(request: MirrorRequest) -> EgressRequest:
    """Return a request to the registry mirror as one to the last upstream host, or to the mirror itself.

    It counts as refused if the mirror itself answered instead of a registry.
    """
    web = [host for host in request.hosts if host != "file:"]
    host, _, port = web[-1].rpartition(":") if web and web[-1].rpartition(":")[2].isdecimal() else ("", "", "")
    if not host:
        host, port = (web[-1], "443") if web else ("127.0.0.1", str(REGISTRY_PORT))
    of_the_registry = bool(request.hosts) and request.status in (404, 502)
    return EgressRequest(
        method=request.method,
        host=host,
        port=int(port),
        status=request.status,
        allowed=0 < request.status < 400 or of_the_registry,
        entry=f"registry {request.kind}",
        reason=request.problem,
        bytes_in=request.bytes_sent,
    )


@contextlib.contextmanager
def lay_out_files(
    services: Services, journal: Journal, files: Sequence[tuple[str, str]]
) -> Iterator[tuple[Bind, ...]]:
    """Write acceptance files as they were at the mission's creation, read-only for a sandbox."""
    if not files:
        yield ()
        return
    # Two sandboxes may be open at once, each with its own files.
    prefix = acceptance_directory(services, journal).name + "-"
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=services.home))
    try:
        binds = []
        for number, (artifact, path) in enumerate(files):
            source = directory / str(number)
            source.write_bytes(services.store.artifacts.get(artifact))
            binds.append(Bind(source=source, target=f"{WORKSPACE}/{path}"))
        # The sandbox runs as a separate user, who must be able to read but not change them.
        for shown in (directory, *directory.iterdir()):
            shown.chmod(0o755 if shown.is_dir() else 0o444)
            os.chown(shown, *sandbox_ids())
        yield tuple(binds)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
