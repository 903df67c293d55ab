"""The benchmark `gateway`'s other processes: the upstream, and the gateway under test.

`python -m benchmarks.gateway_side upstream` and `… gateway PLACE PORT` (of the upstream) print one JSON line when
they are ready. The gateway process reads commands from its input: `open N` opens more gateways and prints a JSON
line.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

TOKEN_TEXT = "a few letters of output"
PIECES = {"reply": 40, "many": 4_000, "paced": 50}
"""The number of tokens in the stream of each model; the whole reply of `reply` is as long as its text."""
PACE_SECONDS = 0.04
_TOKEN = "cht-a-token-for-everybody-in-the-benchmark"
_FLUSH = 64
_LIMIT_USD = 1e6


def _document(body: Mapping[str, Any]) -> bytes:
    return json.dumps({"id": "c-1", "created": 1, "model": "m", **body}).encode()


def _event(delta: Mapping[str, str], finish: str | None = None, **more: object) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + _document({"object": "chat.completion.chunk", "choices": [choice], **more}) + b"\n\n"


_USAGE = {"prompt_tokens": 5_000, "completion_tokens": 500, "total_tokens": 5_500}
EVENT = _event({"content": TOKEN_TEXT})
"""One token; every second one has different letters, because the peer reports a hundred equal ones as a fault."""
_END = _event({}, "stop", usage=_USAGE) + b"data: [DONE]\n\n"
_WHOLE = _document(
    {
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": TOKEN_TEXT * 80},
            }
        ],
        "usage": _USAGE,
    }
)
_JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(_WHOLE)
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
_SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_TOKENS = _chunk(EVENT), _chunk(EVENT.replace(b"letters", b"symbols"))
_LAST = _chunk(_END) + b"0\r\n\r\n"


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every request of one connection until the client closes it."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError), contextlib.closing(writer):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"POST "):
                writer.write(_NOT_FOUND)  # the peer requests the list of models when it starts
                continue
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            request = json.loads(await reader.readexactly(int(length)))
            if not request.get("stream"):
                writer.write(_JSON_HEAD + _WHOLE)
                continue
            writer.write(_SSE_HEAD)
            await _stream(writer, request["model"])


async def _stream(writer: asyncio.StreamWriter, model: str) -> None:
    """Write each token separately, as providers do."""
    paced = model == "paced"
    for number in range(PIECES[model]):
        writer.write(_TOKENS[number % 2])
        if paced:
            await asyncio.sleep(PACE_SECONDS)
        elif number % _FLUSH == 0:
            await writer.drain()
    writer.write(_LAST)
    await writer.drain()


async def _upstream() -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0, backlog=1_024)
    _say(port=server.sockets[0].getsockname()[1])
    async with server:
        await asyncio.to_thread(sys.stdin.read)  # until the starting process is gone
        os._exit(0)


async def _gateway(place: Path, upstream_port: int) -> None:
    """Serve as for an attempt: money in the store, calls in the log, replies in the attempt's file."""
    from chargehand.core.clock import SystemClock
    from chargehand.core.mission_events import MissionCreated
    from chargehand.core.records import MissionRequest
    from chargehand.missions.attempt.log import call_event
    from chargehand.missions.journal import Journal
    from chargehand.models.contract import CallListeners, Price, ServedModel
    from chargehand.models.gateway import Gateway, ServedAttempt
    from chargehand.models.http_upstream import HttpUpstream
    from chargehand.models.metering import MemoryLedger
    from chargehand.models.replay_cache import ReplayCache
    from chargehand.store.ledger import SpendingLimits
    from chargehand.store.store import open_store

    async with contextlib.AsyncExitStack() as stack:
        store = stack.enter_context(open_store(place))
        request = MissionRequest(text="x", agent="a", command=(), slug="x")
        store.log.append("m-1", MissionCreated(project="p", repository="/r", request=request))
        journal = Journal(store, "m-1", clock=SystemClock())

        def told(record: Any) -> None:
            journal.record(call_event(record))

        async def opened(number: int, *, kept: bool = True) -> dict[str, Any]:
            upstream = HttpUpstream(f"http://127.0.0.1:{upstream_port}/v1", "key", "openai")
            stack.push_async_callback(upstream.close)
            attempt = f"a-{number}"
            limits = SpendingLimits(attempt_usd=_LIMIT_USD, mission_usd=_LIMIT_USD, day_usd=_LIMIT_USD)
            ledger = store.spending.ledger(mission="m-1", attempt=attempt, limits=limits)
            calls = None
            if kept:
                calls = ReplayCache(place / f"{attempt}.jsonl", secrets={"key": "no-secret-is-this"}, token=_TOKEN)
                stack.callback(calls.close)
            price = Price(input=1.0, output=4.0)
            gateway = Gateway(
                [
                    ServedModel(name=name, dialect="openai", model=name, upstream=upstream, price=price)
                    for name in PIECES
                ],
                ServedAttempt(
                    id=attempt,
                    ledger=ledger if kept else MemoryLedger(_LIMIT_USD),
                    calls=calls,
                    token=_TOKEN,
                ),
                CallListeners(on_call=told if kept else lambda _: None, on_loop=True),
            )
            await stack.enter_async_context(gateway)
            await gateway.listen_unix(place / f"{attempt}.sock")
            port = await gateway.listen_tcp()
            return {"port": port, "socket": str(place / f"{attempt}.sock"), "token": gateway.token}

        _say(**await opened(0), memory=await opened(-1, kept=False))
        while line := await asyncio.to_thread(sys.stdin.readline):
            _say(opened=[await opened(number) for number in range(1, int(line.split()[1]) + 1)])


def _say(**values: object) -> None:
    print(json.dumps(values), flush=True)


_SIDES: dict[str, Callable[[list[str]], Any]] = {
    "upstream": lambda _: _upstream(),
    "gateway": lambda given: _gateway(Path(given[0]), int(given[1])),
}

if __name__ == "__main__":
    asyncio.run(_SIDES[sys.argv[1]](sys.argv[2:]))
