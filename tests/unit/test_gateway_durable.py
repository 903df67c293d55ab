"""The order of writes to disk: a power cut loses no delivered reply, and one reserve at most."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway_kit import SSE, Reply, RunningGateway, gateway, openai_stream, openai_whole

from chargehand.core.errors import StoreError
from chargehand.core.ports import Spent
from chargehand.models.contract import Price
from chargehand.models.metering import MemoryLedger
from chargehand.models.replay_cache import ReplayCache

TOKEN = "cht-0123456789abcdef0123456789abcdef"
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


class Disk(MemoryLedger):
    """A ledger whose disk is slow or fails, as a test wants it."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__(10.0)
        self.ready = threading.Event()
        self.fails = fails
        self.reserved: list[str] = []
        self.on_disk: list[str] = []

    def reserve(self, call: str, usd: float) -> tuple[Spent, ...]:
        self.reserved.append(call)
        return super().reserve(call, usd)

    def secure(self) -> None:
        assert self.ready.wait(30)
        if self.fails:
            raise StoreError("the disk failed", code="store_io", hint="")
        self.on_disk = list(self.reserved)


class SlowLog(ReplayCache):
    """A replay cache whose disk is as slow as a test wants it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, secrets={}, token=TOKEN)
        self.ready = threading.Event()
        self.synced = 0

    def sync(self) -> None:
        assert self.ready.wait(30)
        super().sync()
        self.synced += 1


def reply(stream: bool) -> Reply:
    return Reply(headers=SSE, pieces=openai_stream("hel", "lo")) if stream else Reply(pieces=[openai_whole()])


@asynccontextmanager
async def asking(running: RunningGateway, *, stream: bool = False) -> AsyncIterator[asyncio.Task[httpx.Response]]:
    async with asyncio.TaskGroup() as group:
        yield group.create_task(running.post({**BODY, "stream": stream}))


async def until(happened: Any) -> None:
    async with asyncio.timeout(30):
        while not happened():
            await asyncio.sleep(0.001)


async def a_while() -> None:
    """Let all pending work happen."""
    for _ in range(50):
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_provider_is_asked_at_once_and_heard_when_the_reserve_is_on_the_disk(
    tmp_path: Path, stream: bool
) -> None:
    ledger = Disk()
    async with gateway(tmp_path, reply(stream), ledger=ledger) as running, asking(running, stream=stream) as asked:
        await until(lambda: running.upstream.calls)
        await a_while()
        assert (ledger.on_disk, asked.done(), running.records) == ([], False, [])
        ledger.ready.set()
        assert (await asked).status_code == 200
        assert ledger.on_disk == ledger.reserved


async def test_a_second_call_waits_until_the_first_reserve_is_on_the_disk(tmp_path: Path) -> None:
    ledger = Disk()
    async with (
        gateway(tmp_path, reply(False), ledger=ledger) as running,
        asking(running) as first,
        asking(running) as second,
    ):
        await until(lambda: running.upstream.calls)
        await a_while()
        assert len(running.upstream.calls) == len(ledger.reserved) == 1
        ledger.ready.set()
        assert [(await each).status_code for each in (first, second)] == [200, 200]
    assert len(running.upstream.calls) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reserve_that_cannot_be_stored_is_an_error_and_remains_booked(
    tmp_path: Path, stream: bool
) -> None:
    ledger = Disk(fails=True)
    ledger.ready.set()
    loop, unheard = asyncio.get_running_loop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: unheard.append(context))
    async with gateway(tmp_path, reply(stream), ledger=ledger) as running:
        answer = await running.post({**BODY, "stream": stream})
    assert answer.status_code == 500
    assert "hel" not in answer.text
    (record,) = running.records
    assert record.booked_usd > 0
    assert ledger.booked == record.booked_usd
    assert unheard == []


async def test_a_free_call_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    ledger = Disk()
    async with gateway(tmp_path, reply(False), ledger=ledger, price=Price(input=0.0, output=0.0)) as running:
        assert (await running.post(BODY)).status_code == 200
    assert ledger.on_disk == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_ends_only_after_its_log_is_synced_to_disk(tmp_path: Path, stream: bool) -> None:
    log = SlowLog(tmp_path / "calls.jsonl")
    async with gateway(tmp_path, reply(stream), calls=log) as running, asking(running, stream=stream) as asked:
        await until(lambda: running.records)
        await a_while()
        assert (log.synced, asked.done()) == (0, False), "it is settled while the disk works, and not given yet"
        assert (tmp_path / "calls.jsonl").read_bytes().count(b'"call"') == 1
        log.ready.set()
        assert (await asked).status_code == 200
        assert log.synced == 1
    log.close()


async def test_a_request_that_cannot_be_kept_is_answered_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(ReplayCache):
        def fingerprint(self, *given: Any, **more: Any) -> Any:
            raise ValueError("not to be taken apart")

    log = Broken(tmp_path / "calls.jsonl", secrets={}, token=TOKEN)
    async with gateway(tmp_path, reply(False), calls=log) as running:
        assert (await running.post(BODY)).status_code == 200
        assert [record.status for record in running.records] == ["ok"]
    log.close()
    assert "cannot keep a request: not to be taken apart" in caplog.text


def test_a_failed_sync_raises_the_system_error(tmp_path: Path) -> None:
    """A pipe in place of the file cannot be synced: `sync` raises the system's own error."""
    log = ReplayCache(tmp_path / "calls.jsonl", secrets={}, token=TOKEN)
    log.sync()
    reader, writer = os.pipe()
    kept, log._file = log._file, writer
    with pytest.raises(OSError, match="argument"):
        log.sync()
    log._file = kept
    os.close(reader)
    os.close(writer)
    log.close()
    log.sync()
