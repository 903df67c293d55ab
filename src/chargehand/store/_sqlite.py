"""All that is particular to SQLite: connections, pragmas, error codes, raw reads and backup."""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.pool import QueuePool

DriverError = sqlite3.Error
"""What the driver raises where it is used without SQLAlchemy."""
Synchronous = Literal["NORMAL", "FULL"]
_BUSY_SECONDS = 30
_BEGIN = "chargehand_begin"

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
    _driver(connection).execute("PRAGMA journal_mode=WAL")


def forget_old_pages(connection: sa.Connection) -> None:
    """Empty the write-ahead log, which may still hold what was erased."""
    _driver(connection).execute("PRAGMA wal_checkpoint(TRUNCATE)")


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
        _driver(connection).backup(copied)
    finally:
        copied.close()


def _connect(path: Path, *, synchronous: Synchronous, read_only: bool) -> sqlite3.Connection:
    uri = f"file:{quote(str(path))}?mode={'ro' if read_only else 'rw'}"
    # isolation_level=None: the driver itself would begin with a read lock and could then fail to upgrade it.
    connection = sqlite3.connect(
        uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=64
    )
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute("PRAGMA secure_delete=ON")
    return connection


def _begin(connection: sa.Connection) -> None:
    # By the driver itself: every transaction begins here, and SQLAlchemy's own way takes ten times as long.
    _driver(connection).execute(connection.get_execution_options().get(_BEGIN, "BEGIN IMMEDIATE"))


def _driver(connection: sa.Connection) -> sqlite3.Connection:
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def _type_name(column: sa.Column[Any]) -> str:
    if isinstance(column.type, sa.Integer):
        return "integer"
    return "blob" if isinstance(column.type, sa.LargeBinary) else "text"
