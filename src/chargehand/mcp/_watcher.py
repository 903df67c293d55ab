"""Polls the missions that clients follow, and keeps a worker alive for missions that should run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

from chargehand.app.composition import App
from chargehand.app.worker import start_worker
from chargehand.core.errors import ChargehandError

_LOG = logging.getLogger("chargehand.mcp")
_POLL_SECONDS = 0.25
# Polls between checks (three seconds): checking whether a worker is needed is a query over all missions.
_POLLS_PER_WORKER_CHECK = 12


class MissionWatcher:
    """Reports new lines in the logs of missions, with one query for each followed mission."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._followed: Counter[str] = Counter()
        self._seen: dict[str, int] = {}
        self._changed: dict[str, set[asyncio.Event]] = {}
        self._worker: subprocess.Popen[bytes] | None = None
        self._starting = asyncio.Lock()
        self.told: Callable[[str], Awaitable[None]] | None = None
        """Called with the id of each followed mission that has new lines."""

    @contextlib.contextmanager
    def following(self, mission: str) -> Iterator[asyncio.Event]:
        """Follow a mission in the block; the event is set whenever there are new lines."""
        changed = asyncio.Event()
        self.follow(mission)
        self._changed.setdefault(mission, set()).add(changed)
        try:
            yield changed
        finally:
            self._changed[mission].discard(changed)
            self.leave(mission)

    def follow(self, mission: str) -> None:
        """Poll a mission from now on, until `leave` is called as often."""
        self._followed[mission] += 1

    def leave(self, mission: str) -> None:
        """Undo one `follow`."""
        self._followed[mission] -= 1
        if self._followed[mission] <= 0:
            for kept in (self._followed, self._seen, self._changed):
                kept.pop(mission, None)

    async def run(self) -> None:
        """Poll until cancelled; retry if the store is unreadable."""
        polls = 0
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            try:
                if polls % _POLLS_PER_WORKER_CHECK == 0:
                    await self.keep_going()
                if self._followed:
                    await self._poll_followed()
            # A disk that is full for a moment, or a busy store, must not end the watcher that all clients depend
            # on.
            except ChargehandError as error:
                _LOG.warning("%s", error)
            polls += 1

    async def _poll_followed(self) -> None:
        names = tuple(self._followed)
        store = self._app.store
        # In a thread: a store that another process keeps busy must not stop the calls of all clients.
        now = await asyncio.to_thread(lambda: {mission: store.log.last_seq(mission) for mission in names})
        for mission, seq in now.items():
            before = self._seen.get(mission)  # None: the first poll only learns the current end of the log
            # The last client may have left the mission while the thread read the store.
            if mission not in self._followed or before == seq:
                continue
            self._seen[mission] = seq
            for changed in self._changed.get(mission, ()):
                changed.set()
            # The first poll also wakes waiting calls: a line may have been added since they read the status.
            # Subscribers are notified only of later lines.
            if before is not None and self.told is not None:
                await self.told(mission)

    async def keep_going(self) -> None:
        """Make sure that a worker is alive if a mission should run."""
        # Checked repeatedly: a worker that runs until nothing is left may end just as a mission is recorded.
        async with self._starting:
            # A worker that is starting has not registered yet, so its process counts. `poll` also reaps a worker
            # that ended, which would otherwise stay a zombie as long as the server lives.
            if self._worker is None or self._worker.poll() is not None:
                self._worker = await asyncio.to_thread(
                    lambda: start_worker(self._app) if self._app.has_work() else None
                )
