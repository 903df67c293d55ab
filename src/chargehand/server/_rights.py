"""Notices that rights changed, so that open streams check theirs at once instead of at their next beat."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator

from chargehand.core.errors import ChargehandError
from chargehand.reports.reading import StateReader

_LOG = logging.getLogger("chargehand.server")
_POLL_SECONDS = 0.25


class RightsWatch:
    """Polls the access log while streams are open: each change of an account, session or token adds a line.

    `version` grows with each change; `on_change` is called after it grew.
    """

    def __init__(self, reader: StateReader, *, on_change: Callable[[], None]) -> None:
        self.version = 0
        self._reader = reader
        self._on_change = on_change
        self._streams = 0
        self._last = -1

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Count an open stream during the block."""
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            if not self._streams:
                continue
            try:
                last = await asyncio.to_thread(self._reader.store.access_log.last)
            except ChargehandError as error:  # a busy store must not end this for all streams
                _LOG.warning("%s", error)
                continue
            if last != self._last:
                # At the first look too: the change may have come between the stream's check and this line.
                self._last = last
                self.version += 1
                self._on_change()
