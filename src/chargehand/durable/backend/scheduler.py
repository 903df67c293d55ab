"""DBOS: its configuration, its rows, its log, and private parts of the pinned version.

DBOS is imported by the functions, not by the module: it costs 0.5 s that a plain command must not pay.
tests/contract/test_dbos_recovery.py covers the names with a leading underscore.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from chargehand.durable.backend.database import SCHEMA, prepare

if TYPE_CHECKING:
    from dbos import DBOS

# The version of all rows, whatever program wrote them: they hold only a mission's id and a turn's number.
VERSION = "chargehand-engine-1"
QUEUE = "missions"
WAITING, RUNNING = "ENQUEUED", "PENDING"
_FINISHED = ["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"]
_WORKFLOW = "turn"
_BATCH = 500
# Our code does not wait for notifications: the listener only delays the end of the process.
_LISTENER_SECONDS = 0.2
# Nor does our code use DBOS's queue, delays, or its time limits: polling for those each second took a quarter of
# an idle worker's time.
_UNUSED_SECONDS = 60.0

Body = Callable[[str, int], Awaitable[None]]


class TurnRow(Struct, frozen=True):
    """One turn of a mission as stored in the database; `worker` is `None` before the first start."""

    id: str
    status: str
    worker: str | None

    @property
    def mission(self) -> str:
        """The mission that the turn belongs to."""
        return self.id.rpartition("/")[0]


class QueueSignal(threading.Event):
    """The event that DBOS awaits between two polls of the queue: its end, or `wake`, which makes it poll now."""

    def __init__(self) -> None:
        super().__init__()
        self._news = threading.Event()

    def set(self) -> None:
        """End the wait, and the thread that waits."""
        super().set()
        self._news.set()

    def wake(self) -> None:
        """End the present wait, or the next one."""
        self._news.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is woken or ended; return whether it is ended."""
        self._news.wait(timeout)
        self._news.clear()
        return self.is_set()


class Scheduler:
    """DBOS in this process; every method blocks, unless documented otherwise."""

    def __init__(self, dbos: DBOS, signal: QueueSignal) -> None:
        self._dbos = dbos
        self._signal = signal

    @classmethod
    def build(cls, url: str, *, worker: str, slots: int, poll_seconds: float, body: Body) -> Scheduler:
        """Configure DBOS for the running event loop; does not touch the network.

        Raises `sqlite3.Error` and `OSError`.
        """
        from dbos import DBOS, DBOSPortableJSONSerializer, _workflow_commands
        from dbos._queue import _INTERNAL_QUEUE_CONSTRUCTION, Queue, queue_worker_thread
        from dbos._utils import INTERNAL_QUEUE_NAME, GlobalParams

        where, arguments = prepare(url)
        # Read from DBOS__CLOUD by the import; it would let more environment variables replace this configuration.
        GlobalParams.dbos_cloud = False
        dbos = DBOS(
            config={
                "name": "chargehand",
                "system_database_url": where,
                "db_engine_kwargs": arguments,
                "dbos_system_schema": SCHEMA,
                "application_version": VERSION,
                "executor_id": worker,
                "serializer": DBOSPortableJSONSerializer(),
                "log_level": "WARNING",
                "enable_otlp": False,
                "use_listen_notify": False,
                "notification_listener_polling_interval_sec": _LISTENER_SECONDS,
            }
        )

        async def turn(mission: str, number: int) -> None:
            await body(mission, number)

        DBOS.workflow(name=_WORKFLOW, max_recovery_attempts=None)(turn)
        # A queue in memory: one of DBOS.register_queue is a row for all workers, so the slots of the last one to
        # start would apply to all. DBOS does not know it, for its own thread cannot be woken between two polls.
        queue = Queue(
            QUEUE,
            token=_INTERNAL_QUEUE_CONSTRUCTION,
            worker_concurrency=slots,
            polling_interval_sec=poll_seconds,
        )
        signal = QueueSignal()
        dbos._registry.register_poller(signal, queue_worker_thread, signal, dbos, queue)
        dbos._registry._register_internal_queue(INTERNAL_QUEUE_NAME, polling_interval_sec=_UNUSED_SECONDS)
        _workflow_commands._BACKGROUND_JOBS_INTERVAL_SEC = _UNUSED_SECONDS
        dbos._background_event_loop.set_main_loop()
        return cls(dbos, signal)

    def launch(self) -> None:
        """Update the tables and start the threads. Raises the errors of SQLAlchemy and DBOS."""
        self._dbos.launch()
        self._query_before_dequeue()
        # Otherwise a thread that cannot be stopped would retry, up to 90 s apart, to write the end of a turn. Now
        # the row stays, and the watchdog finds it.
        self._dbos._sys_db._retry_connection_errors = False

    def _query_before_dequeue(self) -> None:
        """Begin each poll of the queue with one small query: an empty dequeue costs DBOS three times as much."""
        import sqlalchemy

        system = self._dbos._sys_db
        row = system.tables.workflow_status.c
        waiting = sqlalchemy.select(row.workflow_uuid).where(row.status == WAITING).limit(1)

        def find_scopes(queue_name: str) -> list[str | None]:
            with system.engine.connect() as connection:
                return [None] if connection.execute(waiting.where(row.queue_name == queue_name)).first() else []

        system.dequeue_scopes = find_scopes  # type: ignore[method-assign]

    def enqueue(self, mission: str, turn: int, *, priority: int) -> bool:
        """Write the row of a turn; return `False` if it exists."""
        from dbos import EnqueueOptions, error

        options: EnqueueOptions = {
            "workflow_name": _WORKFLOW,
            "queue_name": QUEUE,
            "workflow_id": f"{mission}/{turn}",
            "workflow_id_reuse_policy": "reject",
            "app_version": VERSION,
        }
        if priority:
            options["priority"] = priority
        try:
            self._dbos.enqueue_workflow_with_options(options, mission, turn)
        except error.DBOSWorkflowIDInUseError:
            return False
        self._signal.wake()
        return True

    def poll_now(self) -> None:
        """Have DBOS poll the queue at once, since a slot is free again; does not block."""
        self._signal.wake()

    def rows(self, *statuses: str) -> tuple[TurnRow, ...]:
        """Return the turns in one of the statuses."""
        found = self._dbos.list_workflows(
            status=list(statuses), queue_name=QUEUE, load_input=False, load_output=False
        )
        return tuple(TurnRow(status.workflow_id, status.status, status.executor_id) for status in found)

    def requeue(self, rows: Iterable[TurnRow]) -> tuple[TurnRow, ...]:
        """Requeue turns; return those that were still with the worker with which they were seen.

        DBOS.resume_workflow does not check which worker has the turn: the second of two rescuers would take it
        from the worker that got it by the first one's rescue.
        """
        give = self._dbos._sys_db.reenqueue_for_recovery
        return tuple(row for row in rows if row.worker and give(row.id, [row.worker], QUEUE))

    def delete_finished(self, *, older_than: float) -> int:
        """Delete the turns that ended more than `older_than` seconds ago; return their number."""
        before = (datetime.now(UTC) - timedelta(seconds=older_than)).isoformat()
        deleted = 0
        while True:
            found = self._dbos.list_workflows(
                status=_FINISHED,
                queue_name=QUEUE,
                completed_before=before,
                limit=_BATCH,
                load_input=False,
                load_output=False,
            )
            if not found:
                return deleted
            self._dbos.delete_workflows([status.workflow_id for status in found])
            deleted += len(found)

    def running(self) -> frozenset[str]:
        """Return the ids of the turns that run here or whose end is being written; does not block."""
        return frozenset(self._dbos._active_workflows_set.activeList())

    def stop_dequeuing(self) -> None:
        """Take no further turns; does not block. A turn that is being taken just now still starts."""
        for event in self._dbos.background_thread_stop_events:
            event.set()

    def tasks(self) -> set[asyncio.Task[Any]]:
        """Return the tasks of all bodies, until their ends are written; does not block."""
        return set(self._dbos._workflow_tasks)

    def destroy(self) -> None:
        """End all threads and close all connections; the event loop must run meanwhile."""
        threads = self._dbos._executor_field
        self._dbos.destroy(destroy_registry=True)
        if threads is not None:
            threads.shutdown(wait=True)


