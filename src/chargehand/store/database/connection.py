"""Connections to `store.db`: transactions in, typed errors out."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import sqlite
from sqlalchemy.pool import QueuePool

from chargehand.core.errors import StoreError

DriverError = sqlite3.Error
"""What the driver raises where it is used without SQLAlchemy."""
Synchronous = Literal["NORMAL", "FULL"]
BUSY_SECONDS = 30
_BEGIN = "chargehand_begin"

_NAMED = sqlite.dialect(paramstyle="named")

# SQLite's primary result codes (https://sqlite.org/rescode.html) and the stable code of the error a person sees.
_CODES = {
    sqlite3.SQLITE_PERM: "store_not_writable",
    sqlite3.SQLITE_BUSY: "store_busy",
    sqlite3.SQLITE_LOCKED: "store_busy",
    sqlite3.SQLITE_READONLY: "store_not_writable",
    sqlite3.SQLITE_IOERR: "store_io",
    sqlite3.SQLITE_CORRUPT: "store_corrupt",
    sqlite3.SQLITE_FULL: "store_full",
    sqlite3.SQLITE_CANTOPEN: "store_not_writable",
    sqlite3.SQLITE_NOTADB: "store_corrupt",
}


class Prepared:
    """A statement that the driver carries out by itself: SQLAlchemy takes ten times as long for it.

    Values go in and come out as the driver has them: whole numbers, text, bytes and `None`.
    """

    def __init__(self, statement: sa.ClauseElement) -> None:
        self._statement = statement

    @cached_property
    def _sql(self) -> str:
        return str(self._statement.compile(dialect=_NAMED))

    def run(self, transaction: Transaction, values: Mapping[str, Any]) -> sqlite3.Cursor:
        """Carry it out once."""
        return transaction.execute(self._sql, values)


Transaction = sqlite3.Connection
"""The driver's own connection while it holds the write lock."""


class Writer:
    """One connection of the driver for transactions of `Prepared` alone; one thread uses it at a time."""

    def __init__(self, path: Path, *, synchronous: Synchronous, read_only: bool) -> None:
        self._connect = partial(_connect, path, synchronous=synchronous, read_only=read_only)
        self._connection: sqlite3.Connection | None = None

    @contextmanager
    def begin(self) -> Iterator[Transaction]:
        """Hold the write lock; what is raised inside takes everything back. Raises the driver's errors."""
        if self._connection is None:
            self._connection = self._connect()
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # SQLite itself takes back what finds no room on the disk
                connection.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Close the connection. Idempotent; the next transaction opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def open_engine(path: Path, *, synchronous: Synchronous, read_only: bool) -> sa.Engine:
    """Return an engine on an existing file; its transactions take the write lock at once."""
    engine = sa.create_engine(
        "sqlite+pysqlite://",
        creator=partial(_connect, path, synchronous=synchronous, read_only=read_only),
        poolclass=QueuePool,
    )
    event.listen(engine, "begin", _begin)
    return engine


def reading(engine: sa.Engine) -> sa.Engine:
    """Return a view of the engine whose transactions are snapshots that never wait for a writer."""
    return engine.execution_options(**{_BEGIN: "BEGIN"})


def error_code(error: BaseException | None) -> str:
    """Return the stable code for an error of the driver."""
    number = getattr(error, "sqlite_errorcode", None)
    return "store" if number is None else _CODES.get(number & 0xFF, "store")


def use_wal(connection: sa.Connection) -> None:
    """Let readers and a writer work side by side; kept in the file, so done once."""
    driver(connection).execute("PRAGMA journal_mode=WAL")


def sync_log(path: Path) -> None:
    """Wait until the disk has the write-ahead log of a database that this process holds open.

    SQLite locks nothing on that file, so it may be opened and closed beside it. Where it is gone or begins anew,
    its content is in the database, and was on the disk before. Raises `OSError`.
    """
    with suppress(FileNotFoundError):
        descriptor = os.open(f"{path}-wal", os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)


def forget_old_pages(connection: sa.Connection) -> None:
    """Empty the write-ahead log, which may still hold what was erased."""
    driver(connection).execute("PRAGMA wal_checkpoint(TRUNCATE)")


def damage(connection: sa.Connection) -> list[str]:
    """Return what SQLite itself finds wrong with the file."""
    found = [str(row[0]) for row in connection.exec_driver_sql("PRAGMA integrity_check(20)")]
    return [] if found == ["ok"] else found


def raw(column: sa.Column[Any]) -> sa.ColumnElement[bytes | None]:
    """Return a column as the bytes that are kept; a lone 0xff, never valid text, for a value of another type."""
    own = sa.func.typeof(column).in_((_type_name(column), "null"))
    kept = sa.case((own, sa.cast(column, sa.LargeBinary)), else_=sa.literal(b"\xff", sa.LargeBinary))
    return kept.label(column.name)


def copy(connection: sa.Connection, target: Path) -> None:
    """Write a consistent copy of the whole file while others go on writing."""
    copied = sqlite3.connect(target)
    try:
        driver(connection).backup(copied)
    finally:
        copied.close()


def _connect(path: Path, *, synchronous: Synchronous, read_only: bool) -> sqlite3.Connection:
    uri = f"file:{quote(str(path))}?mode={'ro' if read_only else 'rw'}"
    # isolation_level=None: the driver itself would begin with a read lock and could then fail to upgrade it.
    connection = sqlite3.connect(
        uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=64
    )
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute("PRAGMA secure_delete=ON")
    return connection


def _begin(connection: sa.Connection) -> None:
    # By the driver itself: every transaction begins here, and SQLAlchemy's own way takes ten times as long.
    driver(connection).execute(connection.get_execution_options().get(_BEGIN, "BEGIN IMMEDIATE"))


