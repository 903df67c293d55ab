"""Watches an agent's files: logs their changes, and makes checkpoints when they are due."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from msgspec import Struct

from chargehand.core.attempt_events import FilesSeen
from chargehand.core.clock import Clock
from chargehand.core.errors import InfrastructureError
from chargehand.core.events import encode_json
from chargehand.missions.attempt.inspection import scan_workspace
from chargehand.missions.control import Control
from chargehand.missions.journal import Journal
from chargehand.sandbox.contract import Sandbox
from chargehand.workspace.depot import Depot
from chargehand.workspace.file_events import Batch, Gap
from chargehand.workspace.scan import Scan
from chargehand.workspace.watch import Watcher
from chargehand.workspace.workspace import Workspace

# Makes a checkpoint with the given trigger and returns the scan.
Keep = Callable[[str], Awaitable[Scan]]

_LINE_BYTES = 7 * 1024  # the log takes up to 8 kB per line; an event contains more than its list of changes
_LOG_BYTES = 16 * 1024 * 1024
_PATH_CHARACTERS = 1024
_SYNC_ROUNDS = 20


class CheckpointPacing(Struct, frozen=True, kw_only=True):
    """When an agent without recorded steps gets a checkpoint, in files and seconds.

    After `files` changed paths, as soon as nothing has changed for `quiet` seconds or, at the latest, `settle`
    seconds later; `seconds` after the first change that no checkpoint contains. `look`: how often the workspace is
    scanned if it cannot be watched. `note`: how often changes are logged.
    """

    files: int = 50
    seconds: float = 30.0
    settle: float = 5.0
    quiet: float = 0.5
    look: float = 5.0
    note: float = 1.0


PACE = CheckpointPacing()


class CheckpointTimer:
    """Computes when a checkpoint is due, from the observed changes."""

    def __init__(self, pace: CheckpointPacing) -> None:
        self._pace = pace
        self.reset()

    def reset(self) -> None:
        """Start over: a checkpoint contains all observed changes."""
        self._paths: set[str] = set()
        self._first: float | None = None
        self._last = 0.0
        self._reached: float | None = None

    def see(self, batch: Batch, *, now: float) -> None:
        """Count a batch's changes; changes outside the tree require no checkpoint."""
        for event in batch.events:
            self._first = now if self._first is None else self._first
            self._last = now
            if not isinstance(event, Gap) and len(self._paths) < self._pace.files:
                self._paths.add(event.path)
        if len(self._paths) >= self._pace.files and self._reached is None:
            self._reached = now

    @property
    def at(self) -> tuple[float, str] | None:
        """The current due time and trigger of the next checkpoint; `None` while nothing has changed."""
        if self._first is None:
            return None
        by_time = self._first + self._pace.seconds
        if self._reached is None:
            return by_time, "time"
        by_count = min(self._last + self._pace.quiet, self._reached + self._pace.settle)
        return min((by_count, "count"), (by_time, "time"))


