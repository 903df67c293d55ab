"""Statistics of missions and attempts: rates, causes, durations and costs.

Each figure is defined in `causes.toml`. All figures come from the rows that the store keeps next to the logs; no
log is read.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from copy import copy
from datetime import UTC, datetime
from typing import get_args

from msgspec import Struct, field
from msgspec.structs import replace

from chargehand.core.attempt_events import SandboxClosed
from chargehand.core.fold import mark_unheld, unheld_status
from chargehand.core.records import MissionStatus
from chargehand.core.state import AttemptState, Ending, MissionMeasures, MissionSummary
from chargehand.missions.causes import CAUSE_CLASSES, ENDED, Cause, CauseClass, attempt_cause, mission_cause
from chargehand.missions.journal import AGENT
from chargehand.missions.reading import MissionReader
from chargehand.store.rows import MissionFilter, MissionListing

# Number of missions counted together, and of blocks whose tallies are cached.
_BLOCK, _MOST_BLOCKS = 64, 1_000
_BROKEN_OFF = {("failed", "provider"), ("failed", "person"), ("waiting", "provider")}
_NETWORK = ("allowed", "refused", "bytes_out", "bytes_in")


class Percentiles(Struct, frozen=True, kw_only=True):
    """Seconds or bytes at three percentiles by nearest rank, `None` without known values.

    `known` and `unknown` count the known and the unknown values.
    """

    known: int
    unknown: int
    p50: float | None
    p95: float | None
    p99: float | None


class Cost(Struct, frozen=True, kw_only=True):
    """Total cost in USD (`None` if no cost is known), and the number of attempts with known and unknown cost."""

    usd: float | None
    known: int
    unknown: int


class Rates(Struct, frozen=True, kw_only=True):
    """Shares of the ended missions, from 0 to 1, `None` if no mission has ended; defined in `causes.toml`."""

    completion: float | None
    promotion: float | None
    engine_failure: float | None


class MissionStats(Struct, frozen=True, kw_only=True):
    """Missions by status, and the ended ones by the categories of the rates.

    `tasks` counts missions that work for a coordinator: on a task, as its planner or as a reviewer.
    """

    total: int
    tasks: int
    by_status: Mapping[MissionStatus, int]
    ended: int
    completed: int
    promoted: int
    rolled_back: int
    engine_failures: int
    seconds: Percentiles


class AttemptStats(Struct, frozen=True, kw_only=True):
    """Attempts that ended: those that succeeded, and the others by the class of their cause."""

    ended: int
    succeeded: int
    by_class: Mapping[CauseClass, int]
    seconds: Percentiles
    cost: Cost


class CauseStats(Struct, frozen=True, kw_only=True):
    """The number of missions and attempts with one cause."""

    cause: Cause
    missions: int
    attempts: int


class CheckpointStats(Struct, frozen=True, kw_only=True):
    """Checkpoints of any mission; older ones do not record how long they took."""

    made: int
    seconds: Percentiles


class SandboxStats(Struct, frozen=True, kw_only=True):
    """Closed sandboxes: seconds until ready and until frozen; for agents' own sandboxes, resource usage."""

    closed: int
    ready: Percentiles
    freeze: Percentiles
    memory: Percentiles
    disk: Percentiles
    cpu: Percentiles
    processes: Percentiles
    written: Percentiles


class NetworkStats(Struct, frozen=True, kw_only=True):
    """Requests of sandboxes to hosts, and the bytes of the allowed ones."""

    allowed: int
    refused: int
    bytes_out: int
    bytes_in: int


class Statistics(Struct, frozen=True, kw_only=True):
    """The content of `chargehand stats`: causes and agents with the highest counts first."""

    missions: MissionStats
    rates: Rates
    attempts: AttemptStats
    causes: tuple[CauseStats, ...]
    agents: Mapping[str, AttemptStats]
    checkpoints: CheckpointStats
    sandboxes: SandboxStats
    network: NetworkStats


def gather_statistics(
    reader: MissionReader,
    *,
    project: str | None = None,
    since: datetime | None = None,
    known: TalliedBlocks | None = None,
) -> Statistics:
    """Return the statistics of all missions, or of one project's, created at `since` (timezone-aware) or later.

    Reads the projected rows, so the time does not grow with the length of the logs. `known` caches tallies for
    repeated calls: only blocks with a changed mission are counted again. Raises `StoreError`.
    """
    total, known = MissionTally(), known if known is not None and since is None else {}
    moment = since.astimezone(UTC).isoformat(timespec="microseconds") if since is not None else None
    listings = reader.store.log.summaries(
        reader.workers.live, MissionFilter(project=project, since=moment), measures=True
    )
    for begin in range(0, len(listings), _BLOCK):
        block, before = listings[begin : begin + _BLOCK], known.get((project, begin))
        if before is None or before[0] != block:
            if len(known) >= _MOST_BLOCKS:
                known.clear()
            before = known[project, begin] = (block, MissionTally.of(block))
        _add_up(total, before[1])
    return total.stats()


