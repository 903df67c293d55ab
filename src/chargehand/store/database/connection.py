"""Connections to `store.db`: transactions in, typed errors out.

SQL is written out and passed to the driver unchanged; docs/decisions/0036 explains why there is no library in
between.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from chargehand.core.errors import StoreError
from chargehand.store.database.snapshot import Snapshot, cannot_write

# A connection of the driver inside a transaction; values are passed in the driver's own types.
Transaction = sqlite3.Connection
_Synchronous = Literal["NORMAL", "FULL"]
# A file, whatever its name: device and inode number.
_File = tuple[int, int]
# The state of a database at a moment, for comparison.
Version = tuple[int, int]
# A process that is stopped (not killed) during a write holds SQLite's write lock: the others wait this long.
_BUSY_SECONDS = 30.0
_PAUSE_SECONDS = 0.05
_HINTS = {
    "store_corrupt": "`chargehand store restore DIRECTORY` restores a backup and keeps the present content; "
    "without one, stop all workers and save the readable part with `sqlite3 store.db .recover`",
    "store_full": "free some space there (`chargehand gc` does), or set CHARGEHAND_HOME to one on another disk",
    "store_not_writable": "make the directory writable for you, or set CHARGEHAND_HOME to another one",
    "store_busy": "another process holds the store; try again when it is done",
    "store_io": "check the disk; `chargehand store check` shows whether everything is intact",
    "store": "`chargehand store check` shows whether everything is intact",
}
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


class Database:
    """Connections to `<home>/store.db`; safe to share between threads, not across a fork.

    Each connection belongs to one file: once a restored copy has its name, reads and writes use the copy. Others
    are waited for `busy_seconds`.
    """

    def __init__(self, home: Path, *, read_only: bool, busy_seconds: float = _BUSY_SECONDS) -> None:
        self.home = home
        self._busy_seconds = busy_seconds
        self.path = home / "store.db"
        self._read_only = read_only
        self._snapshot: Snapshot | None = None
        self._readers: dict[_File, list[sqlite3.Connection]] = {}
        self._writers: dict[tuple[_File, _Synchronous], sqlite3.Connection] = {}
        # The driver's data version belongs to one connection, and covers commits of others: so always use this
        # one.
        self._watcher: tuple[_File, sqlite3.Connection] | None = None
        self._watchers = 0
        self._watch = threading.Lock()
        self._turn = threading.Lock()
        self._log_on_disk = SingleFlight(self._sync_log)

    @property
    def read_only(self) -> bool:
        """Whether nothing is written: by request, or because of a full disk or a read-only file system."""
        return self._read_only or self._snapshot is not None

    def connect(self, synchronous: _Synchronous = "NORMAL") -> sqlite3.Connection:
        """Open a connection; the caller closes it. Raises the driver's errors."""
        uri = f"file:{quote(str(self.path))}?mode={'ro' if self._read_only else 'rw'}"
        # isolation_level=None: the driver itself would begin with a read lock and could then fail to upgrade it.
        connection = sqlite3.connect(
            uri,
            uri=True,
            timeout=self._busy_seconds,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=64,
        )
        connection.text_factory = _text
        connection.create_function("casefold", 1, _casefold, deterministic=True)
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute(f"PRAGMA synchronous={synchronous}")
        # Erased content must not stay readable in free pages of the file.
        connection.execute("PRAGMA secure_delete=ON")
        return connection

    @contextmanager
    def write(self, *, durable: bool = False) -> Iterator[Transaction]:
        """Hold the one writer's transaction; `durable` waits for the disk at its end.

        An exception inside rolls everything back. Raises `StoreError`.
        """
        # With either, a commit survives the process; a power cut leaves only commits that FULL waited for.
        synchronous: _Synchronous = "FULL" if durable else "NORMAL"
        # The writers of this process take turns: SQLite's own queue polls and sleeps.
        if not self._turn.acquire(timeout=self._busy_seconds):
            raise _failure(self.home, "store_busy", "another thread of this process holds it")
        try:
            with typed_errors(self.home):
                key = (self._file(), synchronous)
                if key not in self._writers:
                    self._writers[key] = self.connect(synchronous)
                with _transaction(self._writers[key], "BEGIN IMMEDIATE") as connection:
                    yield connection
        finally:
            self._turn.release()

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        """Hold one snapshot; never waits for writers. Raises `StoreError`."""
        with typed_errors(self.home):
            idle = self._readers.setdefault(self._file(), [])
            try:
                connection = idle.pop()
            except IndexError:
                connection = self._open_reader()
            try:
                with _transaction(connection, "BEGIN"):
                    yield connection
            except BaseException:
                connection.close()  # it may be in any state, so it is not reused
                raise
            if self._snapshot is None:
                idle.append(connection)
            else:  # the next reader checks again whether the database itself can be read
                connection.close()

    def version(self) -> Version | None:
        """Return a value that changes with every commit of any process, or `None` if it cannot be read."""
        with self._watch:
            try:
                file = self._file()
                if self._watcher is not None and self._watcher[0] != file:
                    self._watcher[1].close()
                    self._watcher = None
                if self._watcher is None:
                    self._watcher = (file, self.connect())
                    self._watchers += 1  # each watcher's numbers start again
                number = self._watcher[1].execute("PRAGMA data_version").fetchone()[0]
                return self._watchers, int(number)
            except (sqlite3.Error, OSError):  # a reader will report the reason if it matters
                return None

    @contextmanager
    def plain(self) -> Iterator[Transaction]:
        """Hold a connection outside any transaction, for statements that need that. Raises `StoreError`."""
        with typed_errors(self.home):
            connection = self.connect("FULL")
            try:
                yield connection
            finally:
                connection.close()

    def truncate_log(self) -> bool:
        """Empty the write-ahead log, which may hold erased content; return `False` if a process keeps using it.

        Raises `StoreError`.
        """
        deadline = time.monotonic() + self._busy_seconds
        with self.plain() as connection:
            # SQLite itself waits for readers and writers, but not for another process that empties the log.
            while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(_PAUSE_SECONDS)
        return True

    def sync(self) -> None:
        """Wait until all earlier commits are on disk; concurrent callers share one wait.

        Raises `StoreError`.
        """
        with typed_errors(self.home):
            self._log_on_disk.wait()

    def close(self) -> None:
        """Close all idle connections."""
        with self._turn, self._watch:
            idle = (connection for readers in self._readers.values() for connection in readers)
            watching = () if self._watcher is None else (self._watcher[1],)
            for connection in (*idle, *self._writers.values(), *watching):
                connection.close()
            self._watcher = None
            self._readers.clear()
            self._writers.clear()
            if self._snapshot is not None:
                self._snapshot.close()

    def _file(self) -> _File:
        """Return which file has the database's name now. Raises `OSError`."""
        status = os.stat(self.path)
        return status.st_dev, status.st_ino

    def _open_reader(self) -> sqlite3.Connection:
        """Open the database, or a copy in memory if SQLite has no room for the files it needs to read."""
        try:
            connection = self.connect()
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
        except sqlite3.Error as error:
            if not cannot_write(error):
                raise
            if self._snapshot is None or not self._snapshot.is_current():
                try:
                    self._snapshot = Snapshot(self.path)
                except (OSError, sqlite3.Error):
                    raise error from None
            connection = self._snapshot.connect()
            connection.text_factory = _text
            connection.create_function("casefold", 1, _casefold, deterministic=True)
        else:
            self._snapshot = None
        return connection

    def _sync_log(self) -> None:
        # SQLite takes no locks on the write-ahead log, so it may be opened and closed here. If it is gone or
        # starts again, its content is in the database, and was on disk before.
        with suppress(FileNotFoundError):
            descriptor = os.open(f"{self.path}-wal", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)