class FileChangeLog:
    """Records the observed changes, in events of bounded size; beyond a total only numbers."""

    def __init__(self, journal: Journal, attempt: str, *, most: int = _LOG_BYTES) -> None:
        self._journal = journal
        self._attempt = attempt
        self._left = most
        self._batches: list[Batch] = []

    def see(self, batch: Batch) -> None:
        """Keep a batch for the next `write`."""
        if batch:
            self._batches.append(batch)

    @property
    def has_batches(self) -> bool:
        """Whether any batch is waiting to be written."""
        return bool(self._batches)

    def write_gap(self, reason: str) -> None:
        """Record that changes may be missed from here on."""
        self.write()
        self._journal.record(FilesSeen(attempt=self._attempt, gap=True, reasons=(reason,)))

    def write(self) -> None:
        """Write all batches at once."""
        batches, self._batches = self._batches, []
        if not batches:
            return
        lines: list[FilesSeen] = []
        unlisted = 0
        for line in (line for batch in batches for line in self._lines(batch)):
            size = len(encode_json(line.changes))
            if size > self._left:
                unlisted += len(line.changes)
                continue
            self._left -= size
            lines.append(line)
        ignored = sum(batch.ignored for batch in batches)
        skipped = {name: count for name, count in (("ignored", ignored), ("unlisted", unlisted)) if count}
        if skipped:
            lines.append(FilesSeen(attempt=self._attempt, skipped=skipped))
        self._journal.record(*lines)

    def _lines(self, batch: Batch) -> Iterator[FilesSeen]:
        """Yield the events of a batch; a gap begins a new one, as changes may be missing there."""
        changes: list[tuple[str, str]] = []
        size, gap = 0, ""
        for event in batch.events:
            if isinstance(event, Gap) and gap == event.reason == "new_directory":
                continue  # an agent that makes many directories must not fill the log with them
            change = None
            if not isinstance(event, Gap):
                path = event.path if len(event.path) <= _PATH_CHARACTERS else event.path[:_PATH_CHARACTERS] + "…"
                change = (f"found_{event.kind}" if event.found else event.kind, path)
            more = 0 if change is None else len(encode_json(change)) + 1
            if (change is None or size + more > _LINE_BYTES) and (changes or gap):
                yield self._line(changes, gap)
                changes, size, gap = [], 0, ""
            if isinstance(event, Gap):
                gap = event.reason
            elif change is not None:
                changes.append(change)
                size += more
        if changes or gap:
            yield self._line(changes, gap)

    def _line(self, changes: Sequence[tuple[str, str]], gap: str) -> FilesSeen:
        reasons = (gap,) if gap else ()
        return FilesSeen(attempt=self._attempt, changes=tuple(changes), gap=bool(gap), reasons=reasons)


