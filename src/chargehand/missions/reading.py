"""Reading missions: states, queue positions, checkpoints. Needs only the store and the list of workers."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from copy import copy
from datetime import datetime
from functools import lru_cache
from threading import Lock

from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.errors import NotFoundError, RefusedError, UsageError
from chargehand.core.events import GENESIS, Event
from chargehand.core.fold import apply, fold, mark_unheld
from chargehand.core.records import Checkpoint, Reason, TargetDelivery
from chargehand.core.state import MissionState, MissionSummary, independent_copy, total_cost
from chargehand.durable.workers import Roster
from chargehand.store.chain import AuditProblem
from chargehand.store.heads import LogHead
from chargehand.store.log import EventLog
from chargehand.store.rows import MissionFilter, MissionListing, MissionRow
from chargehand.store.store import Store

# At most this many lines of a long log are in memory at once.
_LINES_AT_ONCE = 5_000


class Queue(Struct, frozen=True, kw_only=True):
    """The unfinished `missions` that no living worker holds, the oldest request first.

    `workers` is the number of living workers that take any mission, `running` the number of missions they hold.
    """

    workers: int
    running: int
    missions: tuple[str, ...]

    def reasons(self, among: Collection[str] | None = None) -> dict[str, Reason]:
        """Return why each mission waits, or each one `among` some, in the order of the queue."""
        wanted = None if among is None else frozenset(among)
        return {
            mission: _queue_reason(self.workers, self.running, before)
            for before, mission in enumerate(self.missions)
            if wanted is None or mission in wanted
        }


# Lists request the text for a whole queue again and again, and it rarely changes.
@lru_cache(maxsize=5_000)
def _queue_reason(workers: int, running: int, before: int) -> Reason:
    ahead = f" ({before} ahead of it in the queue)" if before else ""
    if not workers:
        return Reason(code="no_worker", message=f"no worker is running, `chargehand worker` starts one{ahead}")
    who = "1 worker is running" if workers == 1 else f"{workers} workers are running"
    what = "1 mission" if running == 1 else f"{running} missions"
    message = f"waiting for a worker: {who} {what}{ahead}; it starts automatically"
    return Reason(code="queued", message=message)


class FollowedMission:
    """A mission that is followed: each look reads the lines added to its log since the last one."""

    def __init__(self, reader: MissionReader, mission: str) -> None:
        self._reader = reader
        self._mission = mission
        self._state = MissionState()
        self._seen = 0

    def look(self) -> tuple[MissionState, tuple[Event, ...]]:
        """Return the mission's state, and its events since the last look.

        Raises `NotFoundError`, `StoreError`.
        """
        log, news = self._reader.store.log, list[Event]()
        row = log.get(self._mission)
        while True:
            # The holder is checked first: if it ends in between, all its events are already in the log.
            live = self._reader.live(row)
            for line in log.read(self._mission, after=self._seen):
                apply(self._state, line)
                self._seen = line.seq
                news.append(line)
            now = log.get(self._mission)
            if live or now.epoch == row.epoch:
                break
            row = now  # claimed between the two reads: the mission that seemed lost is being worked on
        # Marks for an unheld mission must not affect the state that the next lines are applied to.
        state = self._reader.with_task_costs(copy(self._state))
        if not live:
            mark_unheld(state)
        return state, tuple(news)


class FoldedMission(Struct, frozen=True, kw_only=True):
    """A mission folded from its verified log lines, and since when (monotonic seconds).

    Its state is never modified: later lines change a copy.
    """

    state: MissionState
    head: LogHead
    since: float


class FoldedMissions:
    """The recently requested missions, each resumed from the last line read; thread-safe.

    A line is verified before it is applied, and a mission with a damaged line is never cached: it is read in full
    each time. Later damage to lines already read shows when they are read again, after at most `seconds`: until
    then the state is correct, and only the disk is wrong. No decision depends on a cached state: `audit verify`,
    `store check` and a worker that resumes a mission read every line.
    """

    def __init__(
        self,
        log: EventLog,
        *,
        lines: int = 200_000,
        missions: int = 1_000,
        seconds: float = 600.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._lines, self._missions, self._seconds, self._now = lines, missions, seconds, now
        # The most recently requested one comes last.
        self._kept: OrderedDict[str, FoldedMission] = OrderedDict()
        self._turns: dict[str, Lock] = {}
        self._lock = Lock()

    def get(self, mission: str) -> FoldedMission | None:
        """Return a mission as its log now describes it, `None` if it cannot be cached. Raises `StoreError`."""
        with self._lock:
            turn = self._turns.setdefault(mission, Lock())
        # If two callers request a long log at once, the second finds the first one's result.
        with turn:
            with self._lock:
                before = self._kept.pop(mission, None)
            found = self._read_on(mission, before)
            with self._lock:
                if found is not None:
                    self._kept[mission] = found
                else:
                    self._turns.pop(mission, None)
                # However short its log is, a mission takes some kilobytes: its configuration and its request.
                while len(self._kept) > self._missions or (
                    len(self._kept) > 1 and sum(each.head.seq for each in self._kept.values()) > self._lines
                ):
                    self._turns.pop(self._kept.popitem(last=False)[0], None)
        return found

    def _read_on(self, mission: str, before: FoldedMission | None) -> FoldedMission | None:
        now = self._now()
        for known in (before, None):
            if known is None:
                known = FoldedMission(state=MissionState(), head=LogHead(seq=0, hash=GENESIS), since=now)
            if now - known.since > self._seconds:
                continue
            state, head = known.state, known.head
            while lines := self._log.lines_behind(mission, head, limit=_LINES_AT_ONCE):
                state = independent_copy(state) if state is known.state else state
                for line in lines:
                    apply(state, line)
                head = LogHead(seq=lines[-1].seq, hash=lines[-1].hash)
            if lines is not None:
                return FoldedMission(state=state, head=head, since=known.since)
        return None


class MissionReader(Struct, frozen=True, kw_only=True):
    """Reads missions, using only the store and the list of workers, and rereads less of missions in `kept`."""

    store: Store
    workers: Roster
    kept: FoldedMissions | None = None

    def state(self, mission: str) -> MissionState:
        """Return a mission's state from its log and its holder; raises `NotFoundError`."""
        return self._state(self.store.log.get(mission))

    def all(self, *, project: str | None = None) -> Iterator[MissionState]:
        """Yield the states of all missions, of one project if named, oldest first."""
        for row in self.store.log.missions(project=project):
            yield self._state(row)

    def summaries(self, *, project: str | None = None) -> Iterator[MissionSummary]:
        """Yield the list rows of all missions, of one project if named, oldest first; no log is read."""
        for listing in self.listings(project=project):
            yield listing.summary

    def listings(self, *, project: str | None = None) -> tuple[MissionListing, ...]:
        """Return all missions as lists show them, like `summaries`; the same tuple while nothing has changed."""
        return self.store.log.summaries(self.workers.live, MissionFilter(project=project))

    def live(self, row: MissionRow) -> bool:
        """Return whether a living worker holds the mission right now."""
        return row.owner is not None and self.workers.live(row.owner)

    def queue(self) -> Queue:
        """Return the unfinished missions that no living worker has taken. Raises `StoreError`."""
        alive = {member.id for member in self.workers.members() if member.role == "worker"}
        # Rows and locks only: this must stay cheap, as lists call it on every refresh.
        rows = self.store.log.queue()
        owners = {owner for _, owner in rows if owner is not None}
        living = {owner for owner in owners if self.workers.live(owner)}
        # A `chargehand run` holds its own mission and takes no other: a living owner that is not a worker.
        running = sum(owner in living and owner in alive for _, owner in rows)
        free = tuple(mission for mission, owner in rows if owner not in living)
        return Queue(workers=len(alive), running=running, missions=free)

    def waits(self, among: Collection[str] | None = None) -> dict[str, Reason]:
        """Return why each mission of the queue waits, or each of those `among` some; see `Queue.reasons`."""
        return self.queue().reasons(among)

    def sleepers(self) -> dict[str, datetime]:
        """Return the missions that wait for a time, and when to check each, the earliest first."""
        rows = self.store.log.sleeping()
        waking = ((datetime.fromisoformat(row.wakes), row.id) for row in rows if row.wakes)
        return {mission: moment for moment, mission in sorted(waking)}

    def followed(self, mission: str) -> FollowedMission:
        """Return a mission for repeated looks."""
        return FollowedMission(self, mission)

    def problems(self, mission: str) -> tuple[AuditProblem, ...]:
        """Return the damage in a mission's log; for a cached one only newer lines are read."""
        if self.kept is not None and self.kept.get(mission) is not None:
            return ()
        return self.store.log.problems(mission)

    def at_rest(self, mission: str) -> MissionState:
        """Return a mission's state as if no worker ran it."""
        return self.with_task_costs(fold(self.store.log.read(mission), live=False))

    def with_task_costs(self, state: MissionState) -> MissionState:
        """Add the cost of all child missions to a coordinator's state; its own log contains only their ends."""
        if state.tasks is not None:
            found = self.store.log.summaries(self.workers.live, MissionFilter(parent=state.id))
            cost = total_cost(listing.summary for listing in found)
            state.tasks = replace(state.tasks, cost_usd=cost)
        return state

    def _state(self, row: MissionRow) -> MissionState:
        # The holder is checked first: if it ends in between, all its events are already in the log.
        while True:
            live = self.live(row)
            folded = None if self.kept is None else self.kept.get(row.id)
            if folded is None:
                state = fold(self.store.log.read(row.id), live=live)
            else:
                state = copy(folded.state)
                if not live:
                    mark_unheld(state)
            now = self.store.log.get(row.id)
            if live or now.epoch == row.epoch:
                return self.with_task_costs(state)
            row = now  # claimed between the two reads: the mission that seemed lost is being worked on


