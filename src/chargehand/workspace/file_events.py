"""The events of a watcher, and the bounded queue in which they wait for their reader."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Literal

from msgspec import Struct

SeenKind = Literal["created", "modified", "touched", "deleted", "renamed_from", "renamed_to"]
GapReason = Literal["overflow", "slow_reader", "watches", "unreadable", "new_directory"]


class FileEvent(Struct, frozen=True):
    """One change of one path, in the order in which it happened.

    `touched`: mode, times or owner, or opened for writing and closed without a write that could be seen (which may
    have been one through a memory map). `renamed_from` and `renamed_to` follow one another; one that stands alone
    has its other end in an ignored path. A path that ends in '/' is a directory with all that it holds. `found`:
    not seen as it happened but found by looking, in a directory that was just made or after a gap.
    """

    path: str
    kind: SeenKind
    found: bool = False


class Gap(Struct, frozen=True):
    """From here on changes may have been missed; what differs follows as `found` events.

    `overflow`: the kernel dropped events; `slow_reader`: they were not taken in time; `watches`: the kernel has no
    watch left for the directory `path`, which is looked at from time to time instead; `unreadable`: it cannot be
    opened; `new_directory`: in the directory `path` or below it something may have been made and removed again
    before it could be watched.
    """

    reason: GapReason
    path: str = ""


class Batch(Struct, frozen=True, kw_only=True):
    """What was taken at once, in order; `ignored` counts events of paths that are outside the tree."""

    events: tuple[FileEvent | Gap, ...] = ()
    ignored: int = 0

    def __bool__(self) -> bool:
        return bool(self.events) or self.ignored > 0


class EventQueue:
    """Holds at most `limit` events for the reader; what does not fit is dropped and remembered as a loss.

    `full` says that a scan waits for room; `on_full` is called when it begins to.
    """

    def __init__(self, *, limit: int, on_ready: Callable[[], None]) -> None:
        self._limit = limit
        self._on_ready = on_ready
        self._events: deque[FileEvent | Gap] = deque()
        self._ignored = 0
        self._notified = False
        self._room = threading.Condition()
        self._closing = False
        self.lost = False
        self.full = False
        self.on_full: Callable[[], None] = lambda: None

    def put(self, event: FileEvent | Gap) -> None:
        """Add an event unless there is no room; from the first that does not fit on none is taken."""
        with self._room:
            # Once one is lost, none is let in: what comes after the gap would be told before it.
            if self.lost or len(self._events) >= self._limit:
                self.lost = True
                return
            self._events.append(event)

    def put_found(self, event: FileEvent | Gap) -> None:
        """Add what a scan found; waits for room, since a scan whose findings are lost would never end."""
        with self._room:
            while len(self._events) >= self._limit and not self._closing:
                # The reader is told here: the thread that tells it otherwise is the one that waits.
                self.full = True
                self._notify()
                self.on_full()
                self._room.wait()
            if len(self._events) >= self._limit:
                self.lost = True
                return
            self._events.append(event)

    def put_last(self, gap: Gap) -> None:
        """Add a gap whether there is room or not: nothing comes after it."""
        with self._room:
            self._events.append(gap)

    def count_ignored(self) -> None:
        """Count an event that is not listed."""
        self._ignored += 1

    def notify(self) -> None:
        """Call `on_ready` if something waits, once until the reader takes it."""
        with self._room:
            self._notify()

    def _notify(self) -> None:
        if (self._events or self._ignored) and not self._notified:
            self._notified = True
            self._on_ready()

    def take(self) -> Batch:
        """Return and forget what waits."""
        with self._room:
            batch = Batch(events=tuple(self._events), ignored=self._ignored)
            self._events.clear()
            self._ignored = 0
            self._notified = False
            self.full = False
            self._room.notify_all()
            return batch

    @property
    def empty(self) -> bool:
        """Whether all was taken."""
        return not self._events

    def close(self) -> None:
        """Wake whoever waits for room; nobody waits from now on."""
        with self._room:
            self._closing = True
            self._room.notify_all()
