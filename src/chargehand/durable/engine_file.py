"""The engine's SQLite file: checks it, and moves a damaged one aside."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

_BUSY_SECONDS = 30.0


def connect(path: Path) -> sqlite3.Connection:
    """Open the file as the engine does. Raises `sqlite3.Error`."""
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, check_same_thread=False)
    # Rows are triggers and the event log is the truth: a row lost in a power failure is triggered again.
    connection.execute("PRAGMA synchronous=NORMAL")
    return connection


def find_damage(path: Path) -> str | None:
    """Return the file's damage in words; `None` if it is intact or missing."""
    if not path.exists():
        return None
    try:
        with closing(connect(path)) as connection:
            found = [str(row[0]) for row in connection.execute("PRAGMA quick_check(1)")]
    except sqlite3.OperationalError:  # busy, no permission, disk full: not damage
        return None
    except sqlite3.DatabaseError as error:
        return str(error)
    return None if found == ["ok"] else found[0]


def make_ready(path: Path) -> None:
    """Create the file if missing, with a write-ahead log; rename and replace a damaged one.

    Its rows only trigger what the event log records: a new file is as good, and the old one is kept for
    inspection. Raises `sqlite3.Error` and `OSError`.
    """
    # If workers start at once, the second must not rename the file that the first has just made. SQLite changes to
    # a write-ahead log only if no other process uses the file; it does not wait for that.
    lock = os.open(path.with_name("engine.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if find_damage(path) is not None:
            for suffix in ("", "-wal", "-shm"):
                with suppress(FileNotFoundError):
                    os.replace(f"{path}{suffix}", f"{path}.damaged{suffix}")
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        with closing(connect(path)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
    finally:
        os.close(lock)
