"""Remembers which content a file had, so that what did not change is not read again."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from chargehand.core.codec import unpack_as
from chargehand.workspace._files import replace_file

_RACY_NS = 20_000_000  # file systems stamp by the kernel's tick: two writes within one look like one
_Key = tuple[int, int, int, int]


def _key(info: os.stat_result) -> _Key:
    return (info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


class StatCache:
    """Raw blob ids by (inode, size, mtime, ctime) of one directory tree.

    A program can set mtime but not ctime. What changed within 20 ms before a scan is not remembered.
    """

    def __init__(self, known: dict[_Key, bytes] | None = None) -> None:
        self._known = known if known is not None else {}
        self._fresh: dict[_Key, bytes] = {}

    @classmethod
    def load(cls, path: Path) -> StatCache:
        """Return what `save` kept, an empty cache where there is none or it cannot be read."""
        try:
            return cls(unpack_as(path.read_bytes(), dict[tuple[int, int, int, int], bytes]))
        except (OSError, msgspec.MsgspecError):
            return cls()

    def save(self, path: Path) -> None:
        """Keep the cache for another process."""
        replace_file(path, msgspec.msgpack.encode(self._known))

    def get(self, info: os.stat_result) -> bytes | None:
        """Return the id of the content, where it is known."""
        return self._known.get(_key(info))

    def propose(self, info: os.stat_result, id: bytes) -> None:
        """Note an id; it counts from `accept` on, when the object is safely in the depot."""
        if max(info.st_mtime_ns, info.st_ctime_ns) < time.time_ns() - _RACY_NS:
            self._fresh[_key(info)] = id

    def seed(self, info: os.stat_result, id: bytes) -> None:
        """Note an id of a file that we wrote ourselves and that nobody else could reach yet."""
        self._known[_key(info)] = id

    def accept(self) -> int:
        """Make the proposed ids count; return how many there were."""
        count = len(self._fresh)
        self._known.update(self._fresh)
        self._fresh.clear()
        return count

    def forget_proposed(self) -> None:
        """Drop the proposed ids: their objects may not have been written."""
        self._fresh.clear()
