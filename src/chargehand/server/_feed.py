"""The live feed: the lines of all logs by position, read from the store once for all followers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
from msgspec import Struct

from chargehand.core.errors import ChargehandError
from chargehand.operations.operation import encode_document
from chargehand.reports.reading import StateReader
from chargehand.reports.story import events_after

_LOG = logging.getLogger("chargehand.server")
_POLL_SECONDS = 0.1
# The pause after a fault in this program: the feed meets the same line again, and must not flood the log.
_FAULT_SECONDS = 5.0
# How often a silent stream sends a comment: proxies and browsers drop connections that are silent for longer.
_BEAT_SECONDS = 15.0
# Lines kept in memory for all followers; a follower further behind reads the store.
_KEPT_LINES = 5000
_PAGE_LINES = 500


class _Frame(Struct, frozen=True):
    position: int
    mission: str
    project: str
    type: str
    content: bytes


class FeedFilter(Struct, frozen=True, kw_only=True):
    """The lines a client wants: of a mission, of a project, of some types; all by default."""

    mission: str | None = None
    project: str | None = None
    types: frozenset[str] = frozenset()

    def accepts(self, frame: _Frame) -> bool:
        """Return whether the client wants this line."""
        return (
            self.mission in (None, frame.mission)
            and self.project in (None, frame.project)
            and (not self.types or frame.type in self.types)
        )


class EventFeed:
    """Serves log lines to any number of clients; each has its own position, so that a slow one delays no other."""

    def __init__(self, reader: StateReader, *, beat: float = _BEAT_SECONDS, pause: float = _FAULT_SECONDS) -> None:
        self._reader = reader
        self._beat = beat
        self._pause = pause
        self._frames: deque[_Frame] = deque(maxlen=_KEPT_LINES)
        self._position = 0
        self._followers = 0
        self._projects: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._closed = False
        self._generation = 0
        self._rights = 0

    def check_rights(self) -> None:
        """Let every follower check that its session or token is still valid."""
        self._rights += 1
        self._wake()

    def close(self) -> None:
        """End every stream."""
        self._closed = True
        self._wake()

    async def run(self) -> None:
        """Read new lines until cancelled, but only while there are followers."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            if not self._followers:
                continue
            try:
                lines = await asyncio.to_thread(self._read_new)
            # A busy store, or a disk that is full for a moment, must not end the feed of all pages.
            except ChargehandError as error:
                _LOG.warning("%s", error)
                continue
            # The boundary: a fault in this program must not end it either. The feed would meet the same line
            # again, so it ends every stream, and clients reconnect for the following lines.
            except Exception:
                _LOG.exception("the feed cannot continue from position %d", self._position)
                self._end_streams()
                await asyncio.sleep(self._pause)
                continue
            if lines is None:
                _LOG.warning("the log ends before position %d: it was restored", self._position)
                self._end_streams()
            elif lines:
                self._frames.extend(lines)
                self._position = lines[-1].position
                self._wake()

    async def follow(
        self, after: int | None, wanted: FeedFilter, *, is_valid: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[bytes]:
        """Yield server-sent events after a position, by default new ones; comments while nothing happens.

        The first event is `reset` if the log has no such position: it was restored, or is another log. The stream
        ends once `is_valid` says that the client's session or token is no longer valid.
        """
        self._followers += 1
        generation = self._generation
        try:
            last = await asyncio.to_thread(self._reader.store.log.last_position)
            if self._position == 0 or self._followers == 1:
                self._frames.clear()
                self._position = last
            if after is None or after > last:
                if after is not None:
                    yield _frame_text(last, b"reset", msgspec.json.encode({"position": last}))
                after = last
            yield b": connected\n\n"
            checked, rights = time.monotonic(), self._rights
            while not self._closed and generation == self._generation:
                # By the clock, not only in pauses: a busy log must not keep a stream whose session was revoked.
                if rights != self._rights or time.monotonic() - checked >= self._beat:
                    rights = self._rights
                    if not await is_valid():
                        return
                    checked = time.monotonic()
                changed = self._changed
                frames = await self._frames_after(after)
                if frames:
                    after = frames[-1].position
                    content = b"".join(each.content for each in frames if wanted.accepts(each))
                    if content:
                        yield content
                    continue
                try:
                    async with asyncio.timeout(self._beat):
                        await changed.wait()
                except TimeoutError:
                    yield b": keep-alive\n\n"
        finally:
            self._followers -= 1

    def _end_streams(self) -> None:
        """End every open stream: followers reconnect with a position, and learn where the log ends."""
        self._frames.clear()
        self._position = 0
        self._generation += 1
        self._wake()

    def _wake(self) -> None:
        # Each follower waits for the event that was current when it read, and so misses no later change.
        changed = self._changed
        self._changed = asyncio.Event()
        changed.set()

    async def _frames_after(self, position: int) -> list[_Frame]:
        if position >= self._position:
            return []
        if self._frames and self._frames[0].position <= position + 1:
            return [each for each in self._frames if each.position > position][:_PAGE_LINES]
        return await asyncio.to_thread(self._read, position)

    def _read_new(self) -> list[_Frame] | None:
        """Return the new lines, `None` if the log has become shorter."""
        position = self._position
        lines = self._read(position)
        return lines if lines or self._reader.store.log.last_position() >= position else None

    def _read(self, position: int) -> list[_Frame]:
        frames = []
        for line in events_after(self._reader, position, limit=_PAGE_LINES):
            assert line.position is not None
            project = self._projects.get(line.mission)
            if project is None:
                project = self._projects[line.mission] = self._reader.store.log.get(line.mission).project
            content = _frame_text(line.position, b"message", encode_document(line))
            frames.append(_Frame(line.position, line.mission, project, line.type, content))
        return frames


def _frame_text(position: int, event: bytes, data: bytes) -> bytes:
    # JSON has no raw line breaks, so that one `data:` line holds it.
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (position, event, data)
