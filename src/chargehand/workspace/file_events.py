"""The events of a watcher, and the bounded queue that holds them for their reader."""

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

    `touched`: mode, times or owner changed, or the file was opened for writing and closed without a visible write
    (a write through a memory map is invisible). `renamed_from` and `renamed_to` follow one another; a single one
    has its other end in an ignored path. A path that ends in '/' is a directory with all its content. `found`: not
    observed as it happened, but found by listing a new directory, or after a gap.
    """

    path: str
    kind: SeenKind
    found: bool = False


class Gap(Struct, frozen=True):
    """From here on changes may have been missed; the differences follow as `found` events.

    `overflow`: the kernel dropped events; `slow_reader`: the reader did not take them in time; `watches`: the
    kernel has no watch left for the directory `path`, which is polled instead; `unreadable`: the directory cannot
    be opened; `new_directory`: files may have been created and deleted in or below the directory `path` before it
    was watched.
    """

    reason: GapReason
    path: str = ""


class Batch(Struct, frozen=True, kw_only=True):
    """Events taken from the queue at once, in order; `ignored` counts events of paths outside the tree."""

    events: tuple[FileEvent | Gap, ...] = ()
    ignored: int = 0

    def __bool__(self) -> bool:
        return bool(self.events) or self.ignored > 0


class EventQueue:
    """Holds at most `limit` events for the reader; drops events that do not fit and sets `lost`.

    `full` means that a scan waits for room; `on_full` is called when it starts to wait.
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
        """Add an event if there is room; after the first event that does not fit, accept no more."""
        with self._room:
            # After a loss no event is accepted: later events would be delivered before the gap.
            if self.lost or len(self._events) >= self._limit:
                self.lost = True
                return
            self._events.append(event)

    def put_found(self, event: FileEvent | Gap) -> None:
        """Add an event that a scan found; wait for room, since a scan whose findings are lost would never end."""
        with self._room:
            while len(self._events) >= self._limit and not self._closing:
                # Notify the reader here: the thread that otherwise does so is the one that waits.
                self.full = True
                self._notify()
                self.on_full()
                self._room.wait()
            if len(self._events) >= self._limit:
                self.lost = True
                return
            self._events.append(event)

    def put_last(self, gap: Gap) -> None:
        """Add a gap even if the queue is full: nothing comes after it."""
        with self._room:
            self._events.append(gap)

    def count_ignored(self) -> None:
        """Count an event that is not listed."""
        self._ignored += 1

    def notify(self) -> None:
        """Call `on_ready` if events wait, once until the reader takes them."""
        with self._room:
            self._notify()

    def _notify(self) -> None:
        if (self._events or self._ignored) and not self._notified:
            self._notified = True
            self._on_ready()

    def take(self) -> Batch:
        """Return the waiting events and clear the queue."""
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
        """Whether the queue is empty."""
        return not self._events

    def close(self) -> None:
        """Wake all threads that wait for room; from now on no thread waits."""
        with self._room:
            self._closing = True
            self._room.notify_all()
