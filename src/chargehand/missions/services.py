"""What missions need from outside: ports, and the record `Services` that `app` fills."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from chargehand.agents.contract import Agent, Endpoint, Snippets
from chargehand.checks.areas import match_paths
from chargehand.core.clock import Clock as ClockPort
from chargehand.core.clock import SystemClock
from chargehand.core.config import Config
from chargehand.core.errors import InfrastructureError
from chargehand.core.events import OnEvent, ignore_event
from chargehand.core.plans import Plan, Task
from chargehand.core.ports import DriverName, Spent
from chargehand.core.records import MissionRequest, TierChoice
from chargehand.durable.admission import ConcurrencyLimit
from chargehand.durable.workers import Role, Workers
from chargehand.models.contract import CallRecord
from chargehand.network.contract import EgressRequest, MirrorRequest
from chargehand.policy.rules import Rules
from chargehand.sandbox.contract import Sandbox, SandboxLimits, SandboxSpec
from chargehand.store.rows import MissionRow
from chargehand.store.store import Store
from chargehand.workspace.depot import Depot

if TYPE_CHECKING:  # replaying loads every dialect, which a mission without a recording never needs
    from chargehand.models.request_matching import Divergence

# What a full disk is called by the workspaces and by the store.
FULL_DISK = frozenset({"no_space", "store_full"})
# Runs of an agent with their sandbox, runs of checks, and decisions on an agent that failed.
SlotName = Literal["attempts", "checks", "probes"]


class Tier(Protocol):
    """Opens sandboxes of one tier."""

    async def open(self, spec: SandboxSpec, /) -> Sandbox:
        """Open one sandbox; raises `TierUnavailableError`."""
        ...


class Registries(Protocol):
    """A running registry mirror: the socket to show in the sandbox and what its clients need to be told."""

    socket_path: Path

    def environment(self) -> Mapping[str, str]:
        """Return the environment for pip, npm, go and the like."""
        ...

    def cargo_settings(self) -> str:
        """Return the text of cargo's config.toml; it holds no secret."""
        ...

    def maven_settings(self, *, offline: bool) -> str:
        """Return the text of maven's settings.xml while setup runs or, `offline`, after it; it holds no secret."""
        ...


# Serves the user's package registries for one setup; what it is given is called in the event loop with each
# request as it ends.
OpenRegistries = Callable[[Callable[[MirrorRequest], None]], AbstractAsyncContextManager[Registries]]


class Egress(Protocol):
    """A running way out of one sandbox: the socket to show inside."""

    socket_path: Path

    async def close(self) -> None:
        """Cut every connection for good; each request is logged on return. Idempotent."""
        ...


# Opens the way of one sandbox to the configured hosts, and closes it with every connection through it; what it is
# given is called in the event loop with each request as it ends.
OpenEgress = Callable[[Callable[[EgressRequest], None]], AbstractAsyncContextManager[Egress]]


class EndpointRequest(Struct, frozen=True, kw_only=True):
    """Which models one attempt calls, at the cost of `user`, and who hears of the calls.

    The mission of a `task` spends from the budget of `payer`, its coordinator.

    `first_turn` is the number of the first call, from 1. `kept` is the file that keeps the replies: an attempt
    that is resumed gets them from there. Where it is `strict`, `on_diverged` is called with the first request that
    differs, from another thread; the other two callbacks are called on the event loop.
    """

    models: Sequence[str]
    mission: str
    attempt: str
    number: int
    first_turn: int
    on_call: Callable[[CallRecord], None]
    on_alert: Callable[[Spent], None]
    user: str = ""
    payer: str = ""
    task: str = ""
    kept: Path | None = None
    strict: bool = True
    on_diverged: Callable[[Divergence], None] | None = None


# Opens the model endpoint of one attempt, and closes it with every connection to it; raises `ConfigError` where a
# model cannot be served.
OpenGateway = Callable[[EndpointRequest], AbstractAsyncContextManager[Endpoint]]


def available_cores() -> int:
    """Return how many processors this process may use."""
    # Not `os.cpu_count()`: a container or taskset may leave this process fewer.
    return len(os.sched_getaffinity(0))


def measure_load() -> float:
    """Return how many programs want to run on this machine, per processor, over the last minute."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


class PrepareTask(Protocol):
    """Returns the request of a task's mission; agents to `avoid` are taken only if no other can do the task."""

    def __call__(
        self, request: MissionRequest, task: Task, model: str | None, avoid: Collection[str] = (), /
    ) -> MissionRequest:
        """Raise what finding its role and agent raises."""
        ...


def prepare_alike(
    request: MissionRequest, task: Task, model: str | None, avoid: Collection[str] = ()
) -> MissionRequest:
    """Return the request of a task with the agent, role and model of the whole mission."""
    return replace(request, text=task.text, model=model or request.model)


def accept_plan(request: MissionRequest, plan: Plan) -> None:
    """Return: the `Services.check_plan` of a session in which everybody can do everything."""


def leave_alone(mission: str, why: str) -> None:
    """Do nothing: the `Services.stop_mission` of a session that coordinates nothing."""


def trust_no_command(command: str) -> bool:
    """Trust no command: the `Services.is_trusted` of a project that nobody trusted."""
    return False


