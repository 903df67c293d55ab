"""Waiting for a provider's slots and its share of a minute: first come, first served; a client may leave."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.gateway_kit import SSE, Reply, gateway, openai_stream

from chargehand.core.clock import SteppedClock
from chargehand.models.providers import ProviderAddress, ProviderLimits, Providers

WAITING = 200
STREAM = {"model": "m", "messages": [], "max_tokens": 10, "stream": True}


def standing(limits: ProviderLimits) -> tuple[ProviderAddress, SteppedClock]:
    clock = SteppedClock()
    return Providers({"one": limits}, clock=clock).of("one", "m").address, clock


async def test_waiting_calls_are_served_in_order_without_cancelled_calls() -> None:
    line, _ = standing(ProviderLimits(concurrency=4))
    served, within, most = list[int](), 0, 0

    async def one(number: int) -> None:
        nonlocal within, most
        async with line.hold_slot(asyncio.sleep):
            within += 1
            most = max(most, within)
            served.append(number)
            await asyncio.sleep(0)
            within -= 1

    tasks = [asyncio.create_task(one(number)) for number in range(WAITING)]
    await asyncio.sleep(0)
    for task in tasks[10::2]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert served == [*range(10), *range(11, WAITING, 2)]
    assert (within, most) == (0, 4)
    async with line.hold_slot(asyncio.sleep):  # no waiter that left kept a slot
        pass


async def test_cancelled_calls_use_no_share_of_the_rate_limit() -> None:
    line, clock = standing(ProviderLimits(per_minute=60))
    begun, turns = list[tuple[int, float]](), list[asyncio.Event]()
    start = clock.monotonic()

    async def sleep(seconds: float) -> None:
        turn = asyncio.Event()
        turns.append(turn)
        await turn.wait()
        clock.advance(seconds)

    async def one(number: int) -> None:
        async with line.hold_slot(sleep):
            begun.append((number, clock.monotonic() - start))

    tasks = [asyncio.create_task(one(number)) for number in range(WAITING)]
    while not turns:
        await asyncio.sleep(0)
    for task in tasks[1:-2]:
        task.cancel()
    await asyncio.gather(*tasks[1:-2], return_exceptions=True)
    while not all(task.done() for task in tasks):
        turns[-1].set()
        await asyncio.sleep(0)
    assert begun == [(0, 0.0), (WAITING - 2, 1.0), (WAITING - 1, 2.0)]


async def test_disconnected_clients_do_not_block_waiting_clients(tmp_path: Path) -> None:
    """Two hundred streams for two slots; every other client leaves while it waits."""
    go = asyncio.Event()
    limits = ProviderLimits(concurrency=2)
    first = Reply(headers=SSE, pieces=[go, *openai_stream("one", "two")])
    async with gateway(
        tmp_path, first, provider="one", providers=Providers({"one": limits}), limit=None
    ) as running:
        body = json.dumps(STREAM).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {running.gateway.token}\r\n"
            f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        lines = []
        for _ in range(WAITING):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "gateway.sock")
            writer.write(head.encode() + body)
            lines.append((reader, writer))
        while len(running.upstream.calls) < 2:
            await asyncio.sleep(0.001)
        for _, writer in lines[1::2]:
            writer.close()
        await asyncio.sleep(0.01)
        go.set()
        got = await asyncio.gather(*[reader.read() for reader, _ in lines[::2]])
        assert all(reply.startswith(b"HTTP/1.1 200") and b"[DONE]" in reply for reply in got)
        assert running.upstream.open == 0
        for _, writer in lines:
            writer.close()
        await asyncio.gather(*[writer.wait_closed() for _, writer in lines], return_exceptions=True)