def find_checkpoint(state: MissionState, name: str) -> Checkpoint:
    """Return the checkpoint whose commit starts with `name`, or the last one for `last`.

    Raises `NotFoundError` that lists the known ones, `UsageError` if several match.
    """
    if name == "last" and state.checkpoints:
        return state.checkpoints[-1]
    found = {point.commit: point for point in state.checkpoints if point.commit.startswith(name)}
    if not found or len(name) < 4:
        known = ", ".join(point.commit[:12] for point in state.checkpoints) or "none"
        raise NotFoundError(f"mission {state.id!r} has no checkpoint {name!r}", hint=f"it has: {known}")
    if len(found) > 1:
        raise UsageError(f"{name!r} matches {len(found)} checkpoints", hint="give more digits")
    return next(iter(found.values()))


def base_tree(state: MissionState) -> str:
    """Return the tree a mission started from. Raises `RefusedError` if it ended before it had a base."""
    if state.base is None:
        hint = f"chargehand mission show {state.id}"
        raise RefusedError(f"mission {state.id!r} ended before it had a base", code="no_base", hint=hint)
    return state.base.tree


def result_tree(state: MissionState) -> str:
    """Return the promoted tree, otherwise the last checkpoint's, otherwise the base's."""
    base = base_tree(state)
    # After a roll-back the promoted tree is the base's: then the mission's result is in its last checkpoint.
    if state.tree is not None and state.tree != base:
        return state.tree
    return state.checkpoints[-1].tree if state.checkpoints else base