def _add_up(total: Struct, part: Struct) -> None:
    """Add each count of `part` to `total`, a record of the same kind; `part` does not change."""
    for name in total.__struct_fields__:
        mine, its = getattr(total, name), getattr(part, name)
        match mine:
            case int():
                setattr(total, name, mine + its)
            case array():
                mine.extend(its)
            case Counter():
                mine.update(its)
            case dict():
                for key, each in its.items():
                    _add_up(mine.setdefault(key, type(each)()), each)
            case _:
                _add_up(mine, its)


class Sample(Struct):
    """Known values, eight bytes each, and the number of unknown ones."""

    values: array[float] = field(default_factory=lambda: array("d"))
    unknown: int = 0

    def add(self, value: float | None) -> None:
        """Count one value."""
        if value is None:
            self.unknown += 1
        else:
            self.values.append(value)

    def total(self) -> float | None:
        """Return the sum of the known values, `None` without any."""
        # In sorted order, whatever order they were added in: a sum of floats depends on it.
        return sum(sorted(self.values)) if self.values else None

    def spread(self) -> Percentiles:
        """Return their percentiles."""
        ordered = sorted(self.values)
        return Percentiles(
            known=len(ordered),
            unknown=self.unknown,
            p50=nearest_rank(ordered, 50),
            p95=nearest_rank(ordered, 95),
            p99=nearest_rank(ordered, 99),
        )


