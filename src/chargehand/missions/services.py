"""External dependencies of missions: ports, and the record `Services` that `app` fills."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
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
from chargehand.core.ports import CodeMap, DriverName, Spent
from chargehand.core.records import ChoiceReason, MissionRequest, TargetDelivery, TierChoice
from chargehand.core.redaction import Redactor
from chargehand.decisions.decider import Decider
from chargehand.durable.admission import ConcurrencyLimit
from chargehand.durable.workers import Role, Workers
from chargehand.missions.journal import Journal
from chargehand.models.contract import CallRecord, ToolService
from chargehand.network.contract import EgressRequest, MirrorRequest
from chargehand.policy.rules import Rules
from chargehand.sandbox.contract import Sandbox, SandboxLimits, SandboxSpec
from chargehand.store.rows import MissionRow
from chargehand.store.store import Store
from chargehand.workspace.depot import Depot
from chargehand.workspace.errors import Fault

if TYPE_CHECKING:  # replay loads every dialect, which a mission without a recording never needs
    from chargehand.credentials.scoped import SecretAccess
    from chargehand.models.request_matching import Divergence

# Error codes of a full disk, from workspaces and from the store.
FULL_DISK = frozenset({"no_space", "store_full"})
# Attempts with their sandbox, runs of checks, and decisions on an agent that failed.
SlotName = Literal["attempts", "checks", "probes"]


class Tier(Protocol):
    """Opens sandboxes of one tier."""

    async def open(self, spec: SandboxSpec, /) -> Sandbox:
        """Open one sandbox; raises `TierUnavailableError`."""
        ...


class Registries(Protocol):
    """A running registry mirror: the socket to show in the sandbox, and its clients' settings."""

    socket_path: Path

    def environment(self) -> Mapping[str, str]:
        """Return the environment for pip, npm, go and the like."""
        ...

    def cargo_settings(self) -> str:
        """Return the text of cargo's config.toml; it contains no secret."""
        ...

    def maven_settings(self, *, offline: bool) -> str:
        """Return the text of maven's settings.xml for setup or, `offline`, for later; it contains no secret."""
        ...


# Serves the user's package registries for one setup; the callback is called in the event loop with each finished
# request.
OpenRegistries = Callable[[Callable[[MirrorRequest], None]], AbstractAsyncContextManager[Registries]]


class Egress(Protocol):
    """A running egress proxy of one sandbox: the socket to show inside."""

    socket_path: Path

    async def close(self) -> None:
        """Close every connection for good; each request is logged on return. Idempotent."""
        ...


# Opens one sandbox's access to the configured hosts, and closes it with every connection through it; the callback
# is called in the event loop with each finished request.
OpenEgress = Callable[[Callable[[EgressRequest], None]], AbstractAsyncContextManager[Egress]]


class EndpointRequest(Struct, frozen=True, kw_only=True):
    """The models that one attempt calls, at the cost of `user`, and the callbacks for the calls.

    The mission of a `task` spends from the budget of `payer`, its coordinator.

    `first_turn` is the number of the first call, from 1. `kept` is the file that keeps the replies: a resumed
    attempt gets them from there. If `strict`, `on_diverged` is called with the first differing request, from
    another thread; the other callbacks are called on the event loop, `on_secret` once for each key that is given
    or refused. `tools` are offered to its programs.
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
    tools: ToolService | None = None
    role: str = ""
    on_secret: Callable[[SecretAccess], None] = lambda access: None


# Opens the model endpoint of one attempt, and closes it with every connection to it; raises `ConfigError` if a
# model cannot be served.
OpenGateway = Callable[[EndpointRequest], AbstractAsyncContextManager[Endpoint]]


def available_cores() -> int:
    """Return how many processors this process may use."""
    # Not `os.cpu_count()`: a container or taskset may leave this process fewer.
    return len(os.sched_getaffinity(0))


def measure_load() -> float:
    """Return the machine's load per processor over the last minute."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


class TaskWish(Struct, frozen=True, kw_only=True):
    """What is known about a task's mission beyond its plan: the `model` and `agent` that a round is to try.

    Agents to `avoid` are used only if no other can do the task; `chosen` are the reasons of the whole mission's
    choice.
    """

    model: str | None = None
    agent: str = ""
    avoid: frozenset[str] = frozenset()
    chosen: tuple[ChoiceReason, ...] = ()


NO_WISH = TaskWish()


class PreparedTask(Struct, frozen=True, kw_only=True):
    """The request of a task's mission, and the reasons for its agent and model."""

    request: MissionRequest
    chosen: tuple[ChoiceReason, ...] = ()


# Returns the request of a task's mission; raises the errors of finding its role and agent.
PrepareTask = Callable[[MissionRequest, Task, TaskWish], PreparedTask]


def prepare_alike(request: MissionRequest, task: Task, wish: TaskWish) -> PreparedTask:
    """Return the request of a task with the agent, role and model of the whole mission."""
    request = replace(request, text=task.text, model=wish.model or request.model)
    return PreparedTask(request=request, chosen=wish.chosen)


def accept_plan(request: MissionRequest, plan: Plan) -> None:
    """Accept any plan: the `Services.check_plan` of a session in which every agent can do every task."""


def leave_alone(mission: str, why: str) -> None:
    """Do nothing: the `Services.stop_mission` of a session that coordinates nothing."""


def trust_no_command(command: str) -> bool:
    """Trust no command: the `Services.is_trusted` of an untrusted project."""
    return False


