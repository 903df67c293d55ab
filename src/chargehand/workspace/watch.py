"""Watches the changes that an agent makes to a workspace's files, as they happen."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from chargehand.core.errors import InfrastructureError
from chargehand.workspace.depot import Depot
from chargehand.workspace.file_events import Batch, EventQueue, Gap, GapReason
from chargehand.workspace.tree.ignore import IgnoreFile
from chargehand.workspace.watching.decoder import EventDecoder
from chargehand.workspace.watching.directories import WatchRules
from chargehand.workspace.workspace import Workspace, read_state

_MAX_WAITING = 20_000
_BLIND_SECONDS = 5.0
_PAUSE_SECONDS = 0.005  # between readings: the kernel joins equal events meanwhile
_MANY = 500  # above this number, read on without a pause: the kernel's queue holds 16,384
_SLACK_NS = 20_000_000  # time stamps of files come from a coarser clock
_FIRST_BACKOFF, _LAST_BACKOFF, _BACKOFF_RESETS = 0.05, 5.0, 10.0


class Watcher:
    """Reports the changes of one workspace's files in order, from a separate thread.

    Watches the directories that the agent wrote to (with an overlay those of its upper, whose number grows with
    the change and not with the base). The agent's `.git` is not watched; events of ignored paths are only counted.
    Writes through a memory map cause no event, and files that came and went in a directory before it was watched
    only cause a gap: the watcher hints when to scan, it does not replace a scan. A reset of the workspace creates
    another directory: open another watcher.
    """

    def __init__(
        self,
        decoder: EventDecoder,
        queue: EventQueue,
        *,
        blind_seconds: float = _BLIND_SECONDS,
    ) -> None:
        self._decoder = decoder
        self._queue = queue
        self._blind_seconds = blind_seconds
        self._complete_until = time.time_ns() - _SLACK_NS
        self._lost_since: int | None = None
        self._blind_polled = self._complete_until
        self._next_blind = time.monotonic() + blind_seconds
        self._backoff = _FIRST_BACKOFF
        self._last_gap = 0.0
        self._wake_out, self._wake_in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._requested = self._served = 0
        self._served_changed = threading.Condition()
        queue.on_full = self._notify_waiting  # otherwise `sync` would wait for events that cannot be queued
        self._closing = False
        self.alive = True
        self._thread = threading.Thread(target=self._run, name="chargehand-watch", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls,
        depot: Depot,
        workspace: Workspace,
        *,
        on_ready: Callable[[], None],
        waiting: int = _MAX_WAITING,
        blind_seconds: float = _BLIND_SECONDS,
    ) -> Watcher:
        """Watch a workspace; existing files are not reported. May take a second for a plain directory.

        The watcher's thread calls `on_ready` for the first event to wait after all were taken; at most `waiting`
        events wait. Raises `InfrastructureError` (`no_watcher`) if the kernel has no inotify instance left for
        this user.
        """
        queue = EventQueue(limit=waiting, on_ready=on_ready)
        try:
            decoder = EventDecoder(workspace.scan_root(), rules_of(depot, workspace), queue)
        except OSError as problem:
            raise InfrastructureError(
                f"workspace {workspace.id!r} cannot be watched: {problem}",
                code="no_watcher",
                hint="raise the sysctl fs.inotify.max_user_instances: how many watchers one user may have",
            ) from problem
        return cls(decoder, queue, blind_seconds=blind_seconds)

    def take(self) -> Batch:
        """Return the events since the last call, in order."""
        batch = self._queue.take()
        if self._lost_since is not None:
            with self._served_changed:
                self._wake_thread()
        return batch

    def sync(self, *, seconds: float = 10.0) -> bool:
        """Wait until the queue holds all events that happened before this call; return whether it does.

        Return false if there is no room for all of them (take, and call again), if the watcher has ended, and
        after `seconds`. From here on every write is reported again, also one to a file that is being written.
        """
        with self._served_changed:
            self._requested += 1
            ticket = self._requested
            self._wake_thread()
            self._served_changed.wait_for(
                lambda: self._served >= ticket or self._queue.full or not self.alive, seconds
            )
            return self._served >= ticket

    @property
    def complete(self) -> bool:
        """Whether no gap remains to be reported."""
        return self._lost_since is None

    def close(self) -> None:
        """Read the queued kernel events and end; waiting events can still be taken. Idempotent."""
        with self._served_changed:
            if self._closing:
                return
            self._closing = True
            with suppress(BlockingIOError):
                os.write(self._wake_in, b"x")
        # Close the queue first: the thread may be waiting for room in it that will never be made.
        self._queue.close()
        self._thread.join()
        self._decoder.close()
        os.close(self._wake_in)
        os.close(self._wake_out)

    def __enter__(self) -> Watcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- the thread

    def _wake_thread(self) -> None:
        """Wake the thread; call only with `_served_changed` held, so that the descriptor is still ours."""
        if not self._closing:
            with suppress(BlockingIOError):
                os.write(self._wake_in, b"x")

    def _notify_waiting(self) -> None:
        with self._served_changed:
            self._served_changed.notify_all()

    def _run(self) -> None:
        try:
            while not self._closing:
                poller = select.poll()
                poller.register(self._decoder.inotify.fd, select.POLLIN)
                poller.register(self._wake_out, select.POLLIN)
                left = self._next_blind - time.monotonic() if self._decoder.blind else None
                ready = poller.poll(None if left is None else max(0.0, left) * 1000)
                if any(fd == self._wake_out for fd, _ in ready):
                    with suppress(BlockingIOError):
                        os.read(self._wake_out, 4096)
                # Before the kernel's queue is read: events before the request are handled once the request is
                # served.
                requested = self._requested
                self._drain()
                if self._lost_since is not None:
                    self._recover()
                if self._decoder.blind and time.monotonic() >= self._next_blind:
                    began = time.monotonic()
                    before = time.time_ns() - _SLACK_NS
                    self._decoder.poll_blind(since=self._blind_polled)
                    self._blind_polled = before
                    took = time.monotonic() - began  # polling a large tree may take a tenth of the time, not more
                    self._next_blind = time.monotonic() + max(self._blind_seconds, 10 * took)
                self._queue.notify()
                if requested > self._served:
                    self._decoder.expire_edits()
                    with self._served_changed:
                        self._served = requested
                        self._served_changed.notify_all()
            self._drain()
            if self._lost_since is not None:
                self._queue.put_last(Gap(self._gap_reason()))
        finally:
            self.alive = False
            self._notify_waiting()
            self._queue.close()
            self._queue.notify()

    def _drain(self) -> None:
        """Read until the kernel's queue is empty; from then on all changes up to now are known."""
        while True:
            before = time.time_ns()
            count = self._decoder.step()
            if (self._decoder.overflowed or self._queue.lost) and self._lost_since is None:
                self._lost_since = self._complete_until
            if not count:
                if self._lost_since is None:
                    self._complete_until = before - _SLACK_NS
                return
            self._queue.notify()
            if count < _MANY and not self._closing and not self._decoder.behind:
                time.sleep(_PAUSE_SECONDS)

    def _recover(self) -> None:
        """Report the gap, then the differences since; wait until the reader has taken the queued events."""
        # Not while the reader is behind: the scan would fill the queue again and lose events again.
        if self._queue.lost and not self._queue.empty:
            return
        # Let a burst pass: while the kernel's queue is full, events cost nothing.
        now = time.monotonic()
        repeated = now - self._last_gap < _BACKOFF_RESETS + self._backoff
        self._backoff = min(_LAST_BACKOFF, self._backoff * 2) if repeated else _FIRST_BACKOFF
        select.select([self._wake_out], [], [], self._backoff)
        self._last_gap = time.monotonic()
        since = self._lost_since or 0
        reason = self._gap_reason()
        self._lost_since = None
        self._decoder.overflowed = self._queue.lost = False
        self._complete_until = time.time_ns() - _SLACK_NS
        self._queue.put_found(Gap(reason))
        self._decoder.report_changes(since=since)

    def _gap_reason(self) -> GapReason:
        return "overflow" if self._decoder.overflowed else "slow_reader"


def rules_of(depot: Depot, workspace: Workspace) -> WatchRules:
    """Return the rules for what belongs to the workspace's tree, the same as its scan uses."""
    state = read_state(depot, workspace.id)
    return WatchRules(
        depot.reader,
        base=bytes.fromhex(state.base.tree),
        start=bytes.fromhex(state.start),
        lowers=workspace.mount_plan().lowers,
        include=IgnoreFile("\n".join(state.include).encode()) if state.include else None,
        environment=state.environment,
        depth=state.limits.depth,
    )
