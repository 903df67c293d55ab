"""The kernel's inotify, read raw: order, cookies and overflow are what the watcher lives on.

Not taken: `watchfiles` hands out sets (a file made, changed and deleted within its debounce is one change or none)
and tells no overflow; `inotify_simple` keeps both but reads the whole queue at once; `asyncinotify` builds two
paths per event and keeps as many as come. What would be left of them is the 80 lines here.
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
_READ_BYTES = 128 * 1024  # some four thousand events: the queue is emptied in steps of bounded size


class Raw(NamedTuple):
    """One event as the kernel tells it: watch, mask, the cookie that joins both ends of a move, name."""

    wd: int
    mask: int
    cookie: int
    name: bytes


class Inotify:
    """One inotify instance, non-blocking. Raises `OSError` (`EMFILE`: no instance is left for this user)."""

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
        """Watch the directory open as `directory`; return the watch. Raises `OSError` (`ENOSPC`: none is left).

        By descriptor and not by path: an agent that swaps a directory for a link must not lead the watch away.
        """
        path = b"/proc/self/fd/%d" % directory
        return self._raise_errno(self._libc.inotify_add_watch(self.fd, path, _WANTED | _ONLYDIR | _EXCL_UNLINK))

    def forget(self, wd: int) -> None:
        """Stop watching; what is gone already is fine."""
        self._libc.inotify_rm_watch(self.fd, wd)

    def read(self) -> list[Raw]:
        """Return the next events in order, at most a few thousand; none when the queue is empty."""
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
        """Give the instance and all its watches back."""
        with suppress(OSError):
            os.close(self.fd)
