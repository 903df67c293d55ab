"""Disk quotas: of all projects of a state directory together, and of one attempt."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from chargehand.core.errors import RefusedError
from chargehand.workspace.errors import no_space
from chargehand.workspace.host.closed import closed_bytes
from chargehand.workspace.host.files import (
    Need,
    describe_lack,
    megabytes,
    nearest_directory,
    no_room,
    tree_bytes,
)
from chargehand.workspace.scan import WorkspaceLimits
from chargehand.workspace.space import DAY, Needed, depot_bytes, gc, list_items, total_bytes

_SMALL = 16 << 20  # bytes; for less than this a measurement of the last seconds is good enough
_FRESH_SECONDS = 30.0
_NEARLY_FULL = 1 << 20  # bytes; with less free the store's own log might not be written any more


class StateQuota:
    """The disk space of all projects of a state directory; a `Room` that makes some where it lacks.

    `roots` are the projects' directories, `limit` in bytes is for all of them together, `needed` is called only
    where something has to go, and returns the `Needed` of that moment.
    """

    def __init__(
        self,
        roots: Callable[[], Sequence[Path]],
        *,
        limit: int,
        needed: Callable[[], Needed],
        max_age: float = DAY,
    ) -> None:
        self._roots = roots
        self._limit = limit
        self._needed = needed
        self._max_age = max_age
        self._lock = threading.Lock()
        self._measured: tuple[float, int] | None = None

    def __call__(self, place: Path, need: Need, what: str) -> None:
        """Return when `need` and a tenth more fits on the disk of `place` and under the limit.

        Where it does not, what nobody needs goes, least recently used first. Raises `InfrastructureError`
        (`no_space`) with the figures where that is not enough.
        """
        wanted = need.with_margin()
        if self._describe_lack(place, wanted) is None:
            return
        disk = os.statvfs(nearest_directory(place))
        taken = self.taken()
        short = max(0, wanted.bytes - disk.f_bavail * disk.f_frsize)
        most = min(self._limit - wanted.bytes, taken - short)
        if disk.f_files and disk.f_favail < wanted.files:
            most = 0  # items are measured in bytes, not in inodes: all that is not needed goes
        gc(self._roots(), needed=self._needed(), max_age=self._max_age, max_bytes=most, pack=False)
        with self._lock:
            self._measured = None
        problem = self._describe_lack(place, wanted)
        if problem is not None:
            raise no_room(what, wanted, problem)

    def taken(self) -> int:
        """Return the bytes that all projects take now."""
        size = sum(depot_bytes(root) + total_bytes(list_items(root)) for root in self._roots())
        with self._lock:
            self._measured = (time.monotonic(), size)
        return size

    def _describe_lack(self, place: Path, need: Need) -> str | None:
        on_disk = describe_lack(place, need)
        if on_disk is not None:
            return on_disk
        with self._lock:
            measured = self._measured
        # Measuring walks every workspace: it is done anew only for what is large, or after half a minute.
        fresh = measured is not None and time.monotonic() - measured[0] < _FRESH_SECONDS
        taken = measured[1] if measured is not None and fresh and need.bytes < _SMALL else self.taken()
        room = self._limit - taken
        if room >= need.bytes:
            return None
        limit = megabytes(self._limit)
        return f"{megabytes(room)} are left of the {limit} that `limits.state_mb` gives all projects together"


class AttemptQuota:
    """What one attempt may write, ignored files included: checked again and again while its agent works.

    `root` is where its writes lie (`Workspace.scan_root`), `before` the entries and bytes that lay there before it
    wrote anything: none over an overlay, the copy of the base in a plain directory.
    """

    def __init__(self, root: Path, limits: WorkspaceLimits, *, before: tuple[int, int] = (0, 0)) -> None:
        self._root = root
        self._most = (limits.files + before[0], limits.disk_bytes + before[1])
        self._limits = limits

    def look(self) -> None:
        """Return if the attempt is within its limits; the cost grows with what was written, up to the limit.

        Raises `RefusedError` (`disk`) when more was written than is allowed, `InfrastructureError` (`no_space`)
        when the disk itself is nearly full.
        """
        # An agent may hide files in directories that it closed to their owner, us; those are counted as root of a
        # user namespace, in a process of its own.
        closed: list[str] = []
        entries, size = tree_bytes(self._root, stop=self._most, closed=closed)
        if closed:
            more = closed_bytes(closed, stop=self._most)
            entries, size = entries + more[0], size + more[1]
        if size > self._most[1]:
            raise _quota_error(f"more than {megabytes(self._limits.disk_bytes)}", "sandbox.disk_mb")
        if entries > self._most[0]:
            raise _quota_error(f"more than {self._limits.files} files and directories", "sandbox.files")
        disk = os.statvfs(self._root)
        if disk.f_bavail * disk.f_frsize < _NEARLY_FULL or (disk.f_files and not disk.f_favail):
            raise no_space("the agent worked")


def _quota_error(what: str, key: str) -> RefusedError:
    return RefusedError(
        f"the agent wrote {what}, ignored files included",
        code="disk",
        hint=f"raise {key}, or ask for less at once",
    )
