"""The engine: decides when a turn of a mission runs, and on which worker.

The event log records a mission's steps and resumes it; a row here only says "look at this mission". So a row that
runs twice does no harm, and a lost row is triggered again from the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from chargehand.core.errors import InfrastructureError, UsageError
from chargehand.durable.backend.database import check_url, typed_errors
from chargehand.durable.backend.scheduler import RUNNING, WAITING, Scheduler, TurnRow, forwarded_log

T = TypeVar("T")
# DBOS keeps its registry and its configuration in module globals: a second engine would change the first one's.
_ONE_ENGINE = threading.Lock()
_LAST_PRIORITY = 2**31 - 1
# A turn that was just taken has its row before its task runs.
_STUCK_SECONDS = 1.0
_WRITE_SECONDS = 5.0


class Engine:
    """A worker's side of the queue `missions`; made by `Engine.open`, used from the event loop that opened it."""

    def __init__(
        self, url: str, *, worker: str, run: Callable[[str], Awaitable[None]], is_live: Callable[[str], bool]
    ) -> None:
        self._url = url
        self._worker = worker
        self._run = run
        self._is_live = is_live
        self._active: Counter[str] = Counter()
        self._idle_since: dict[str, float] = {}
        self._closing = False
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="chargehand-engine")
        self._scheduler: Scheduler

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        url: str,
        *,
        worker: str,
        slots: int,
        run: Callable[[str], Awaitable[None]],
        is_live: Callable[[str], bool],
        poll_seconds: float = 0.1,
    ) -> AsyncIterator[Engine]:
        """Take turns off the queue while the block runs, at most `slots` at once, each by `await run(mission)`.

        `url` is `sqlite:///PATH` or `postgresql://…`; `worker` is an id that no other start of a process ever has;
        `is_live` returns whether another worker lives, may block and is called from a thread. An error of `run`
        ends its turn and is logged; a `run` that raises `asyncio.CancelledError` gives its turn back. At the end
        of the block no further turns are taken, and running ones are awaited: the caller must have ordered them to
        end.

        Raises `ConfigError` for another kind of URL, `UsageError` if this process has an engine or a number is not
        positive, `InfrastructureError` if the database cannot be used.
        """
        check_url(url)
        if slots < 1 or poll_seconds <= 0:
            raise UsageError(f"slots and poll_seconds must be positive, got {slots!r} and {poll_seconds!r}")
        if not _ONE_ENGINE.acquire(blocking=False):
            raise UsageError("this process already has an engine", code="engine_open", hint="close the first one")
        try:
            with forwarded_log():
                engine = cls(url, worker=worker, run=run, is_live=is_live)
                try:
                    await engine._launch(slots, poll_seconds)
                    try:
                        yield engine
                    finally:
                        await engine._close()
                finally:
                    engine._threads.shutdown()
        finally:
            _ONE_ENGINE.release()

    async def trigger(self, mission: str, turn: int, *, priority: int = 0) -> bool:
        """Request a turn of a mission, 0 being the most urgent priority; return `False` if requested before.

        Raises `UsageError` for an impossible priority, `InfrastructureError` if the database cannot be used.
        """
        if not 0 <= priority <= _LAST_PRIORITY:
            raise UsageError(f"not a priority: {priority!r}", hint=f"use 0 (first) to {_LAST_PRIORITY}")
        return await self._call(lambda: self._scheduler.enqueue(mission, turn, priority=priority))

    async def rescue(self) -> tuple[str, ...]:
        """Requeue the turns of dead workers, and those of ours that do not run; return missions.

        The second kind must have been seen idle twice in a row, a second or more apart. Many workers may rescue at
        once. Raises `InfrastructureError`.
        """
        rows = await self._call(lambda: self._scheduler.rows(RUNNING))
        running = self._scheduler.running()
        now = time.monotonic()
        idle = [row for row in rows if row.worker == self._worker and row.id not in running]
        self._idle_since = {row.id: self._idle_since.get(row.id, now) for row in idle}
        stuck = [row for row in idle if now - self._idle_since[row.id] >= _STUCK_SECONDS]
        given = await self._call(lambda: self._scheduler.requeue([*self._orphans(rows), *stuck]))
        return tuple(sorted({row.mission for row in given}))

    def active(self) -> frozenset[str]:
        """Return the missions whose turn runs here now."""
        return frozenset(self._active)

    async def waiting(self) -> frozenset[str]:
        """Return the missions that need no trigger: queued, or running on a living worker.

        Raises `InfrastructureError`.
        """
        rows = await self._call(lambda: self._scheduler.rows(WAITING, RUNNING))
        orphans = await self._call(lambda: set(self._orphans(rows)))
        return frozenset(row.mission for row in rows if row not in orphans)

    async def forget_finished(self, *, older_than: float) -> int:
        """Delete the rows of turns that ended more than `older_than` seconds ago. Raises `InfrastructureError`."""
        return await self._call(lambda: self._scheduler.delete_finished(older_than=older_than))

    def _orphans(self, rows: Iterable[TurnRow]) -> list[TurnRow]:
        others = [row for row in rows if row.status == RUNNING and row.worker not in (None, self._worker)]
        dead = {worker for worker in {row.worker for row in others} if worker and not self._is_live(worker)}
        return [row for row in others if row.worker in dead]

    async def _turn(self, mission: str, turn: int) -> None:
        if self._closing:
            raise asyncio.CancelledError  # taken just before the end: it is given back
        self._active[mission] += 1
        task = asyncio.current_task()
        assert task is not None
        # Only after its end is written: until then it has its slot.
        task.add_done_callback(lambda _: self._scheduler.poll_now())
        try:
            await self._run(mission)
        except Exception as error:
            error.add_note(f"this ended turn {turn} of mission {mission!r}")
            raise
        finally:
            self._active[mission] -= 1
            self._active = +self._active

    async def _launch(self, slots: int, poll_seconds: float) -> None:
        # In a thread: the import takes half a second, which must not block this loop.
        await self._call(lambda: importlib.import_module("dbos"))
        with typed_errors(self._url):
            self._scheduler = Scheduler.build(
                self._url, worker=self._worker, slots=slots, poll_seconds=poll_seconds, body=self._turn
            )
        try:
            await self._call(self._scheduler.launch)
        except BaseException:
            await self._call(self._scheduler.destroy)
            raise

    async def _close(self) -> None:
        self._closing = True
        self._scheduler.stop_dequeuing()
        try:
            await self._bodies_end()
            with contextlib.suppress(InfrastructureError):  # then another worker rescues them
                rows = await self._call(lambda: self._scheduler.rows(RUNNING))
                ours = [row for row in rows if row.worker == self._worker]
                await self._call(lambda: self._scheduler.requeue(ours))
        finally:
            for task in self._scheduler.tasks():
                task.cancel()
            await self._call(self._scheduler.destroy)
            await self._bodies_end()

    async def _bodies_end(self) -> None:
        """Wait until no body runs, and for the writing of their ends as long as that makes progress.

        Not longer: DBOS waits without end for the outcome of a turn that was given to another worker.
        """
        while tasks := self._scheduler.tasks():
            ended, _ = await asyncio.wait(tasks, timeout=_WRITE_SECONDS)
            if not ended and not self._active:
                return

    async def _call(self, work: Callable[[], T]) -> T:
        # Not asyncio.to_thread: it copies the context, and DBOS would see a step of the turn that calls us.
        with typed_errors(self._url):
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