def nearest_rank(ordered: list[float], percent: int) -> float | None:
    """Return the value of rank ceil(percent / 100 * n) of n sorted values, `None` for an empty list."""
    # -(-a // b) is the ceiling of a / b without floating point.
    return ordered[-(-percent * len(ordered) // 100) - 1] if ordered else None


class _AttemptTally(Struct):
    """Attempts of all agents, or of one."""

    succeeded: int = 0
    by_class: Counter[CauseClass] = field(default_factory=Counter)
    seconds: Sample = field(default_factory=Sample)
    usd: Sample = field(default_factory=Sample)

    def add(self, attempt: AttemptState, cause: Cause | None) -> None:
        if cause is None:
            self.succeeded += 1
        else:
            self.by_class[cause.kind] += 1
        self.seconds.add(attempt.seconds)
        self.usd.add(attempt.cost_usd if attempt.cost_known else None)

    def stats(self) -> AttemptStats:
        return AttemptStats(
            ended=self.succeeded + self.by_class.total(),
            succeeded=self.succeeded,
            by_class={kind: self.by_class[kind] for kind in CAUSE_CLASSES},
            seconds=self.seconds.spread(),
            cost=Cost(usd=self.usd.total(), known=len(self.usd.values), unknown=self.usd.unknown),
        )


class _SandboxTally(Struct):
    """Closed sandboxes; resource usage is counted only for agents' own sandboxes."""

    closed: int = 0
    ready: Sample = field(default_factory=Sample)
    freeze: Sample = field(default_factory=Sample)
    memory: Sample = field(default_factory=Sample)
    disk: Sample = field(default_factory=Sample)
    cpu: Sample = field(default_factory=Sample)
    processes: Sample = field(default_factory=Sample)
    written: Sample = field(default_factory=Sample)

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


class _CauseTally(Struct):
    """Missions and attempts that ended for one cause."""

    missions: int = 0
    attempts: int = 0


class MissionTally(Struct):
    """Adds up missions one by one."""

    statuses: Counter[MissionStatus] = field(default_factory=Counter)
    tasks: int = 0
    ended: int = 0
    completed: int = 0
    promoted: int = 0
    rolled_back: int = 0
    engine: int = 0
    seconds: Sample = field(default_factory=Sample)
    attempts: _AttemptTally = field(default_factory=_AttemptTally)
    agents: dict[str, _AttemptTally] = field(default_factory=dict)
    causes: dict[Cause, _CauseTally] = field(default_factory=dict)
    checkpoints: Sample = field(default_factory=Sample)
    sandboxes: _SandboxTally = field(default_factory=_SandboxTally)
    network: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, listings: Iterable[MissionListing]) -> MissionTally:
        """Return the tally of these missions, which were listed with their measures."""
        tally = cls()
        for listing in listings:
            assert listing.measures is not None
            tally.add(listing.summary, listing.measures)
        return tally

    def add(self, state: MissionSummary, measures: MissionMeasures) -> None:
        """Count one mission."""
        # A worker that is about to release an ended mission may still hold it: the end already counts.
        if unheld_status(state) in ENDED:
            state = copy(state)
            mark_unheld(state)
        self.statuses[state.status] += 1
        self.tasks += bool(state.parent)
        for seconds in measures.checkpoint_seconds:
            self.checkpoints.add(seconds)
        # Checkpoints of older versions did not record how long they took.
        self.checkpoints.unknown += state.checkpoint_count - len(measures.checkpoint_seconds)
        for sandbox in measures.sandboxes:
            self.sandboxes.add(sandbox)
        for name in _NETWORK:
            self.network[name] += getattr(measures.network, name)
        ended = state.status in ENDED
        for attempt in state.attempts:
            # A lost attempt counts once its mission has ended: until then another worker may resume it.
            if attempt.copied or attempt.status == "running" or (attempt.status == "lost" and not ended):
                continue
            cause = attempt_cause(attempt)
            self.attempts.add(attempt, cause)
            self.agents.setdefault(attempt.agent, _AttemptTally()).add(attempt, cause)
            if cause is not None:
                self.causes.setdefault(cause, _CauseTally()).attempts += 1
        if ended:
            self._add_end(_own_end(state))
            spent = None
            if state.created and state.finished:
                spent = datetime.fromisoformat(state.finished) - datetime.fromisoformat(state.created)
            self.seconds.add(spent.total_seconds() if spent is not None else None)

    def _add_end(self, end: Ending) -> None:
        cause = mission_cause(end)
        engine = cause is not None and cause.kind == "engine"
        # Not the engine's fault, and still not the mission's own end: a setup that cannot run, a model without a
        # key, an unavailable provider that a mission waits for.
        kind = cause.kind if cause is not None else ""
        broken_off = (end.status, kind) in _BROKEN_OFF
        promoted = end.status == "promoted"
        self.ended += 1
        self.engine += engine
        self.completed += not engine and not broken_off
        self.promoted += promoted
        self.rolled_back += promoted and end.base is not None and end.tree == end.base.tree
        if cause is not None:
            self.causes.setdefault(cause, _CauseTally()).missions += 1

    def stats(self) -> Statistics:
        """Return the totals."""
        causes = [
            CauseStats(cause=cause, missions=counted.missions, attempts=counted.attempts)
            for cause, counted in self.causes.items()
        ]
        agents = [(name, attempts.stats()) for name, attempts in self.agents.items()]
        return Statistics(
            missions=MissionStats(
                total=self.statuses.total(),
                tasks=self.tasks,
                by_status={status: self.statuses[status] for status in get_args(MissionStatus)},
                ended=self.ended,
                completed=self.completed,
                promoted=self.promoted,
                rolled_back=self.rolled_back,
                engine_failures=self.engine,
                seconds=self.seconds.spread(),
            ),
            rates=Rates(
                completion=self._share(self.completed),
                promotion=self._share(self.promoted),
                engine_failure=self._share(self.engine),
            ),
            attempts=self.attempts.stats(),
            causes=tuple(sorted(causes, key=lambda one: (-one.missions, -one.attempts, one.cause.code or ""))),
            agents=dict(sorted(agents, key=lambda item: (-item[1].ended, item[0]))),
            checkpoints=CheckpointStats(
                made=self.checkpoints.unknown + len(self.checkpoints.values), seconds=self.checkpoints.spread()
            ),
            sandboxes=self.sandboxes.stats(),
            network=NetworkStats(**{name: self.network[name] for name in _NETWORK}),
        )

    def _share(self, count: int) -> float | None:
        return count / self.ended if self.ended else None


def _own_end(state: MissionSummary) -> Ending:
    """Return how a mission ended; a person who discards it later does not change that.

    A mission that was lost, and discarded before another worker took it, ended by that loss.
    """
    now = Ending(status=state.status, reasons=state.reasons, base=state.base, tree=state.tree)
    before = state.before_discard if state.status == "discarded" else None
    if before is None:
        return now
    # A mission that a person discards later had already ended.
    if before.status in ENDED:
        return before
    lost = any(reason.code == "worker_lost" for reason in before.reasons)
    return replace(before, status="failed") if lost else now


# By project and position in its list: missions and their tally, which is never modified.
TalliedBlocks = dict[tuple[str | None, int], tuple[tuple[MissionListing, ...], MissionTally]]