def driver(connection: sa.Connection) -> sqlite3.Connection:
    """Return the driver's own connection below one of SQLAlchemy's."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def _type_name(column: sa.Column[Any]) -> str:
    if isinstance(column.type, sa.Integer):
        return "integer"
    return "blob" if isinstance(column.type, sa.LargeBinary) else "text"


class Together:
    """Does `work` for each who waits, once for all who came before it began; safe between threads."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._turn = threading.Lock()
        self._count = threading.Lock()
        self._asked = self._done = 0

    def wait(self) -> None:
        """Return after a run of the work that began after this was called; raises what that run raised.

        Where a run fails, each of those who waited for it tries again for itself and the others.
        """
        with self._count:
            self._asked += 1
            mine = self._asked
        with self._turn:
            if self._done >= mine:
                return
            with self._count:
                served = self._asked
            self._work()
            self._done = served


_HINTS = {
    "store_corrupt": "run `chargehand audit verify`; `chargehand store restore` brings a backup back",
    "store_full": "free some space there, or set CHARGEHAND_HOME to a directory on another disk",
    "store_not_writable": "make the directory writable for you, or set CHARGEHAND_HOME to another one",
    "store_busy": "another process holds the store; try again when it is done",
    "store_io": "check the disk; `chargehand audit verify` tells whether the log is whole",
    "store": "run `chargehand audit verify`",
}
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


class Database:
    """Connections to `<home>/store.db`; safe to share between threads, not to carry over a fork."""

    def __init__(self, home: Path, *, read_only: bool) -> None:
        self.home = home
        self.path = home / "store.db"
        self._engine = open_engine(self.path, synchronous="NORMAL", read_only=read_only)
        self._durable = open_engine(self.path, synchronous="FULL", read_only=read_only)
        self._reader = reading(self._engine)
        self._quick = Writer(self.path, synchronous="NORMAL", read_only=read_only)
        self._quick_durable = Writer(self.path, synchronous="FULL", read_only=read_only)
        self._line = threading.Lock()
        self._log_on_disk = Together(partial(sync_log, self.path))

    @contextmanager
    def write(self, *, durable: bool = False) -> Iterator[sa.Connection]:
        """Hold the one writer's transaction; `durable` waits for the disk at its end.

        Raises `StoreError`.
        """
        engine = self._durable if durable else self._engine
        with typed_errors(self.home), self._in_line(), engine.begin() as connection:
            yield connection

    @contextmanager
    def quick(self, *, durable: bool = False) -> Iterator[Transaction]:
        """Hold the one writer's transaction for `Prepared` statements: half of a small one's time is SQLAlchemy's.

        Raises `StoreError`.
        """
        writer = self._quick_durable if durable else self._quick
        with typed_errors(self.home), self._in_line() as first:
            if not first:
                raise _failed(self.home, "store_busy", "another thread of this process holds it")
            with writer.begin() as transaction:
                yield transaction

    def sync(self) -> None:
        """Wait until the disk has all that was committed before; who waits at the same time waits together.

        Raises `StoreError`.
        """
        with typed_errors(self.home):
            self._log_on_disk.wait()

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Hold one snapshot; never waits for writers. Raises `StoreError`."""
        with typed_errors(self.home), self._reader.begin() as connection:
            yield connection

    @contextmanager
    def plain(self) -> Iterator[sa.Connection]:
        """Hold a connection outside of any transaction, for what cannot run in one. Raises `StoreError`."""
        with typed_errors(self.home), self._durable.connect() as connection:
            yield connection

    @contextmanager
    def _in_line(self) -> Iterator[bool]:
        """Let the writers of this process go one after the other: SQLite's own line is looked at by polling."""
        first = self._line.acquire(timeout=BUSY_SECONDS)
        try:
            yield first
        finally:
            if first:
                self._line.release()

    def close(self) -> None:
        """Close all idle connections."""
        with self._in_line():
            self._quick.close()
            self._quick_durable.close()
        self._engine.dispose()
        self._durable.dispose()


@contextmanager
def typed_errors(home: Path) -> Iterator[None]:
    """Turn errors of the driver and of the file system into `StoreError` with a stable code."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise _driver_failed(home, error.orig) from error
    except DriverError as error:
        raise _driver_failed(home, error) from error
    except (
        UnicodeDecodeError
    ) as error:  # a damaged name in the schema, which the driver wants to put in its message
        raise corrupt(home, str(error)) from error
    except OSError as error:
        raise _failed(home, _os_code(error), os.strerror(error.errno or 0)) from error


def corrupt(home: Path, detail: str) -> StoreError:
    """Return the error for content that is not what this program writes."""
    return _failed(home, "store_corrupt", detail)


def _driver_failed(home: Path, error: BaseException | None) -> StoreError:
    code = error_code(error)
    # A file beside the database that finds no room is an input/output error to SQLite, or one it cannot open.
    full = code in ("store_io", "store_not_writable") and _is_full(home)
    return _failed(home, "store_full" if full else code, str(error))


def _is_full(home: Path) -> bool:
    try:
        left = os.statvfs(home)
    except OSError:
        return False
    return left.f_bavail == 0 or (left.f_files > 0 and left.f_favail == 0)


def _failed(home: Path, code: str, detail: str) -> StoreError:
    return StoreError(f"the state directory {str(home)!r} failed: {detail}", code=code, hint=_HINTS[code])


def _os_code(error: OSError) -> str:
    if error.errno in _NO_SPACE:
        return "store_full"
    return "store_io" if error.errno == errno.EIO else "store_not_writable"
