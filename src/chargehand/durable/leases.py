"""Liveness of workers on several machines: a lease per worker in PostgreSQL, by the database's clock.

Between machines only time distinguishes a dead worker from a slow one. So a lease ends by itself. A worker that
could not renew its lease in time learns that by its own clock, no later than the others may consider it dead.
Calling a worker dead deletes its lease, so it can never be renewed after another process acted on it.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chargehand.configuration.extras import require_extra
from chargehand.core.errors import ConfigError, InfrastructureError, UsageError
from chargehand.durable.backend.database import POSTGRES_ARGUMENTS, check_url, shown, typed_errors
from chargehand.durable.backend.scheduler import LOGGER
from chargehand.durable.directories import make_private
from chargehand.durable.workers import LocalMembership, LocalWorkers, Member, Role

if TYPE_CHECKING:
    import sqlalchemy as sa

_CREATE = (
    # Two processes that create the same schema at once would both find it missing, and one would fail.
    "SELECT pg_advisory_xact_lock(7203319055123)",
    "CREATE SCHEMA IF NOT EXISTS chargehand",
    """CREATE TABLE IF NOT EXISTS chargehand.workers (
        id text PRIMARY KEY, role text NOT NULL, pid integer NOT NULL, version text NOT NULL,
        host text NOT NULL, place text NOT NULL, until timestamptz NOT NULL)""",
)
_JOIN = """INSERT INTO chargehand.workers (id, role, pid, version, host, place, until) VALUES
    (:id, :role, :pid, :version, :host, :place, clock_timestamp() + make_interval(secs => :ttl))"""
# clock_timestamp, not now: the time after a wait for the row, not before it. A lease that has ended is not
# renewed, however recently it ended: another process may have acted on it.
_RENEW = """UPDATE chargehand.workers SET until = clock_timestamp() + make_interval(secs => :ttl)
    WHERE id = :id AND until > clock_timestamp()"""
_LEAVE = "DELETE FROM chargehand.workers WHERE id = :id"
_GIVE_UP = "DELETE FROM chargehand.workers WHERE id = :id AND until <= clock_timestamp()"
_ALL = (
    "SELECT id, role, pid, version, place, until > clock_timestamp() AS valid FROM chargehand.workers ORDER BY id"
)
_ONE = "SELECT place, until > clock_timestamp() AS valid FROM chargehand.workers WHERE id = :id"


def server_answers(url: str) -> bool:
    """Return whether the server of a PostgreSQL URL accepts connections now, from any user; may take seconds.

    False for a server that starts, stops or cannot be reached. Whether it lets us in is another question.
    """
    require_extra("postgres")
    from psycopg.conninfo import make_conninfo
    from psycopg.pq import PGconn, Ping

    found = PGconn.ping(make_conninfo(url, connect_timeout=5).encode())
    return found not in (Ping.REJECT, Ping.NO_RESPONSE)


class LeasedWorkers:
    """The workers of all machines that share a database; those of this directory are also known by their locks."""

    def __init__(self, url: str, local: LocalWorkers, *, ttl: float = 20.0, beat: float = 5.0) -> None:
        """Use a PostgreSQL URL; a lease lasts `ttl` seconds and is renewed every `beat` seconds.

        Raises `ConfigError` for another URL and `UsageError` if a lease could end between two beats.
        """
        check_url(url, sqlite=False)
        if not 0 < beat <= ttl / 2:
            raise UsageError(
                f"a lease of {ttl!r} s cannot be renewed every {beat!r} s", hint="set beat to at most ttl / 2"
            )
        self.ttl = ttl
        self.beat = beat
        self._url = url
        self._local = local

    def join(self, role: Role, *, on_lost: Callable[[], None]) -> LeasedMembership:
        """Lock a new file of ours, write a lease and renew it from a thread.

        `on_lost` is called once, from that thread, if the lease is lost. Raises `InfrastructureError`.
        """
        local = self._local.join(role, on_lost=on_lost)
        try:
            mine = next(member for member in self._local.members() if member.id == local.id)
            started = _boot_seconds()
            member = {"id": mine.id, "role": mine.role, "pid": mine.pid, "version": mine.version}
            self._do(_JOIN, **member, host=socket.gethostname(), place=self._place, ttl=self.ttl)
        except BaseException:
            local.leave()
            raise
        return LeasedMembership(local, self, started=started, on_lost=on_lost)

    def live(self, worker: str) -> bool:
        """Return whether a worker is alive; a dead one never is again. Raises `InfrastructureError`."""
        rows = self._rows(_ONE, id=worker)
        if rows and not rows[0].valid:
            # Deleted before the caller acts on it, so that a merely slow worker cannot renew it afterwards.
            self._do(_GIVE_UP, id=worker)
            # It still exists if it was renewed in between.
            rows = self._rows(_ONE, id=worker)
        return bool(rows) and self._holds(worker, rows[0].place)

    def gone(self, worker: str) -> bool:
        """Return false: a worker whose lease ended may be stopped on another machine, and continue later."""
        return False

    def members(self) -> tuple[Member, ...]:
        """Return the living workers of all machines. Raises `InfrastructureError`."""
        return tuple(
            Member(id=row.id, role=row.role, pid=row.pid, version=row.version)
            for row in self._rows(_ALL)
            if row.valid and self._holds(row.id, row.place)
        )

    def sweep(self) -> tuple[str, ...]:
        """Remove the remains of dead workers, here and in the database. Raises `InfrastructureError`."""
        dead = set(self._local.sweep())
        for row in self._rows(_ALL):
            if not row.valid:
                gone = self._do(_GIVE_UP, id=row.id)
            else:
                gone = 0 if self._holds(row.id, row.place) else self._do(_LEAVE, id=row.id)
            dead |= {row.id} if gone else set()
        return tuple(sorted(dead))

    def renew(self, worker: str) -> bool:
        """Extend a lease by another `ttl`; return `False` if it had ended. Raises `InfrastructureError`."""
        return self._do(_RENEW, id=worker, ttl=self.ttl) > 0

    def end(self, worker: str) -> None:
        """Delete a lease. Raises `InfrastructureError`."""
        self._do(_LEAVE, id=worker)

    def _holds(self, worker: str, place: str) -> bool:
        return place != self._place or self._local.live(worker)

    def _rows(self, statement: str, **values: object) -> list[Any]:
        with self._transaction() as (connection, text):
            return list(connection.execute(text(statement), values))

    def _do(self, statement: str, **values: object) -> int:
        with self._transaction() as (connection, text):
            return connection.execute(text(statement), values).rowcount

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[tuple[sa.Connection, Callable[[str], sa.TextClause]]]:
        import sqlalchemy as sa

        with typed_errors(self._url), self._engine.begin() as connection:
            yield connection, sa.text

    @cached_property
    def _engine(self) -> sa.Engine:
        import sqlalchemy as sa

        # No pool: one short statement in some seconds, and a kept connection would be the one that hangs.
        url = sa.make_url(self._url).set(drivername="postgresql+psycopg")
        limit = f"-c statement_timeout={int(self.beat * 1000)}"
        engine = sa.create_engine(
            url, poolclass=sa.NullPool, connect_args={**POSTGRES_ARGUMENTS, "options": limit}
        )
        with typed_errors(self._url), engine.begin() as connection:
            encoding = connection.execute(sa.text("SELECT current_setting('server_encoding')")).scalar()
            if encoding == "SQL_ASCII":  # it checks no text, and drivers get it back as bytes
                raise ConfigError(
                    f"the engine's database {shown(self._url)!r} has the encoding SQL_ASCII",
                    code="engine_url",
                    hint="createdb --encoding UTF8 --template template0 NAME, and name that one in engine.url",
                )
            for statement in _CREATE:
                connection.execute(sa.text(statement))
        return engine

    @cached_property
    def _place(self) -> str:
        # The running kernel and the directory's inode in it: only there a lock shows which workers live. The boot
        # id alone is not enough: two containers share it, but neither sees the other's files.
        make_private(self._local.directory)
        info = self._local.directory.stat()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{info.st_dev}:{info.st_ino}"


class LeasedMembership:
    """A locked file and a lease that two threads maintain: one renews it, one detects its end."""

    def __init__(
        self, local: LocalMembership, workers: LeasedWorkers, *, started: float, on_lost: Callable[[], None]
    ) -> None:
        self.id = local.id
        self._local = local
        self._workers = workers
        self._on_lost = on_lost
        self._until = started + workers.ttl
        self._over = threading.Event()
        self._left = False
        self._given_up = False
        self._once = threading.Lock()
        names = {"beat": self._beat, "guard": self._guard}
        self._threads = [threading.Thread(target=names[name], name=f"lease-{name}", daemon=True) for name in names]
        for thread in self._threads:
            thread.start()

    @property
    def lost(self) -> bool:
        """Whether the lease ended before its worker did."""
        return self._given_up

    def fileno(self) -> int:
        """Return the descriptor of the locked file; raises `ValueError` after `leave`."""
        return self._local.fileno()

    def leave(self) -> None:
        """Delete the lease, or let it end if the database is away, and unlock the file; idempotent."""
        self._over.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        if not self._left:
            self._left = True
            with contextlib.suppress(InfrastructureError):
                self._workers.end(self.id)
            self._local.leave()

    def _beat(self) -> None:
        while not self._over.wait(self._workers.beat):
            sent = _boot_seconds()
            try:
                renewed = self._workers.renew(self.id)
            except InfrastructureError as error:
                logging.getLogger(LOGGER).warning("the lease of %r could not be renewed: %s", self.id, error)
                continue
            if not renewed:
                self._lost()
                return
            # Counted from before the request: the answer may have been delayed.
            self._until = sent + self._workers.ttl

    def _guard(self) -> None:
        while (left := self._until - _boot_seconds()) > 0:
            if self._over.wait(min(left, self._workers.beat)):
                return
        self._lost()

    def _lost(self) -> None:
        with self._once:
            if self._over.is_set():
                return
            self._given_up = True
            self._over.set()
        logging.getLogger(LOGGER).error("the lease of %r was lost", self.id)
        self._on_lost()


def _boot_seconds() -> float:
    # Not time.monotonic, which stops while the machine sleeps; the lease does not.
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
