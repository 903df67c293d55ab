"""Files that a process holds locked for its lifetime; see flock(2).

The kernel drops a lock with the last descriptor of the process that has it, so a lock never has to time out.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

# Name prefix of a file that is not locked yet.
FRESH = ".new-"
_FRESH_SECONDS = 60.0


def create_locked(path: Path, content: bytes = b"") -> int:
    """Create a file with this content, locked, and return its descriptor. Raises `OSError`."""
    fresh = path.with_name(f"{FRESH}{path.stem}")
    fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(fd, content)
        # It gets its name only after it is locked: an unlocked file would look like that of a dead process.
        fresh.rename(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        os.close(fd)
        raise
    return fd


def remove_abandoned(fresh: Path) -> None:
    """Remove a file whose maker died before renaming it; keep one that is being made just now."""
    with contextlib.suppress(OSError):
        if time.time() - fresh.stat().st_mtime > _FRESH_SECONDS:
            fresh.unlink()


def try_lock(fd: int, how: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file now, or return `False` if another process has it. Raises `OSError`."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(path: Path) -> bool:
    """Return whether a living process has the file locked; false if the file is missing."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # Shared: two that check at the same time must not take each other for the owner.
        return not try_lock(fd, fcntl.LOCK_SH)
    except OSError:
        return True
    finally:
        os.close(fd)
