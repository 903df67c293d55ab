"""All that is particular to SQLite: connections, pragmas, error codes, raw reads and backup."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import sqlite
from sqlalchemy.pool import QueuePool

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
