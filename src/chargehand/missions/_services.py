"""What a mission works with; `app` puts it together."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from chargehand.agents.contract import Agent, Endpoint, Snippets
from chargehand.core.clock import Clock as ClockPort
from chargehand.core.clock import SystemClock
from chargehand.core.config import Config
from chargehand.core.ports import DriverName, Spent
from chargehand.core.records import MissionRequest, TierChoice
from chargehand.durable.admission import ConcurrencyLimit
from chargehand.durable.workers import Role, Workers
from chargehand.missions._control import Controls
from chargehand.missions._journal import Watch, ignore
from chargehand.models.contract import CallRecord
from chargehand.models.replay import Divergence
from chargehand.network.contract import EgressRequest, MirrorRequest
from chargehand.policy.rules import Rules
from chargehand.sandbox.contract import Sandbox, SandboxLimits, SandboxSpec
from chargehand.store.log import MissionRow
from chargehand.store.store import Store
from chargehand.workspace.depot import Depot

SlotName = Literal["attempts", "checks", "probes"]
"""Runs of an agent with their sandbox, runs of checks, and decisions on an agent that failed."""


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


class OpenRegistries(Protocol):
    """Opens the mirror of the user's package registries for one setup."""

    def __call__(self, *, log: Callable[[MirrorRequest], None]) -> AbstractAsyncContextManager[Registries]:
        """Serve the registries and tell `log`, in the event loop, of each request as it ended."""
        ...


class Egress(Protocol):
    """A running way out of one sandbox: the socket to show inside."""

    socket_path: Path

    async def close(self) -> None:
        """Cut every connection for good; each request is logged on return. Idempotent."""
        ...


class OpenEgress(Protocol):
    """Opens the way of one sandbox to the configured hosts, and closes it with every connection through it."""

    def __call__(self, *, log: Callable[[EgressRequest], None]) -> AbstractAsyncContextManager[Egress]:
        """Let requests through and tell `log`, in the event loop, of each as it ended."""
        ...


class OpenGateway(Protocol):
    """Opens the model endpoint of one attempt, and closes it with every connection to it."""

    def __call__(
        self,
        models: Sequence[str],
        /,
        *,
        mission: str,
        attempt: str,
        number: int,
        first_turn: int,
        user: str = "",
        on_call: Callable[[CallRecord], None],
        on_alert: Callable[[Spent], None],
        kept: Path | None = None,
        strict: bool = True,
        on_diverged: Callable[[Divergence], None] | None = None,
    ) -> AbstractAsyncContextManager[Endpoint]:
        """Serve the models of these names at the cost of `user`; raises `ConfigError` where one cannot be.

        `kept` is the file in which the replies are kept, and from which an attempt that goes on gets them again;
        where it is `strict`, `on_diverged` is told of the first request that differs, from another thread. The
        other two are called on the event loop.
        """
        ...


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0))


def nobody(command: str) -> bool:
    """Vouch for no command."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Everything concrete that the mission flow uses; `worker` is this process among the `workers`.

    `choice` is how the tier came to be, `user` who pays for the missions that are made here. `vouched` tells
    whether a person wrote a command of setup or checks, or trusts the repository that it is from; `open_snippets`
    gives what runs snippets, and raises `TierUnavailableError` where nothing can. `attempts_at_once` and
    `checks_at_once` are for all processes of the state directory together.
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
    controls: Controls
    version: str
    open_agent: Callable[[MissionRequest], Agent]
    open_gateway: OpenGateway
    open_registries: OpenRegistries
    open_egress: OpenEgress
    clock: ClockPort = field(default_factory=SystemClock)
    watch: Watch = ignore
    rules: Rules = field(default_factory=Rules)
    vouched: Callable[[str], bool] = nobody
    open_snippets: Callable[[], Awaitable[Snippets]] | None = None
    attempts_at_once: int = 5
    checks_at_once: int = field(default_factory=cores)
    choice: TierChoice | None = None
    user: str = ""

    @property
    def in_front(self) -> bool:
        """Whether a person waits for what this process does."""
        return self.worker[1] == "command"

    def live(self, row: MissionRow) -> bool:
        """Tell whether a living worker holds a mission right now."""
        return row.owner is not None and self.workers.live(row.owner)

    def slots(self, what: SlotName) -> ConcurrencyLimit:
        """Return the places of this state directory for what runs only so many at once."""
        places = {"attempts": self.attempts_at_once, "checks": self.checks_at_once, "probes": 1}
        return ConcurrencyLimit(self.home / "slots" / what, places=places[what])

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
