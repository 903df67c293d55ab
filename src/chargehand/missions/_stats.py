"""How missions ended, counted over a whole log: rates, causes, times and money.

One mission is held in memory at a time; what grows with their number is eight bytes for each known duration.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile
from typing import get_args

import msgspec
from msgspec.structs import replace

from chargehand.core.attempt_events import SandboxClosed
from chargehand.core.events import Event, decode
from chargehand.core.fold import fold
from chargehand.core.mission_events import MissionFinished
from chargehand.core.records import MissionStatus
from chargehand.core.state import AttemptState, MissionState
from chargehand.missions._causes import (
    CAUSE_CLASSES,
    ENDED,
    Cause,
    CauseClass,
    attempt_cause,
    mission_cause,
)
from chargehand.missions._missions import Look
from chargehand.missions._places import AGENT

DEFINITIONS: Mapping[str, str] = {
    "ended": "missions that are promoted, refused, waiting for a person, cancelled, discarded, exhausted or "
    "failed; planned, running and paused ones count in no rate. A discarded one counts as it had ended before",
    "completion": "of the ended: those that came to their own end, which is all but engine failures and those "
    "that are `failed` for a reason of class provider or person, such as a setup that cannot run",
    "promotion": "of the ended: those that are promoted; what was rolled back later is among them and is counted "
    "apart",
    "engine failure": "of the ended: those whose cause is of class engine",
    "attempts": "those that ended; a lost one only once its mission has ended, since another worker goes on with "
    "it",
    "seconds": "from a mission's creation to its end, and of an attempt as it was measured; percentiles by "
    "nearest rank: the smallest known value that at least so many percent of the known ones do not exceed",
    "checkpoint": "reading and keeping one tree, the freeze included",
    "sandbox": "from the wish for a workspace until programs run in it (ready), and until nothing runs any more "
    "once a freeze is ordered (freeze), of agents, checks and setups alike",
    "memory, disk": "of an agent's sandbox: the most it held at once, page cache included, where the kernel "
    "counts it; what was written into the workspace as it lies on the disk, ignored files included",
    "processor, processes, written": "of an agent's sandbox: its processor time, the most processes and threads "
    "at once, and the bytes on their way to a disk",
    "network": "requests of sandboxes to hosts that were let through and that were refused, and the bytes on the "
    "connections to hosts",
    "cost": "the sum over the attempts whose cost is known; those where it is not are counted, and never as 0",
}
"""What each figure means; the reference page shows it."""
_NETWORK = ("allowed", "refused", "bytes_out", "bytes_in")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Seconds or bytes at three percentiles by nearest rank, `None` where none is known.

    `known` and `unknown` say of how many they are, and of how many more they are not.
    """

    known: int
    unknown: int
    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What the attempts of known cost add up to in USD, `None` where there is none; how many are, and are not."""

    usd: float | None
    known: int
    unknown: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Shares of the ended missions, from 0 to 1, `None` where none has ended; see `DEFINITIONS`."""

    completion: float | None
    promotion: float | None
    engine_failure: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MissionStats:
    """Missions by status, and the ended ones by what the rates count."""

    total: int
    by_status: Mapping[MissionStatus, int]
    ended: int
    completed: int
    promoted: int
    rolled_back: int
    engine_failures: int
    seconds: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStats:
    """Attempts that ended: those that succeeded, and the others by the class of their cause."""

    ended: int
    succeeded: int
    by_class: Mapping[CauseClass, int]
    seconds: Spread
    cost: Cost


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseStats:
    """How many missions and attempts had one cause."""

    cause: Cause
    missions: int
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStats:
    """Checkpoints that were made, of any mission; older ones do not say how long they took."""

    made: int
    seconds: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxStats:
    """Sandboxes that are gone: seconds until ready and until frozen; of agents' own the bytes they took."""

    closed: int
    ready: Spread
    freeze: Spread
    memory: Spread
    disk: Spread
    cpu: Spread
    processes: Spread
    written: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkStats:
    """Requests of sandboxes to hosts, and the bytes of those that were let through."""

    allowed: int
    refused: int
    bytes_out: int
    bytes_in: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Everything that `chargehand stats` tells: causes and agents with the most first."""

    missions: MissionStats
    rates: Rates
    attempts: AttemptStats
    causes: tuple[CauseStats, ...]
    agents: Mapping[str, AttemptStats]
    checkpoints: CheckpointStats
    sandboxes: SandboxStats
    network: NetworkStats


def gather(look: Look, *, project: str | None = None, since: datetime | None = None) -> Stats:
    """Return the stats of all missions, or of one project's, created at `since` (timezone-aware) or later.

    Raises `StoreError`.
    """
    tally = Tally()
    for row in look.store.log.missions(project=project):
        if since is not None and datetime.fromisoformat(row.created) < since:
            continue
        events = look.store.log.read(row.id)
        state = fold(events, live=False)
        if state.status not in ENDED:  # only then it matters who holds it now
            state = look.state(row.id)
        tally.add(state, before=before_discard(events) if state.status == "discarded" else None)
    return tally.stats()


def before_discard(events: Iterable[Event]) -> MissionState:
    """Return the state of a mission that nobody holds as it was when a person discarded it."""
    return fold(takewhile(lambda line: not _discards(line), events), live=False)


def _discards(line: Event) -> bool:
    if line.type != MissionFinished.type or line.payload is None:
        return False
    try:
        payload = decode(line.type, line.payload)
    except msgspec.ValidationError:  # a newer version's: not read by the fold either
        return False
    return isinstance(payload, MissionFinished) and payload.status == "discarded"


@dataclass(slots=True)
class Values:
    """Known values, eight bytes each, and how many are not known."""

    values: array[float] = field(default_factory=lambda: array("d"))
    unknown: int = 0

    def add(self, value: float | None) -> None:
        """Count one value."""
        if value is None:
            self.unknown += 1
        else:
            self.values.append(value)

    def spread(self) -> Spread:
        """Return their percentiles."""
        ordered = sorted(self.values)
        return Spread(
            known=len(ordered),
            unknown=self.unknown,
            p50=nearest_rank(ordered, 50),
            p95=nearest_rank(ordered, 95),
            p99=nearest_rank(ordered, 99),
        )


def nearest_rank(ordered: list[float], percent: int) -> float | None:
    """Return the value of rank ceil(percent / 100 * n) of n sorted values, `None` where there is none."""
    return ordered[-(-percent * len(ordered) // 100) - 1] if ordered else None


@dataclass(slots=True)
class _Attempts:
    succeeded: int = 0
    by_class: Counter[CauseClass] = field(default_factory=Counter)
    seconds: Values = field(default_factory=Values)
    usd: float = 0.0
    priced: int = 0
    unpriced: int = 0

    def add(self, attempt: AttemptState, cause: Cause | None) -> None:
        if cause is None:
            self.succeeded += 1
        else:
            self.by_class[cause.kind] += 1
        self.seconds.add(attempt.seconds)
        if attempt.cost_known and attempt.cost_usd is not None:
            self.usd += attempt.cost_usd
            self.priced += 1
        else:
            self.unpriced += 1

    def stats(self) -> AttemptStats:
        return AttemptStats(
            ended=self.succeeded + self.by_class.total(),
            succeeded=self.succeeded,
            by_class={kind: self.by_class[kind] for kind in CAUSE_CLASSES},
            seconds=self.seconds.spread(),
            cost=Cost(usd=self.usd if self.priced else None, known=self.priced, unknown=self.unpriced),
        )


@dataclass(slots=True)
class _Sandboxes:
    closed: int = 0
    ready: Values = field(default_factory=Values)
    freeze: Values = field(default_factory=Values)
    memory: Values = field(default_factory=Values)
    disk: Values = field(default_factory=Values)
    cpu: Values = field(default_factory=Values)
    processes: Values = field(default_factory=Values)
    written: Values = field(default_factory=Values)

    def add(self, sandbox: SandboxClosed) -> None:
        self.closed += 1
        self.ready.add(sandbox.ready_seconds)
        for seconds in sandbox.freezes:
            self.freeze.add(seconds)
        if sandbox.purpose == AGENT:
            self.memory.add(sandbox.peak_memory)
            self.disk.add(sandbox.written_bytes)
            self.cpu.add(sandbox.cpu_seconds)
            self.processes.add(sandbox.peak_processes)
            self.written.add(sandbox.disk_written)

    def stats(self) -> SandboxStats:
        return SandboxStats(
            closed=self.closed,
            ready=self.ready.spread(),
            freeze=self.freeze.spread(),
            memory=self.memory.spread(),
            disk=self.disk.spread(),
            cpu=self.cpu.spread(),
            processes=self.processes.spread(),
            written=self.written.spread(),
        )


class Tally:
    """Adds up missions one by one."""

    def __init__(self) -> None:
        self._statuses: Counter[MissionStatus] = Counter()
        self._ended = self._completed = self._promoted = self._rolled_back = self._engine = 0
        self._seconds = Values()
        self._attempts = _Attempts()
        self._agents: dict[str, _Attempts] = {}
        self._causes: dict[Cause, Counter[str]] = {}
        self._checkpoints = Values()
        self._sandboxes = _Sandboxes()
        self._network: Counter[str] = Counter()

    def add(self, state: MissionState, *, before: MissionState | None = None) -> None:
        """Count one mission; `before` is its state before a person discarded it."""
        self._statuses[state.status] += 1
        for seconds in state.checkpoint_seconds:
            self._checkpoints.add(seconds)
        self._checkpoints.unknown += len(state.checkpoints) - len(state.checkpoint_seconds)
        for sandbox in state.sandboxes:
            self._sandboxes.add(sandbox)
        for name in _NETWORK:
            self._network[name] += getattr(state.network, name)
        ended = state.status in ENDED
        for attempt in state.attempts:
            self._add_attempt(attempt, ended=ended)
        if ended:
            self._add_end(_own_end(state, before))
            self._seconds.add(_seconds(state))

    def _add_attempt(self, attempt: AttemptState, *, ended: bool) -> None:
        if attempt.status == "running" or (attempt.status == "lost" and not ended):
            return
        cause = attempt_cause(attempt)
        self._attempts.add(attempt, cause)
        self._agents.setdefault(attempt.agent, _Attempts()).add(attempt, cause)
        if cause is not None:
            self._causes.setdefault(cause, Counter())["attempts"] += 1

    def _add_end(self, end: MissionState) -> None:
        cause = mission_cause(end)
        engine = cause is not None and cause.kind == "engine"
        broken_off = end.status == "failed" and cause is not None and cause.kind in ("provider", "person")
        promoted = end.status == "promoted"
        self._ended += 1
        self._engine += engine
        self._completed += not engine and not broken_off
        self._promoted += promoted
        self._rolled_back += promoted and end.base is not None and end.tree == end.base.tree
        if cause is not None:
            self._causes.setdefault(cause, Counter())["missions"] += 1

    def stats(self) -> Stats:
        """Return what was counted."""
        return Stats(
            missions=self._mission_stats(),
            rates=Rates(
                completion=self._share(self._completed),
                promotion=self._share(self._promoted),
                engine_failure=self._share(self._engine),
            ),
            attempts=self._attempts.stats(),
            causes=self._cause_stats(),
            agents=self._agent_stats(),
            checkpoints=CheckpointStats(
                made=self._checkpoints.unknown + len(self._checkpoints.values), seconds=self._checkpoints.spread()
            ),
            sandboxes=self._sandboxes.stats(),
            network=NetworkStats(**{name: self._network[name] for name in _NETWORK}),
        )

    def _mission_stats(self) -> MissionStats:
        return MissionStats(
            total=self._statuses.total(),
            by_status={status: self._statuses[status] for status in get_args(MissionStatus)},
            ended=self._ended,
            completed=self._completed,
            promoted=self._promoted,
            rolled_back=self._rolled_back,
            engine_failures=self._engine,
            seconds=self._seconds.spread(),
        )

    def _cause_stats(self) -> tuple[CauseStats, ...]:
        counted = (
            CauseStats(cause=cause, missions=counts["missions"], attempts=counts["attempts"])
            for cause, counts in self._causes.items()
        )
        return tuple(sorted(counted, key=lambda one: (-one.missions, -one.attempts, one.cause.code or "")))

    def _agent_stats(self) -> dict[str, AttemptStats]:
        made = ((name, attempts.stats()) for name, attempts in self._agents.items())
        return dict(sorted(made, key=lambda item: (-item[1].ended, item[0])))

    def _share(self, count: int) -> float | None:
        return count / self._ended if self._ended else None


def _own_end(state: MissionState, before: MissionState | None) -> MissionState:
    """Return the state that tells how a mission ended: a person who discards it does not change that.

    One that was lost and discarded before another worker took it has ended by that loss.
    """
    if before is None:
        return state
    if before.status in ENDED:
        return before
    lost = any(reason.code == "worker_lost" for reason in before.reasons)
    return replace(before, status="failed") if lost else state


def _seconds(state: MissionState) -> float | None:
    if not state.created or not state.finished:
        return None
    spent = datetime.fromisoformat(state.finished) - datetime.fromisoformat(state.created)
    return spent.total_seconds()
