"""Inspection of one mission's changes: quick while an attempt runs, complete for a verdict."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from msgspec.structs import replace

from chargehand.checks.areas import Areas
from chargehand.checks.cache import LayeredCache, MemoryCache
from chargehand.checks.inspection import Inspection, Limits, examine
from chargehand.checks.trees import TreeReader
from chargehand.core.errors import ChargehandError, StoreError
from chargehand.core.records import Base, Change, Finding
from chargehand.missions.services import DepotReader, Services
from chargehand.store.store import Store
from chargehand.workspace.scan import Scan
from chargehand.workspace.workspace import Workspace

RUNNING_SECONDS = 5.0
RUNNING_FILES = 100
FULL_SECONDS = 300.0
_STORE_SECONDS = 2.0
_MARGIN = 0.9  # the share of a limit after which inspection stops by itself and returns its results so far


class CriticalFoundError(ChargehandError):
    """A running attempt made a critical change, which discards it at once; see `findings`."""

    default_code = "critical_found"

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__(
            f"the attempt was stopped: {findings[0].message}",
            hint="`chargehand mission show MISSION` names all that was found",
        )
        self.findings = tuple(findings)


class Inspector:
    """Inspects changes from one base in a separate thread; results are cached by content, in the store too.

    `seconds_left` returns the rest of the mission's time: the thread stops at that point.
    """

    def __init__(
        self,
        services: Services,
        base: Base,
        areas: Areas,
        *,
        reader: TreeReader | None = None,
        full_seconds: float = FULL_SECONDS,
        running_seconds: float = RUNNING_SECONDS,
        seconds_left: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._reader = reader or DepotReader(services.depot)
        self._base = base
        self._areas = areas
        self._full_seconds = full_seconds
        self._running_seconds = running_seconds
        self._seconds_left = seconds_left
        self._cache = LayeredCache(MemoryCache(), _StoredEntries(services.store, services.project))
        # One thread: if a disk hangs, the next inspection waits behind the last one and is degraded as well.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="inspection")

    async def inspect_all(self, changes: Sequence[Change]) -> Inspection:
        """Inspect all changes by all rules; the result is `degraded` if the machine delays it for too long.

        A degraded inspection does not approve a tree: it must not be promoted. Raises `ConfigError`.
        """
        # A thread cannot be cancelled: past the mission's end it would keep its process from ending.
        limits = Limits(seconds=min(_MARGIN * self._full_seconds, self._seconds_left()))
        return await self._within(self._full_seconds, changes, limits)

    async def inspect_sample(self, changes: Sequence[Change], *, tree: str) -> Inspection:
        """Return a quick inspection of a running attempt: beyond 100 changes it checks a sample, by risk."""
        # Seeded by the tree: the same tree gives the same sample, also in another worker.
        limits = Limits(seconds=_MARGIN * self._running_seconds, files=RUNNING_FILES, seed=tree)
        return await self._within(self._running_seconds, changes, limits)

    async def inspect_scan(self, scan: Scan) -> Inspection:
        """Return a quick inspection of a running attempt's changes, with the findings of the scan.

        Raises `CriticalFoundError` for a finding that discards the attempt.
        """
        found = await self.inspect_sample(scan.changes, tree=scan.tree)
        found = replace(found, findings=(*scan.findings, *found.findings))
        if found.critical:
            raise CriticalFoundError(found.critical)
        return found

    async def _within(self, seconds: float, changes: Sequence[Change], limits: Limits) -> Inspection:
        work = partial(
            examine, changes, self._reader, self._base.tree, self._areas, cache=self._cache, limits=limits
        )
        working = asyncio.get_running_loop().run_in_executor(self._thread, work)
        try:
            async with asyncio.timeout(seconds):
                return await working
        except TimeoutError:
            return Inspection(
                findings=(),
                looked=0,
                total=len(changes),
                cached=0,
                seconds=seconds,
                degraded=True,
                reason=f"the disk or the store did not answer within {seconds:g} s",
            )


async def scan_workspace(workspace: Workspace, *, trust_cache: bool = True) -> Scan:
    """Scan a workspace in a thread that stops with the call, even if a time limit cancels it."""
    stop = threading.Event()
    try:
        return await asyncio.to_thread(workspace.scan, trust_cache=trust_cache, stop=stop)
    finally:
        stop.set()


class _StoredEntries:
    """The store as an `InspectionCache`: abandoned once it fails or is slow, as it only saves time."""

    def __init__(self, store: Store, project: str) -> None:
        self._kept = store.inspections
        self._project = project
        self._usable = True
        # A separate thread: a store that hangs costs two seconds once, not the inspection.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="inspection-store")

    def get(self, keys: Collection[str], /) -> Mapping[str, bytes]:
        """Return the known entries, {} if the store does not answer."""
        if not self._usable:
            return {}
        try:
            return self._thread.submit(self._kept.get, self._project, keys).result(_STORE_SECONDS)
        except (StoreError, TimeoutError):
            self._usable = False
            return {}

    def put(self, entries: Mapping[str, bytes], /) -> None:
        """Store entries if the store accepts them."""
        if not self._usable or not entries:
            return
        try:
            self._thread.submit(self._kept.put, self._project, dict(entries)).result(_STORE_SECONDS)
        except (StoreError, TimeoutError):
            self._usable = False


@contextlib.asynccontextmanager
async def stopped_by(watching: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a block together with a watcher: its `CriticalFoundError` cancels the block and is raised.

    Any other error of the watcher is raised when the block ends by itself.
    """
    body = asyncio.current_task()
    assert body is not None
    # Cancellations from before the block must not be undone here.
    asked_before = body.cancelling()
    watcher = asyncio.create_task(watching)

    def end(watched: asyncio.Task[None]) -> None:
        if _critical_of(watched) is not None:
            body.cancel()

    watcher.add_done_callback(end)
    try:
        yield
    except asyncio.CancelledError:
        found = _critical_of(watcher)
        # A cancellation by a person or a limit takes precedence.
        if found is None or body.uncancel() > asked_before:
            raise
        raise found from None
    finally:
        watcher.remove_done_callback(end)
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError, CriticalFoundError):
            await watcher


def _critical_of(watched: asyncio.Task[None]) -> CriticalFoundError | None:
    if not watched.done() or watched.cancelled():
        return None
    error = watched.exception()
    return error if isinstance(error, CriticalFoundError) else None
