"""The live feed goes on whatever happens to it, and tells who follows where it cannot."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.server_kit import environment, record_missions

from chargehand.app.reading import StateReader
from chargehand.server import _feed
from chargehand.server._feed import EventFeed, FeedFilter


@contextlib.asynccontextmanager
async def running(reader: StateReader) -> AsyncIterator[EventFeed]:
    feed = EventFeed(reader, pause=0.0)
    task = asyncio.create_task(feed.run())
    try:
        yield feed
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def valid() -> bool:
    return True


async def read_to_end(feed: EventFeed, after: int | None, seen: asyncio.Event) -> list[bytes]:
    """Follow until the feed ends the stream."""
    found = []
    async for piece in feed.follow(after, FeedFilter(), is_valid=valid):
        found.append(piece)
        seen.set()
    return found


async def test_a_log_that_was_restored_is_told_to_who_follows(tmp_path: Path) -> None:
    with StateReader.open(environ=environment(tmp_path), cwd=tmp_path) as reader:
        record_missions(reader, 3)
        async with running(reader) as feed:
            seen = asyncio.Event()
            following = asyncio.create_task(read_to_end(feed, None, seen))
            await seen.wait()
            with reader.store.database.write() as connection:
                connection.execute("DELETE FROM events WHERE position = 3")
            assert await following == [b": connected\n\n"]
            # Who comes back learns where the log ends now.
            first = await anext(feed.follow(3, FeedFilter(), is_valid=valid))
            assert first == b'id: 2\nevent: reset\ndata: {"position":2}\n\n'


async def test_a_fault_of_ours_ends_the_streams_and_not_the_feed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StateReader.open(environ=environment(tmp_path), cwd=tmp_path) as reader:
        record_missions(reader, 1)
        whole = _feed.events_after
        failed: list[int] = []

        def fail_once(*given: Any, **more: Any) -> object:
            if not failed:
                failed.append(1)
                raise ZeroDivisionError
            return whole(*given, **more)

        async with running(reader) as feed:
            seen = asyncio.Event()
            monkeypatch.setattr(_feed, "events_after", fail_once)
            assert await read_to_end(feed, None, seen) == [b": connected\n\n"]
            again: Any = feed.follow(0, FeedFilter(), is_valid=valid)
            assert await anext(again) == b": connected\n\n"
            assert b"mission.created" in await anext(again)
            await again.aclose()