class SingleFlight:
    """Runs `work` for its callers, once for all who called before it began; thread-safe."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._turn = threading.Lock()
        self._count = threading.Lock()
        self._asked = self._done = 0

    def wait(self) -> None:
        """Return after a run of the work that began after this call; raises the error of that run.

        If a run fails, each of its callers retries, for itself and the others.
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
            # Set only after the work: if it raises, each of the waiting callers runs it again.
            self._done = served


@contextmanager
def typed_errors(home: Path) -> Iterator[None]:
    """Turn errors of the driver and of the file system into `StoreError` with a stable code."""
    try:
        yield
    except sqlite3.Error as error:
        number = getattr(error, "sqlite_errorcode", None)
        code = "store" if number is None else _CODES.get(number & 0xFF, "store")
        # To SQLite, no room for a file next to the database is an input/output error, or a file it cannot open.
        full = code in ("store_io", "store_not_writable") and _is_full(home)
        raise _failure(home, "store_full" if full else code, str(error)) from error
    except UnicodeDecodeError as error:  # a damaged name in the schema, which the driver puts in its message
        raise corrupt(home, str(error)) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            code = "store_full"
        else:
            code = "store_io" if error.errno == errno.EIO else "store_not_writable"
        raise _failure(home, code, os.strerror(error.errno or 0)) from error


@contextmanager
def hold_lock(home: Path, name: str) -> Iterator[None]:
    """Hold the lock file of this name for the block, after its current holders. Raises `StoreError`."""
    with typed_errors(home):
        descriptor = os.open(home / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # The file is never removed: otherwise two processes could hold locks on two files of one name.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def corrupt(home: Path, detail: str) -> StoreError:
    """Return the error for content that this program does not write."""
    return _failure(home, "store_corrupt", detail)


def damage(connection: Transaction) -> list[str]:
    """Return the damage that SQLite itself finds in the file."""
    # Twenty faults are enough: a file that is damaged throughout has millions.
    found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(20)")]
    return [] if found == ["ok"] else found


def raw_columns(types: dict[str, str]) -> str:
    """Return SQL for columns (name to type) as the stored bytes, whatever their declared type.

    A value of another type becomes a lone 0xff, which is never valid text, so that it can only fail to match.
    """
    return ", ".join(
        f"CASE WHEN typeof({name}) IN ('{kind}', 'null') THEN CAST({name} AS BLOB) ELSE x'ff' END"
        for name, kind in types.items()
    )


@contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[sqlite3.Connection]:
    connection.execute(begin)
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite itself rolls back a transaction that finds no room on the disk
            connection.execute("ROLLBACK")
        raise


# One byte that is not text must not keep its neighbours from being read: it can only fail to match. This is not a
# Python function, since it is called for every text of every row.
_text = functools.partial(str, encoding="utf-8", errors="replace")


def _casefold(kept: bytes | None) -> str:
    return (kept or b"").decode(errors="replace").casefold()


def _is_full(home: Path) -> bool:
    try:
        left = os.statvfs(home)
    except OSError:
        return False
    return left.f_bavail == 0 or (left.f_files > 0 and left.f_favail == 0)


def _failure(home: Path, code: str, detail: str) -> StoreError:
    return StoreError(f"the state directory {str(home)!r} failed: {detail}", code=code, hint=_HINTS[code])
