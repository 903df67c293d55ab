"""Protection of the values in this process: no core dump of them, and a list for redaction."""

from __future__ import annotations

import ctypes
import functools
import os
import resource
import sys
import threading
from contextlib import suppress
from pathlib import Path

_PR_SET_DUMPABLE = 4


class ReadValues:
    """The values that this process read from stores for one user; logs leave out all of them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, dict[str, None]] = {}

    def add(self, name: str, value: str) -> None:
        """Let every redaction of this process leave out a value."""
        with self._lock:
            self._values.setdefault(name, {})[value] = None

    def of(self, name: str) -> tuple[str, ...]:
        """Return the values of a secret in order of reading, earlier ones included."""
        with self._lock:
            return tuple(self._values.get(name, ()))

    def names(self) -> tuple[str, ...]:
        """Return the names of the secrets."""
        with self._lock:
            return tuple(self._values)

    def count(self) -> int:
        """Return the number of values."""
        with self._lock:
            return sum(map(len, self._values.values()))


@functools.cache
def read_values(directory: Path) -> ReadValues:
    """Return the values of the user with that directory of configuration.

    They belong to the process, as its memory does: its log has other credentials than its missions.
    """
    return ReadValues()


@functools.cache
def protect_process() -> None:
    """Forbid core dumps of this process and, as root, other processes to read its memory and environment.

    Programs that it starts are not affected.
    """
    with suppress(OSError, ValueError):
        # The soft limit only: programs that it starts may raise it again.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    # Only as root: an ordinary user's process could not open its own /proc/PID/fd any more, which workspaces need.
    if sys.platform == "linux" and os.geteuid() == 0:
        with suppress(OSError, AttributeError):
            # Also stops a handler of `core_pattern`, for which the limit does not count.
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