def mission_ref(mission: str) -> str:
    """Return the mission's branch in the depot."""
    return f"refs/chargehand/missions/{mission}"


def changed_since_promotion(state: MissionState) -> Checkpoint | None:
    """Return the last checkpoint if a person made it from the promoted result, and its tree differs."""
    last = state.checkpoints[-1] if state.checkpoints else None
    by_person = last is not None and bool(state.restored) and state.restored[-1].checkpoint == last
    return last if last is not None and by_person and last.tree != state.tree else None


def merged_checks(state: MissionState, *, without: Collection[str] = ()) -> tuple[str, ...]:
    """Return the checks of the tasks that a coordinator merged and did not roll back, `without` some of them."""
    if state.plan is None:
        return ()
    tasks = {task.id: task for task in state.plan.plan.tasks}
    merged = [name for name, known in state.plan.tasks.items() if known.merged and not known.rolled_back]
    names = [name for name in merged if name in tasks and name not in without]
    return tuple(dict.fromkeys(check for name in names for check in tasks[name].checks))


def is_exported(state: MissionState) -> bool:
    """Return whether the last promoted commit was written into the user's repository."""
    return state.exported is not None and state.exported == state.commit


def find_delivery(state: MissionState, target: str, commit: str) -> TargetDelivery:
    """Return the recorded delivery of a commit to a target given by the wiring; `pending` if there is none."""
    known = state.deliveries.get(target)
    if known is not None and known.commit == commit:
        return known
    return TargetDelivery(target=target, commit=commit, state="pending")


