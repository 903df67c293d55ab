"""Reads a database next to which SQLite cannot create files: on a full disk, or a read-only file system."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import count
from pathlib import Path

# Places for a temporary copy during a read, in addition to the usual temporary directory.
_ELSEWHERE = ("/dev/shm", "/run")
_COPIES = "chargehand-snapshot-"
_STALE_SECONDS = 60.0
_UNWRITABLE = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL)
_numbers = count(1)


class Snapshot:
    """A database copied to memory; `is_current` says whether the copy is still complete.

    Raises `OSError` and `sqlite3.Error` if it cannot be copied.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = _stamp(path)
        self._uri = f"file:chargehand-snapshot-{next(_numbers)}?mode=memory&cache=shared"
        self._whole = self.connect()
        place = _copy(path)
        try:
            with closing(sqlite3.connect(place / "store.db")) as source:
                source.backup(self._whole)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def connect(self) -> sqlite3.Connection:
        """Open a connection to the copy."""
        return sqlite3.connect(self._uri, uri=True, isolation_level=None, check_same_thread=False)

    def is_current(self) -> bool:
        """Return whether the database is unchanged since."""
        return _stamp(self._path) == self._stamp

    def close(self) -> None:
        """Release the memory."""
        self._whole.close()


def cannot_write(error: sqlite3.Error) -> bool:
    """Return whether a first read may have failed because SQLite keeps an index of its log in a file."""
    number = getattr(error, "sqlite_errorcode", None)
    return number is not None and number & 0xFF in _UNWRITABLE


def _files(path: Path) -> Iterator[Path]:
    # Without the index of the log, which is rebuilt when the copy is opened. If any process had the database open,
    # that index would exist, and no copy would be made: so the two files are of one moment.
    yield from (path, path.with_name(f"{path.name}-wal"))


def _stamp(path: Path) -> list[tuple[int, int]]:
    found = []
    for file in _files(path):
        with suppress(FileNotFoundError):
            status = file.stat()
            found.append((status.st_size, status.st_mtime_ns))
    return found


def _remove_copies_of_dead(place: str) -> None:
    """Remove copies left by processes that were killed while they read them."""
    for copy in Path(place).glob(f"{_COPIES}*-*"):
        owner = copy.name.removeprefix(_COPIES).partition("-")[0]
        with suppress(OSError):
            # Not a young one: its process may be alive in another process namespace, as in a container.
            if not Path("/proc", owner).exists() and time.time() - copy.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(copy, ignore_errors=True)


def _copy(path: Path) -> Path:
    """Copy the database to a new directory on the first file system that has room for it."""
    problem: OSError | None = None
    for place in (None, *filter(os.path.isdir, _ELSEWHERE)):
        made = None
        try:
            _remove_copies_of_dead(place or tempfile.gettempdir())
            made = Path(tempfile.mkdtemp(prefix=f"{_COPIES}{os.getpid()}-", dir=place))
            for file in _files(path):
                with suppress(FileNotFoundError):
                    shutil.copyfile(file, made / file.name)
            return made
        except OSError as error:
            problem = problem or error
            if made is not None:
                shutil.rmtree(made, ignore_errors=True)
    assert problem is not None
    raise problem