@dataclass(eq=False, slots=True)
class WorkspaceWatch:
    """Watches one attempt: `follow` while its agent works, `save` on demand, `finish` once its sandbox is frozen.

    `keep` makes a checkpoint with the given trigger, while the sandbox is frozen; without it (a driven agent has
    one after each act) changes are only logged. `inspect` inspects a checkpoint's scan while the agent works on.
    An error on the way (the mission was taken over, the depot is full, a critical change was found) ends `follow`.
    """

    depot: Depot
    journal: Journal
    control: Control
    _: KW_ONLY
    clock: Clock
    attempt: str
    workspace: Workspace
    sandbox: Sandbox
    keep: Keep | None
    inspect: Callable[[Scan], Awaitable[object]]
    pace: CheckpointPacing
    _timer: CheckpointTimer = field(init=False)
    _log: FileChangeLog = field(init=False)
    _logged: float = field(init=False)
    _ready: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _watcher: Watcher | None = field(init=False, default=None)
    _root: Path | None = field(init=False, default=None)
    _follows: bool = field(init=False, default=False)
    _savers: list[asyncio.Event] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._timer = CheckpointTimer(self.pace)
        self._log = FileChangeLog(self.journal, self.attempt)
        self._logged = self.clock.monotonic()

    async def __aenter__(self) -> WorkspaceWatch:
        await self._open()
        return self

    async def __aexit__(self, *ended: object) -> None:
        await asyncio.shield(self._close())

    async def follow(self) -> None:
        """Record observed changes and make checkpoints until cancelled at the agent's end."""
        if self._watcher is not None:
            await self._follow()
        if self.keep is None:
            return
        last, files = self.clock.monotonic(), 0
        while True:
            await asyncio.sleep(self.pace.look)
            # Without a watcher the changes are unknown: the number of files approximates the number of changes.
            now = (await scan_workspace(self.workspace)).files
            due = self.clock.monotonic() - last >= self.pace.seconds
            if not due and abs(now - files) < self.pace.files:
                continue
            await self.control.may_go_on()
            async with self.control.frozen(self.sandbox):
                scan = await self.keep("time" if due else "count")
            await self.inspect(scan)
            last, files = self.clock.monotonic(), now

    async def save(self) -> None:
        """Return once all changes until now are in a checkpoint; at once if they cannot be watched."""
        if self.keep is None or not self._follows:
            return
        saved = asyncio.Event()
        self._savers.append(saved)
        self._ready.set()
        await saved.wait()

    async def finish(self) -> None:
        """Record the changes seen so far and stop watching."""
        await self._sync()
        await self._close()
        self._gather()
        self._log.write()

    # --- the watcher

    async def _open(self) -> None:
        """Start to watch; if no watcher is possible, log that once."""
        loop = asyncio.get_running_loop()

        def ready() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed and has no listener any more
                loop.call_soon_threadsafe(self._ready.set)

        self._root = self.workspace.scan_root()
        opening = asyncio.ensure_future(
            asyncio.to_thread(Watcher.open, self.depot, self.workspace, on_ready=ready)
        )
        try:
            self._watcher = await asyncio.shield(opening)
        except InfrastructureError:
            self._log.write_gap("no_watcher")
        except asyncio.CancelledError:
            with contextlib.suppress(InfrastructureError):
                (await opening).close()  # a thread cannot be cancelled: the watcher it opened is still closed
            raise

    async def _close(self) -> None:
        if self._watcher is not None:
            await asyncio.to_thread(self._watcher.close)

    async def _sync(self) -> None:
        """Take in all changes so far; if they exceed the buffer, they come in several rounds."""
        for _ in range(_SYNC_ROUNDS):
            if self._watcher is None or await asyncio.to_thread(self._watcher.sync) or not self._watcher.alive:
                break
            self._gather()
        self._gather()

    def _gather(self) -> None:
        if self._watcher is not None:
            batch = self._watcher.take()
            self._timer.see(batch, now=self.clock.monotonic())
            self._log.see(batch)

    # --- the loop

    async def _follow(self) -> None:
        self._follows = True
        try:
            await self._follow_changes()
        finally:
            self._follows = False
            self._release_savers(len(self._savers))

    def _release_savers(self, count: int) -> None:
        saved, self._savers = self._savers[:count], self._savers[count:]
        for each in saved:
            each.set()

    async def _follow_changes(self) -> None:
        while self._watcher is not None and self._watcher.alive:
            # Unless something changes, nothing has to be done before the first of these times.
            now, waits = self.clock.monotonic(), [self.pace.look]
            if self._log.has_batches:
                waits.append(self._logged + self.pace.note - now)
            if self.keep is not None and self._timer.at is not None:
                waits.append(self._timer.at[0] - now)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, min(waits))):
                    await self._ready.wait()
            self._ready.clear()
            # A reset writes the files to another directory, which the old watcher does not see.
            if self.workspace.scan_root() != self._root:
                self._gather()
                await self._close()
                self._gather()
                self._watcher = None
                self._log.write_gap("reset")  # changes in the new directory until now were not seen
                await self._open()
            self._gather()
            now = self.clock.monotonic()
            if self._log.has_batches and now - self._logged >= self.pace.note:
                self._log.write()
                self._logged = now
            await self._save_if_due()
            await asyncio.sleep(min(0.05, self.pace.quiet))  # a busy agent must not keep this loop spinning
        if self._watcher is not None:
            self._log.write_gap("no_watcher")

    async def _save_if_due(self) -> None:
        """Make a checkpoint if the pace demands one, or if `save` was called and something has changed."""
        savers = len(self._savers)
        if savers:
            await self._sync()
        due = self._timer.at
        paced = due is not None and self.clock.monotonic() >= due[0]
        if self.keep is not None and due is not None and (paced or savers):
            await self.control.may_go_on()
            # Frozen, so that the checkpoint contains a tree that existed at one moment.
            async with self.control.frozen(self.sandbox):
                await self._sync()
                self._log.write()
                scan = await self.keep(due[1] if paced else "query")
                self._timer.reset()
            # Inspected after the thaw: the agent need not wait for the rules.
            await self.inspect(scan)
        self._release_savers(savers)
