"""Protection of the values in this process: no core dump of them, and a list for redaction."""

from __future__ import annotations

import ctypes
import functools
import resource
import sys
import threading
from contextlib import suppress

_PR_SET_DUMPABLE = 4
_lock = threading.Lock()
# Of the process, as its memory is: logs must leave out whatever any part of it read. By name, in order of reading.
_read: dict[str, dict[str, None]] = {}


def remember_value(name: str, value: str) -> None:
    """Let every redaction of this process leave out a value."""
    with _lock:
        _read.setdefault(name, {})[value] = None


def read_values(name: str) -> tuple[str, ...]:
    """Return the values of a secret that this process read from stores, earlier ones included."""
    with _lock:
        return tuple(_read.get(name, ()))


def read_names() -> tuple[str, ...]:
    """Return the names of the secrets that this process read from stores."""
    with _lock:
        return tuple(_read)


def count_values() -> int:
    """Return how many values this process read from stores."""
    with _lock:
        return sum(map(len, _read.values()))


@functools.cache
def protect_process() -> None:
    """Forbid core dumps of this process, and other processes of its user to read its memory and environment.

    Programs that it starts are not affected.
    """
    with suppress(OSError, ValueError):
        # The soft limit only: programs that it starts may raise it again.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            # Also stops a handler of `core_pattern`, for which the limit does not count.
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
