"""Workers: run missions that have no live holder, and start a worker if none is alive."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from chargehand.core.errors import ChargehandError, FencedError, InfrastructureError, RefusedError, StoreError
from chargehand.core.plan_events import PlannerStarted, ReviewStarted, TaskStarted
from chargehand.core.records import Reason
from chargehand.durable.workers import LocalWorkers, begin_start, end_start
from chargehand.store.rows import MissionRow

if TYPE_CHECKING:
    from chargehand.app.composition import App
    from chargehand.core.events import Event, Payload
    from chargehand.durable.engine import Engine
    from chargehand.reports.reading import StateReader

_LOG = logging.getLogger("chargehand.worker")
# Reading the log takes 1 to 2 ms of processor time, the queue 1 ms, also while the machine is idle.
_SCAN_SECONDS = 0.2
_POLL_SECONDS = 0.3
# How often a worker checks for lost work, and for missions that another worker left to be woken.
_CHECK_SECONDS = 2.0
# How often it looks for the fates of promotions.
_LOOK_SECONDS = 3600.0
# Without a scan for this long, no worker was at work: a slow machine may miss a few scans.
_ABSENT_SECONDS = 10.0
_IDLE_SCANS = 5
# How long rows of ended turns are kept; the log has the outcome of their missions.
_KEEP_SECONDS = 7 * 86_400.0
# Turns per slot that one worker puts into the queue, where their order is fixed: the log has the rest, and a row
# costs 4 ms.
_QUEUED_PER_SLOT = 2
# Turns of a mission per claim: if a turn ended without a claim, the next number is another row.
_TURNS_PER_CLAIM = 1000
# How long a live worker counts as alive, if checking requires a query.
_ASK_SECONDS = 0.5
AWAY = "engine_database"
_DAMAGED = "mission_damaged"
# Missions that one worker runs at once by default.
SLOTS = 5


class Worker:
    """Finds missions to run, hands them to the engine, and runs those that the engine assigns to it.

    `tend` is called every few seconds in another thread, and with `True` before the worker ends because nothing is
    left to do: it passes news between missions and forges.
    """

    def __init__(self, app: App, *, slots: int = SLOTS, tend: Callable[[bool], object] | None = None) -> None:
        self._app = app
        self._local = LocalWorkers(app.home, version="")
        self._slots = slots
        self._tend = tend
        self._stopping = False
        # Ends the wait for the next scan: a turn ended here, or a coordinator recorded missions.
        self._news = asyncio.Event()
        self._handed: dict[str, int] = {}
        self._spent: dict[str, int] = {}
        self._seen_alive: dict[str, float] = {}
        self._away = False
        self._asleep = 0
        # When the next mission is to be woken.
        self._next_wake: datetime | None = None
        self._last_scan: datetime | None = None

    def stop(self) -> None:
        """Release everything that runs, to be resumed by another worker, and end."""
        self._stopping = True
        self._news.set()
        self._app.controls.stop_all("release")

    async def work(self, *, until_idle: bool, sleepers: bool = False) -> None:
        """Work until stopped, given up by the others, or (`until_idle`) until there is nothing to do.

        With `sleepers` it also waits for missions that wait for quota, and wakes them. It waits for a database
        that is not reachable. A worker that was given up must join again, under another id, before it works again.
        Raises `StoreError`, `TierUnavailableError`, and `InfrastructureError` if it cannot begin.
        """
        from chargehand.app.truths import look_quietly
        from chargehand.durable.engine import Engine
        from chargehand.reports.live_output import remove_unneeded_output

        app = self._app
        self._loop = asyncio.get_running_loop()
        worker = app.member.id
        end_start(_log_path(app.home))
        async with (
            app.taking_orders(),
            Engine.open(
                app.engine_url,
                worker=worker,
                slots=self._slots,
                run=self._run,
                is_live=app.workers.live,
                poll_seconds=_POLL_SECONDS,
            ) as engine,
        ):
            with contextlib.suppress(InfrastructureError):  # only cleaning up: a later start will do it
                await engine.forget_finished(older_than=_KEEP_SECONDS)
            await asyncio.to_thread(remove_unneeded_output, app)
            idle = 0
            next_check = 0.0
            # Each mission that starts looks too, at those of its project.
            next_look, looking = time.monotonic() + _CHECK_SECONDS, asyncio.create_task(asyncio.sleep(0))
            tending = asyncio.create_task(asyncio.sleep(0))
            while not self._is_ending:
                check = time.monotonic() >= next_check
                if check:
                    next_check = time.monotonic() + _CHECK_SECONDS
                if check or self._news.is_set() or self._seconds_to_next() <= 0:
                    self._news.clear()  # before the scan: later news is for the next one
                    await asyncio.to_thread(self._wake)
                if time.monotonic() >= next_look and looking.done():
                    next_look = time.monotonic() + _LOOK_SECONDS
                    looking = asyncio.create_task(asyncio.to_thread(look_quietly, app))
                found = await self._hand_over_missions(engine, check=check)
                busy = found or engine.active() or (sleepers and self._asleep)
                idle = 0 if busy else idle + 1
                if check and tending.done():
                    tending = asyncio.create_task(asyncio.to_thread(self._tend_quietly, False))
                if until_idle and idle > _IDLE_SCANS and not await asyncio.to_thread(self._wake):
                    await tending
                    await asyncio.to_thread(self._tend_quietly, True)
                    if not await asyncio.to_thread(self._find_free_missions):
                        break
                    idle = 0
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(_SCAN_SECONDS, max(0.0, self._seconds_to_next()))):
                        await self._news.wait()
            # Missions need the order first: the engine waits for running work before it closes.
            app.controls.stop_all("release")
            await asyncio.gather(looking, tending)

    def _tend_quietly(self, last: bool) -> None:
        if self._tend is None:
            return
        try:
            self._tend(last)
        except Exception:  # the boundary: a fault at a forge must not stop missions
            _LOG.exception("forges")

    @property
    def _is_ending(self) -> bool:
        return self._stopping or self._app.member.lost

    def _seconds_to_next(self) -> float:
        """Return the seconds until this worker wakes the next mission that it knows of."""
        return math.inf if self._next_wake is None else (self._next_wake - self._app.clock.now()).total_seconds()

    def _wake(self) -> bool:
        """Wake the missions whose time has come; return whether there are any.

        Each worker tries, and the first that holds a mission wakes it.
        """
        woken = False
        now = self._app.clock.now()
        # By its own scans too: the clocks of other machines may differ.
        since = max(filter(None, (self._local.last_worked(), self._last_scan)), default=now)
        if (now - since).total_seconds() > _ABSENT_SECONDS:
            self._app.steering.note_absence(since)
        self._local.note_work(now)
        self._last_scan = now
        found = self._app.mission_reader.sleepers()
        self._asleep = len(found)
        self._next_wake = min((moment for moment in found.values() if moment > now), default=None)
        for mission in (mission for mission, moment in found.items() if moment <= now):
            with contextlib.suppress(RefusedError):  # another worker holds it
                try:
                    woken |= self._app.steering.wake(mission, now=now)
                except StoreError as error:
                    if error.code != _DAMAGED:
                        raise
                    self._give_up(mission, error.code, error.message)
        return woken

    async def _hand_over_missions(self, engine: Engine, *, check: bool) -> bool:
        """Hand missions to the engine; return whether any should run (true while the database is unreachable)."""
        try:
            if check:
                # Recover lost work: rows of dead workers, and missions handed over without a waiting row.
                await asyncio.to_thread(self._app.workers.sweep)
                await engine.rescue()
                waiting = await engine.waiting()
                open_now = {row.id for row in await asyncio.to_thread(self._app.store.log.takeable)}
                ended = {mission: turn for mission, turn in self._handed.items() if mission not in waiting}
                # Their numbers are used up: a row that has run does not run again.
                self._spent = {
                    mission: turn for mission, turn in (self._spent | ended).items() if mission in open_now
                }
                self._handed = {mission: turn for mission, turn in self._handed.items() if mission in waiting}
            rows = await asyncio.to_thread(self._find_free_missions)
            for row in rows[: _QUEUED_PER_SLOT * self._slots]:
                if self._is_ending:
                    break
                # Each claim raises the epoch, so no number from before the claim is reused.
                turn = max(row.epoch * _TURNS_PER_CLAIM, self._spent.get(row.id, -1) + 1)
                if self._handed.get(row.id) != turn:
                    await engine.trigger(row.id, turn)
                    self._handed[row.id] = turn
            found = bool(rows)
        except InfrastructureError as error:
            if error.code != AWAY:
                raise
            if not self._away:
                _LOG.warning("%s", error)
            self._away = True
            return True
        if check:  # only a check is certain to have queried the database
            self._away = False
        return found

    def _find_free_missions(self) -> list[MissionRow]:
        """Return the missions that should run and that no live worker holds, in a fair order; may block."""
        self._app.steering.tell_coordinators()
        rows = self._app.store.log.takeable()
        owners = {row.owner for row in rows if row.owner is not None}
        self._seen_alive = {owner: at for owner, at in self._seen_alive.items() if owner in owners}
        is_query = self._app.engine.url is not None
        living = set()
        for owner in owners:
            asked = time.monotonic()
            if is_query and asked - self._seen_alive.get(owner, -_ASK_SECONDS) < _ASK_SECONDS:
                living.add(owner)
            # Only that a worker is alive is cached: its death must be noticed at once.
            elif self._app.workers.live(owner):
                self._seen_alive[owner] = asked
                living.add(owner)
            else:
                self._seen_alive.pop(owner, None)
        running = [row for row in rows if row.owner in living]
        return fair_order([row for row in rows if row.owner not in living], running)

    async def _run(self, mission: str) -> None:
        from chargehand.core.redaction import log_fields

        with log_fields(mission=mission):
            if self._is_ending:
                raise asyncio.CancelledError  # its turn goes back to the queue
            from chargehand.reports.live_output import run_with_output

            try:
                if not await asyncio.to_thread(self._is_takeable, mission):
                    return
                _LOG.info("goes on")
                opening = self._app.mission_session(mission, recorded=True, watch=self._see_event)
                async with opening as (_, session):
                    await run_with_output(self._app, session.missions, mission)
                _LOG.info("is %s", self._app.store.log.summary(mission).summary.status)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or self._app.store.log.get(mission).runnable:
                    raise  # released: its turn goes back to the queue
                task.uncancel()
            except FencedError as error:
                _LOG.warning("%s", error)
            except ChargehandError as error:
                if error.code == AWAY:
                    raise asyncio.CancelledError from error  # not the mission's fault: a worker takes it later
                if error.code != "mission_held":
                    self._give_up(mission, error.code, error.message)
            except Exception as error:  # our own fault: without an end the mission would be retried for ever
                _LOG.exception("mission %s", mission)
                self._give_up(mission, "internal", f"{type(error).__name__}: {error}")
            finally:
                self._news.set()

    def _see_event(self, event: Event, payload: Payload) -> None:
        """End the wait if a coordinator has recorded missions; called from any thread."""
        if isinstance(payload, TaskStarted | ReviewStarted | PlannerStarted):
            self._loop.call_soon_threadsafe(self._news.set)

    def _is_takeable(self, mission: str) -> bool:
        """Return whether a mission should run and no live worker holds it, read again from the store."""
        row = self._app.store.log.get(mission)
        return (row.runnable or row.owner is not None) and not self._app.acting_reader.live(row)

    def _give_up(self, mission: str, code: str, message: str) -> None:
        """Settle a mission that could not be started, unless another worker holds it by now.

        Nothing is added to a damaged log: no worker takes the mission up, and other missions continue.
        """
        if code == _DAMAGED:
            _LOG.warning("%s; no worker continues it until a person resumes it", message)
            self._app.store.log.set_aside(mission)
            return
        with contextlib.suppress(RefusedError):
            self._app.steering.give_up(mission, Reason(code=code, message=message), now=self._app.clock.now())


class WorkerStart(Struct, frozen=True):
    """Whether a worker was started, and why it could not be: missions that need one stay recorded."""

    started: bool
    problem: str | None = None


def ensure_worker(app: StateReader) -> WorkerStart:
    """Start a detached worker if none is alive.

    It ends when nothing is left to do, and stays for missions that wait for quota: no other process may wake them.
    A recorded mission is accepted even if the worker cannot start, so no failure is raised.
    """
    try:
        return WorkerStart(start_worker(app) is not None)
    except (ChargehandError, OSError) as error:
        problem = error.message if isinstance(error, ChargehandError) else str(error)
        return WorkerStart(False, problem)


def start_worker(app: StateReader) -> subprocess.Popen[bytes] | None:
    """Start a worker as `ensure_worker` does; return its process, for callers that check before it has joined."""
    if not app.starts_workers or _has_worker(app):
        return None
    path = _log_path(app.home)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.open("ab") as log:
        # The worker inherits the open file and with it the lock until it has joined the others: no second caller
        # starts a second worker meanwhile.
        if not begin_start(log.fileno()) or _has_worker(app):
            return None
        return subprocess.Popen(
            [sys.executable, "-m", "chargehand", "worker", "--until-idle", "--wait-for-quota"],
            cwd="/",
            env={**os.environ, **app.environ, "CHARGEHAND_HOME": str(app.home)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # The terminal's Ctrl-C and hang-up are meant for the command that started it, not for the worker.
            start_new_session=True,
        )


def engine_answers(reader: StateReader) -> bool | None:
    """Return whether the server of the engine's database accepts connections, `None` if it is a file.

    May take seconds. Raises `ConfigError`.
    """
    if reader.engine.url is None:
        return None
    from chargehand.durable.leases import server_answers

    return server_answers(reader.engine.url)


def _has_worker(app: StateReader) -> bool:
    return any(member.role == "worker" for member in app.workers.members())


def _log_path(home: Path) -> Path:
    return home / "logs" / "worker.log"


def fair_order(free: Sequence[MissionRow], running: Sequence[MissionRow]) -> list[MissionRow]:
    """Return missions in the order in which they should be taken, given the running ones; both oldest first.

    Projects take turns, then the users of a project, then the missions of a user, each with all its tasks: a plan
    of many tasks or a person with many missions does not delay others. Running missions count for their project,
    user and mission.
    """
    by_mission = _in_turns(free, running, lambda row: (row.project, row.user, row.parent or row.id))
    by_user = _in_turns(by_mission, running, lambda row: (row.project, row.user))
    return _in_turns(by_user, running, lambda row: row.project)


def _in_turns(
    rows: Sequence[MissionRow], running: Sequence[MissionRow], share: Callable[[MissionRow], Hashable]
) -> list[MissionRow]:
    """Return rows so that the share with the fewest goes first; within a turn they keep their order."""
    taken = Counter(map(share, running))
    turns: list[tuple[int, MissionRow]] = []
    for row in rows:
        taken[share(row)] += 1
        turns.append((taken[share(row)], row))
    return [row for _, row in sorted(turns, key=lambda each: each[0])]
