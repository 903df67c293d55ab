"""What may be taken on the disk: by all projects of a state directory together, and by one attempt."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from chargehand.core.errors import RefusedError
from chargehand.workspace._closed import closed_bytes
from chargehand.workspace._errors import no_space
from chargehand.workspace._files import tree_bytes
from chargehand.workspace._gc import DAY, gc
from chargehand.workspace._rules import WorkspaceLimits
from chargehand.workspace._space import (
    Need,
    Needed,
    depot_bytes,
    existing,
    holdings,
    lacking,
    megabytes,
    no_room,
    taken,
)

_SMALL = 16 << 20
_FRESH_SECONDS = 30.0
_NEARLY_FULL = 1 << 20


class StateQuota:
    """The disk space of all projects of a state directory; a `Room` that makes some where it lacks.

    `roots` are the projects' directories, `limit` in bytes is for all of them together, `needed` is asked only
    where something has to go: for the `Needed` of that moment.
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
        if self._problem(place, wanted) is None:
            return
        self._make_room(place, wanted)
        problem = self._problem(place, wanted)
        if problem is not None:
            raise no_room(what, wanted, problem)

    def taken(self) -> int:
        """Return the bytes that all projects take now."""
        size = 0
        for root in self._roots():
            size += depot_bytes(root) + taken(holdings(root))
        with self._lock:
            self._measured = (time.monotonic(), size)
        return size

    def _problem(self, place: Path, need: Need) -> str | None:
        return lacking(place, need) or self._over(need)

    def _over(self, need: Need) -> str | None:
        room = self._limit - self._lately(need)
        if room >= need.bytes:
            return None
        limit = megabytes(self._limit)
        return f"{megabytes(room)} are left of the {limit} that `limits.state_mb` gives all projects together"

    def _lately(self, need: Need) -> int:
        """Return what all took when it was last measured: now, unless that was just done and little is wanted."""
        with self._lock:
            measured = self._measured
        if measured is not None and need.bytes < _SMALL and time.monotonic() - measured[0] < _FRESH_SECONDS:
            return measured[1]
        return self.taken()

    def _make_room(self, place: Path, need: Need) -> None:
        """Let go of what nobody needs until `need` would fit: under the limit, and on the disk."""
        disk = os.statvfs(existing(place))
        now = self.taken()
        short = max(0, need.bytes - disk.f_bavail * disk.f_frsize)
        most = min(self._limit - need.bytes, now - short)
        if disk.f_files and disk.f_favail < need.files:
            most = 0  # files are not counted: what is not needed goes
        gc(self._roots(), needed=self._needed(), max_age=self._max_age, max_bytes=most, pack=False)
        with self._lock:
            self._measured = None


class AttemptQuota:
    """What one attempt may write, ignored files included: asked again and again while its agent works.

    `root` is where its writes lie (`Workspace.scan_root`), `before` the entries and bytes that lay there before it
    wrote anything: none over an overlay, the copy of the base in a plain directory.
    """

    def __init__(self, root: Path, limits: WorkspaceLimits, *, before: tuple[int, int] = (0, 0)) -> None:
        self._root = root
        self._most = (limits.files + before[0], limits.disk_bytes + before[1])
        self._limits = limits

    def look(self) -> None:
        """Return if all is well; its cost grows with what was written and ends at the limit.

        Raises `RefusedError` (`disk`) when more was written than is allowed, `InfrastructureError` (`no_space`)
        when the disk itself is nearly full.
        """
        closed: list[str] = []
        entries, size = tree_bytes(self._root, stop=self._most, closed=closed)
        if closed:
            more = closed_bytes(closed, stop=self._most)
            entries, size = entries + more[0], size + more[1]
        if size > self._most[1]:
            raise _over(f"more than {megabytes(self._limits.disk_bytes)}", "sandbox.disk_mb")
        if entries > self._most[0]:
            raise _over(f"more than {self._limits.files} files and directories", "sandbox.files")
        disk = os.statvfs(self._root)
        if disk.f_bavail * disk.f_frsize < _NEARLY_FULL or (disk.f_files and not disk.f_favail):
            raise no_space("the agent worked")


def _over(what: str, key: str) -> RefusedError:
    return RefusedError(
        f"the agent wrote {what}, ignored files included",
        code="disk",
        hint=f"raise {key}, or ask for less at once",
    )
