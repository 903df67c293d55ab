"""Reading a database beside which SQLite can make no file: on a full disk, or a read-only file system."""

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

# Where a copy may lie for the moment that it is read, beside the usual temporary directory.
_ELSEWHERE = ("/dev/shm", "/run")
_COPIES = "chargehand-snapshot-"
_STALE_SECONDS = 60.0
_UNWRITABLE = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL)
_numbers = count(1)


class Snapshot:
    """What a database held when it was copied to memory; `is_current` says whether that is still all of it.

    Raises `OSError` and `sqlite3.Error` where it cannot be copied.
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
        """Tell whether nobody has written to the database since."""
        return _stamp(self._path) == self._stamp

    def close(self) -> None:
        """Give the memory back."""
        self._whole.close()


def cannot_write(error: sqlite3.Error) -> bool:
    """Tell whether a first read may have failed because SQLite keeps an index of its log in a file beside it."""
    number = getattr(error, "sqlite_errorcode", None)
    return number is not None and number & 0xFF in _UNWRITABLE


def _files(path: Path) -> Iterator[Path]:
    # Without the index of the log: whoever opens the copy makes it anew. Had somebody it open, that index
    # would be there, and nobody would copy: so the two files are of one moment.
    yield from (path, path.with_name(f"{path.name}-wal"))


def _stamp(path: Path) -> list[tuple[int, int]]:
    found = []
    for file in _files(path):
        with suppress(FileNotFoundError):
            status = file.stat()
            found.append((status.st_size, status.st_mtime_ns))
    return found


def _remove_copies_of_dead(place: str) -> None:
    """Remove the copies that processes left which were killed while they read them."""
    for copy in Path(place).glob(f"{_COPIES}*-*"):
        owner = copy.name.removeprefix(_COPIES).partition("-")[0]
        with suppress(OSError):
            # Not a young one: its process may be alive where other process ids count, as in a container.
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
