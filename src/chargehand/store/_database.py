"""The state directory's database: transactions in, typed errors out."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import sqlalchemy as sa

from chargehand.core.errors import StoreError
from chargehand.store import _sqlite
from chargehand.store._together import Together

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
        self._engine = _sqlite.open_engine(self.path, synchronous="NORMAL", read_only=read_only)
        self._durable = _sqlite.open_engine(self.path, synchronous="FULL", read_only=read_only)
        self._reader = _sqlite.reading(self._engine)
        self._quick = _sqlite.Writer(self.path, synchronous="NORMAL", read_only=read_only)
        self._quick_durable = _sqlite.Writer(self.path, synchronous="FULL", read_only=read_only)
        self._line = threading.Lock()
        self._log_on_disk = Together(partial(_sqlite.sync_log, self.path))

    @contextmanager
    def write(self, *, durable: bool = False) -> Iterator[sa.Connection]:
        """Hold the one writer's transaction; `durable` waits for the disk at its end.

        Raises `StoreError`.
        """
        engine = self._durable if durable else self._engine
        with typed_errors(self.home), self._in_line(), engine.begin() as connection:
            yield connection

    @contextmanager
    def quick(self, *, durable: bool = False) -> Iterator[_sqlite.Transaction]:
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
        first = self._line.acquire(timeout=_sqlite.BUSY_SECONDS)
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
    except _sqlite.DriverError as error:
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
    code = _sqlite.error_code(error)
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