LOGGER = "chargehand.durable"
_REPEAT_SECONDS = 30.0
_REMEMBERED = 256


_TRACEBACK = "Traceback (most recent call last)"
# Errors of SQLAlchemy and of the driver, by name: neither is imported before it is needed.
_DATABASE = ("sqlalchemy.exc.", "psycopg.", "OperationalError", "InterfaceError", "DBAPIError")


class _Forward(logging.Handler):
    """Forwards records, the same one once in 30 s: every poll reports a database that is away."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._target = logging.getLogger(LOGGER)
        self._said: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record to our logger."""
        text = without_database_traceback(record)
        now = time.monotonic()
        if text is not None:
            record = logging.makeLogRecord({**record.__dict__, "msg": text, "args": (), "exc_info": None})
        if record.exc_info is None:
            said = record.getMessage()
            if now - self._said.get(said, -_REPEAT_SECONDS) < _REPEAT_SECONDS:
                return
            if len(self._said) >= _REMEMBERED:
                self._said.clear()
            self._said[said] = now
        self._target.handle(record)


def without_database_traceback(record: logging.LogRecord) -> str | None:
    """Return a record's text with the error itself if it has a traceback of the database, else `None`.

    A database that is away is not a fault of the program: its traceback does not help a person. DBOS puts it into
    the text or attaches it.
    """
    text, _, trace = record.getMessage().partition(_TRACEBACK)
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and any(name in f"{type(error).__module__}.{error!r}" for name in _DATABASE):
        return f"{text.strip()} {error}".partition("\n")[0]
    if any(name in trace for name in _DATABASE):
        lines = [line for line in trace.splitlines() if line and not line[0].isspace() and line[0] != "("]
        return f"{text.strip()} {lines[-1] if lines else ''}"
    return None


@contextmanager
def forwarded_log() -> Iterator[None]:
    """Take over the logger of DBOS while the block runs.

    DBOS adds a printing handler only if its logger has no handler yet.
    """
    ours, theirs = logging.getLogger(LOGGER), logging.getLogger("dbos")
    if not ours.handlers:
        ours.addHandler(logging.NullHandler())  # without a handler, logging itself prints warnings on stderr
    before = (theirs.propagate, theirs.level, theirs.handlers[:])
    forward = _Forward()
    theirs.propagate = False
    theirs.handlers[:] = [forward]
    try:
        yield
    finally:
        theirs.propagate, theirs.level, theirs.handlers[:] = before