def retry_command(state: MissionState) -> str:
    """Return the command that delivers the branch's commit again: the one that was given."""
    return f"chargehand mission {'rollback' if is_rolled_back(state) else 'promote'} {state.id}"


def is_applied(state: MissionState) -> bool:
    """Return whether the user's own branch was moved to the last promoted commit."""
    return state.applied is not None and state.applied.state == "done"


def is_rolled_back(state: MissionState) -> bool:
    """Return whether the mission branch has the tree of its base again."""
    # By tree and not by commit: a roll-back is a new commit on top, and the branch never moves back.
    return state.commit is not None and state.promoted_on is not None and state.tree == state.promoted_on.tree


def plan_seconds_used(state: MissionState, now: datetime) -> float:
    """Return the wall-clock seconds used by a plan, excluding times when only people had work to do."""
    running = state.status == "running"
    since = (now - datetime.fromisoformat(state.updated)).total_seconds() if running else 0.0
    return state.plan_elapsed + max(0.0, since)


def plan_seconds_left(state: MissionState, now: datetime) -> float | None:
    """Return the wall-clock seconds left of a plan's time limit, `None` without a limit."""
    if state.plan is None or state.request is None or state.request.plan_seconds is None:
        return None
    return state.request.plan_seconds - plan_seconds_used(state, now)


def is_undelivered(state: MissionState) -> bool:
    """Return whether a valid promotion was not exported, not applied as requested, or not delivered further."""
    if state.status != "promoted" or state.request is None or is_rolled_back(state):
        return False
    if state.commit is None or state.parent:  # a task's coordinator delivers
        return False
    if not is_exported(state) or (state.request.apply and not is_applied(state)):
        return True
    # A target that got an earlier commit gets the present one too.
    return any((each.commit, each.state) != (state.commit, "done") for each in state.deliveries.values())


def is_part_of_plan(state: MissionState) -> bool:
    """Return whether a plan ended early, and its merged part is only on its own branch."""
    ended = state.status in ("refused", "failed", "exhausted", "cancelled")
    return ended and state.plan is not None and state.commit is not None and not is_rolled_back(state)


def has_open_tasks(state: MissionState) -> bool:
    """Return whether a person exported a plan before all of its tasks had ended."""
    progress = state.plan
    if progress is None or state.status != "promoted" or is_rolled_back(state):
        return False
    return any(
        progress.tasks.get(task.id) is None or progress.tasks[task.id].end is None for task in progress.plan.tasks
    )


def not_promoted_error(state: MissionState) -> RefusedError:
    """Return the error for a roll-back of a mission that promoted nothing."""
    return RefusedError(
        f"mission {state.id!r} has promoted nothing",
        code="not_promoted",
        hint=f"chargehand mission show {state.id}",
    )


def already_rolled_back_error(state: MissionState) -> RefusedError:
    """Return the error for a second roll-back."""
    return RefusedError(
        f"mission {state.id!r} is already rolled back",
        code="rolled_back",
        # A plan's tasks were promoted one after the other: it has no single result to promote.
        hint=f"chargehand mission promote {state.id} promotes it again"
        if state.plan is None
        else f"chargehand mission show {state.id}",
    )