class DeliveryTarget(Protocol):
    """One place to which a mission's promoted commits are delivered; its state is in the mission's log.

    `name` is unique among the targets, and `needs` names earlier ones that must be done with the same commit.
    While an outcome is `pending`, the delivery is repeated after each of `retry_seconds`: in total seconds, not
    minutes, as the mission waits. After that, and if it is `blocked`, a person's command repeats it.
    """

    name: str
    needs: tuple[str, ...] = ()
    retry_seconds: tuple[float, ...] = ()

    def applies(self) -> bool:
        """Return whether this mission is to be delivered here."""
        ...

    def recorded(self, commit: str) -> TargetDelivery:
        """Return the state of delivering a commit according to the log."""
        ...

    async def deliver(self, commit: str) -> TargetDelivery:
        """Deliver the mission branch's commit and record the outcome; do nothing if that is recorded as done.

        The worker may die between the act and its record: look whether the act was done before doing it. A
        failure is an outcome with a reason and the remedy, and never touches the promotion. Raises `FencedError`
        if another worker has claimed the mission.
        """
        ...


class Services(Struct, frozen=True, kw_only=True):
    """All concrete dependencies of the mission flow; `worker` is this process among the `workers`.

    `choice` says how the tier was chosen, `user` who pays for new missions. `is_trusted` returns whether a person
    wrote a command of setup or checks, or trusts the repository that it comes from. `open_snippets` opens the
    snippet runner and raises `TierUnavailableError` if that is impossible. `open_map` opens the repository map for
    one attempt, and is `None` without one. `attempts_at_once` and `checks_at_once` are limits of the state
    directory, shared by all its processes. `decider` chooses the agent and model of each
    attempt and of each next round of a task. `prepare_task` returns the request of a task, `check_plan` raises for
    a plan that no agent can do, and `stop_mission` cancels an unfinished mission with a reason; it may block.
    `targets` open further delivery targets, in order, which come after signature, export and the user's branch.
    `redact` removes secrets from a text.
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
    open_map: Callable[[], AbstractContextManager[CodeMap]] | None = None
    attempts_at_once: int = 5
    checks_at_once: int = field(default_factory=available_cores)
    choice: TierChoice | None = None
    user: str = ""
    redact: Callable[[str], str] = field(default_factory=lambda: Redactor().text)
    decider: Decider = field(default_factory=Decider)
    prepare_task: PrepareTask = prepare_alike
    check_plan: Callable[[MissionRequest, Plan], None] = accept_plan
    stop_mission: Callable[[str, str], None] = leave_alone
    targets: tuple[OpenTarget, ...] = ()

    def live(self, row: MissionRow) -> bool:
        """Return whether a living worker holds a mission right now."""
        return row.owner is not None and self.workers.live(row.owner)

    def slots(self, what: SlotName) -> ConcurrencyLimit:
        """Return the slots of this state directory for one kind of work."""
        # One probe at a time: if two missions find a breaker's cool-down over, only one may try the agent.
        places = {"attempts": self.attempts_at_once, "checks": self.checks_at_once, "probes": 1}
        return ConcurrencyLimit(self.home / "slots" / what, places=places[what])

    def merges(self, repository: str, branch: str) -> ConcurrencyLimit:
        """Return the lock of a branch of a person's repository: results are merged with it one by one."""
        key = hashlib.sha256(f"{repository}\0{branch}".encode("utf-8", "surrogateescape")).hexdigest()[:16]
        return ConcurrencyLimit(self.home / "slots" / "merges" / key, places=1)

    def is_union(self, path: str) -> bool:
        """Return whether merges keep both sides' lines on a conflict in the text file at `path`."""
        return match_paths(self.config.project.union)(path)

    def money_left(self, mission: str) -> float | None:
        """Return what is left of a mission's budget in USD, `None` without a budget; raises `StoreError`."""
        budget = self.config.limits.budget_usd
        if budget is None:
            return None
        return budget - self.store.spending.total(mission=mission).booked_usd

    def limits(self) -> SandboxLimits:
        """Return the configured limits of one sandbox."""
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


# Opens a delivery target for one mission, without input or output; the `Fault` is called at its crash points.
OpenTarget = Callable[[Services, Journal, Fault], DeliveryTarget]


class DepotReader(Struct, eq=False):
    """Shows the trees of a depot as (path, mode, id); satisfies `checks.TreeReader`."""

    depot: Depot

    def entries(self, tree: str, /) -> Iterator[tuple[str, int, str]]:
        """Yield all files and links of a tree."""
        for entry in self.depot.entries(tree):
            yield entry.path, entry.mode, entry.id

    def lookup(self, tree: str, path: str, /) -> tuple[int, str] | None:
        """Return mode and id of a tree's entry at `path`, or `None`."""
        entry = self.depot.lookup(tree, path)
        return None if entry is None else (entry.mode, entry.id)

    def read_blob(self, id: str, /, limit: int | None = None) -> bytes:
        """Return a blob's content, at most `limit` bytes of it."""
        return self.depot.read_blob(id, limit=limit)

    def blob_size(self, id: str, /) -> int:
        """Return a blob's size in bytes."""
        return self.depot.blob_size(id)


# Hints for errors that a person can fix; unlisted ones (a bug of ours, say) pass unchanged.
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
    """Raise `InfrastructureError` for an `OSError` about a missing resource: space, permission, memory."""
    try:
        yield
    except OSError as error:
        code, hint = _KNOWN.get(error.errno or 0, ("", ""))
        if not code:
            raise
        at = f" at {error.filename!r}" if error.filename is not None else ""
        raise InfrastructureError(f"{error.strerror}{at}", code=code, hint=hint) from error
