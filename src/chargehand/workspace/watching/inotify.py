"""Raw access to the kernel's inotify: the watcher depends on order, cookies and overflow.

Rejected: `watchfiles` returns sets (a file created, changed and deleted within its debounce is one change or no
change) and reports no overflow; `inotify_simple` keeps both but reads the whole queue at once; `asyncinotify`
builds two paths per event and keeps an unlimited number. Only these 80 lines would remain of any of them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from contextlib import suppress
from typing import NamedTuple

MODIFY, ATTRIB, CLOSE_WRITE = 0x2, 0x4, 0x8
MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x40, 0x80, 0x100, 0x200
OVERFLOW, IGNORED, ISDIR = 0x4000, 0x8000, 0x40000000
_WANTED = MODIFY | ATTRIB | CLOSE_WRITE | MOVED_FROM | MOVED_TO | CREATE | DELETE
_ONLYDIR, _EXCL_UNLINK = 0x1000000, 0x4000000
_HEAD = struct.Struct("iIII")
_READ_BYTES = 128 * 1024  # about four thousand events: the queue is emptied in steps of bounded size


class Raw(NamedTuple):
    """One kernel event: watch, mask, the cookie that joins both ends of a move, name."""

    wd: int
    mask: int
    cookie: int
    name: bytes


class Inotify:
    """A non-blocking inotify instance. Raises `OSError` (`EMFILE`: the user's limit of instances is reached)."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._raise_errno(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    @staticmethod
    def _raise_errno(result: int) -> int:
        if result < 0:
            problem = ctypes.get_errno()
            raise OSError(problem, os.strerror(problem))
        return result

    def watch(self, directory: int) -> int:
        """Watch an open directory and return the watch. Raises `OSError` (`ENOSPC`: no watch is left).

        Takes a file descriptor, not a path: an agent that swaps a directory for a link must not redirect the
        watch.
        """
        path = b"/proc/self/fd/%d" % directory
        return self._raise_errno(self._libc.inotify_add_watch(self.fd, path, _WANTED | _ONLYDIR | _EXCL_UNLINK))

    def forget(self, wd: int) -> None:
        """Stop watching; ignore a watch that is already gone."""
        self._libc.inotify_rm_watch(self.fd, wd)

    def read(self) -> list[Raw]:
        """Return the next events in order, at most a few thousand; an empty list if the queue is empty."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return []
        except OSError as problem:
            if problem.errno == errno.EINTR:
                return []
            raise
        found = []
        at = 0
        while at < len(data):
            wd, mask, cookie, length = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            found.append(Raw(wd, mask, cookie, data[at : at + length].rstrip(b"\0")))
            at += length
        return found

    def close(self) -> None:
        """Close the instance and all its watches."""
        with suppress(OSError):
            os.close(self.fd)