class Services(Struct, frozen=True, kw_only=True):
    """Everything concrete that the mission flow uses; `worker` is this process among the `workers`.

    `choice` says how the tier was chosen, `user` who pays for the missions that are made here. `is_trusted` tells
    whether a person wrote a command of setup or checks, or trusts the repository that it is from. `open_snippets`
    opens the runner of snippets and raises `TierUnavailableError` where there can be none. `attempts_at_once` and
    `checks_at_once` are limits of the state directory, shared by all its processes. `prepare_task` returns the
    request of a task, with a model where one is named, `check_plan` raises for one that nobody can do, and
    `stop_mission` cancels a mission that has not ended, and says why; it may block.
    """

    home: Path
    project: str
    store: Store
    depot: Depot
    tier: Tier
    tier_name: str
    driver: DriverName
    toolchain: str
    config: Config
    workers: Workers
    worker: tuple[str, Role]
    version: str
    open_agent: Callable[[MissionRequest], Agent]
    open_gateway: OpenGateway
    open_registries: OpenRegistries
    open_egress: OpenEgress
    clock: ClockPort = field(default_factory=SystemClock)
    watch: OnEvent = ignore_event
    rules: Rules = field(default_factory=Rules)
    is_trusted: Callable[[str], bool] = trust_no_command
    open_snippets: Callable[[], Awaitable[Snippets]] | None = None
    attempts_at_once: int = 5
    checks_at_once: int = field(default_factory=available_cores)
    choice: TierChoice | None = None
    user: str = ""
    prepare_task: PrepareTask = prepare_alike
    check_plan: Callable[[MissionRequest, Plan], None] = accept_plan
    stop_mission: Callable[[str, str], None] = leave_alone

    def live(self, row: MissionRow) -> bool:
        """Tell whether a living worker holds a mission right now."""
        return row.owner is not None and self.workers.live(row.owner)

    def slots(self, what: SlotName) -> ConcurrencyLimit:
        """Return the slots of this state directory for one kind of work."""
        # One probe at a time: of two missions that find a breaker's cool-down over, only one may try the agent.
        places = {"attempts": self.attempts_at_once, "checks": self.checks_at_once, "probes": 1}
        return ConcurrencyLimit(self.home / "slots" / what, places=places[what])

    def merges(self, repository: str, branch: str) -> ConcurrencyLimit:
        """Return the turn at a branch of a person's repository: one result is merged with it after the other."""
        key = hashlib.sha256(f"{repository}\0{branch}".encode("utf-8", "surrogateescape")).hexdigest()[:16]
        return ConcurrencyLimit(self.home / "slots" / "merges" / key, places=1)

    def is_union(self, path: str) -> bool:
        """Tell whether merges keep the lines of both sides where they conflict in the text file at `path`."""
        return match_paths(self.config.project.union)(path)

    def limits(self) -> SandboxLimits:
        """Return what the configuration lets one sandbox use."""
        wanted = self.config.sandbox
        return SandboxLimits(
            memory_mb=wanted.memory_mb,
            processes=wanted.processes,
            tmp_mb=wanted.tmp_mb,
            open_files=wanted.open_files,
            file_mb=wanted.file_mb or wanted.disk_mb,
            output_mb=wanted.output_mb,
            cpu_percent=wanted.cpu_percent,
            cpu_seconds=wanted.cpu_time,
        )


class DepotReader(Struct, eq=False):
    """Shows the trees of a depot as (path, mode, id); satisfies `checks.TreeReader`."""

    depot: Depot

    def entries(self, tree: str, /) -> Iterator[tuple[str, int, str]]:
        """Yield all files and links of a tree."""
        for entry in self.depot.entries(tree):
            yield entry.path, entry.mode, entry.id

    def lookup(self, tree: str, path: str, /) -> tuple[int, str] | None:
        """Return mode and id of what a tree has at `path`."""
        entry = self.depot.lookup(tree, path)
        return None if entry is None else (entry.mode, entry.id)

    def read_blob(self, id: str, /, limit: int | None = None) -> bytes:
        """Return a blob's content, at most `limit` bytes of it."""
        return self.depot.read_blob(id, limit=limit)

    def blob_size(self, id: str, /) -> int:
        """Return a blob's size in bytes."""
        return self.depot.blob_size(id)


# Hints by what a person can do about it; what is not listed (a bug of ours, say) passes as it is.
_SPACE = ("no_space", "free some space, or run 'chargehand gc'")
_ACCESS = ("not_permitted", "make it readable and writable for you, or set CHARGEHAND_HOME to another directory")
_KNOWN = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EACCES: _ACCESS,
    errno.EPERM: _ACCESS,
    errno.EROFS: _ACCESS,
    errno.EIO: ("disk_failed", "check the disk; 'chargehand audit verify' checks the log"),
    errno.EMFILE: ("too_many_files", "raise the limit of open files (ulimit -n)"),
    errno.ENFILE: ("too_many_files", "the whole machine has too many open files"),
    errno.ENOMEM: ("no_memory", "free some memory"),
}


@contextmanager
def system_errors() -> Iterator[None]:
    """Raise `InfrastructureError` for an `OSError` about what the machine lacks: space, permission, memory."""
    try:
        yield
    except OSError as error:
        code, hint = _KNOWN.get(error.errno or 0, ("", ""))
        if not code:
            raise
        at = f" at {error.filename!r}" if error.filename is not None else ""
        raise InfrastructureError(f"{error.strerror}{at}", code=code, hint=hint) from error
