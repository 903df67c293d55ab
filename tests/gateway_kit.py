"""A scripted provider in this process, replies in both dialects, and a gateway with a client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from msgspec import Struct

from chargehand.core.clock import SteppedClock
from chargehand.core.ports import Ledger, Spent
from chargehand.models.contract import (
    CallListeners,
    CallRecord,
    Dialect,
    ModelCall,
    Price,
    ServedModel,
    UpstreamReply,
)
from chargehand.models.gateway import Gateway, GatewayLimits, ServedAttempt
from chargehand.models.metering import MemoryLedger

PRICE = Price(input=1.0, output=10.0, cached=0.1, cache_write=1.25)
SSE = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json"}
Piece = bytes | Exception | asyncio.Event
"""Bytes to send, an error to raise, or an event to wait for."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One reply of the scripted provider; `error` is raised instead of sending the head."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: JSON)
    pieces: Sequence[Piece] = ()
    error: Exception | None = None
    wait: asyncio.Event | None = None


class Scripted:
    """An upstream that answers with `replies` in turn (the last one repeatedly) and records the calls."""

    def __init__(self, *replies: Reply | Callable[[ModelCall], Reply]) -> None:
        self.replies = list(replies)
        self.calls: list[ModelCall] = []
        self.open = 0
        self.closed_early = 0

    async def send(self, call: ModelCall) -> UpstreamReply:
        reply = self.replies[min(len(self.calls), len(self.replies) - 1)]
        self.calls.append(call)
        reply = reply if isinstance(reply, Reply) else reply(call)
        if reply.wait is not None:
            await reply.wait.wait()
        if reply.error is not None:
            raise reply.error
        return UpstreamReply(status=reply.status, headers=reply.headers, chunks=self._chunks(reply))

    async def _chunks(self, reply: Reply) -> AsyncIterator[bytes]:
        self.open += 1
        whole = False
        try:
            for piece in reply.pieces:
                if isinstance(piece, Exception):
                    raise piece
                if isinstance(piece, asyncio.Event):
                    await piece.wait()
                    continue
                await asyncio.sleep(0)
                yield piece
            whole = True
        finally:
            self.open -= 1
            self.closed_early += not whole

    async def close(self) -> None:
        pass


def data(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(delta: dict[str, Any] | None = None, *, finish: str | None = None, **more: object) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "up"}
    return data({**head, "choices": choices, **more})


DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 100, "completion_tokens": 3, "total_tokens": 103}


def openai_stream(*words: str, usage: object = USAGE) -> list[Piece]:
    pieces: list[Piece] = [chunk({"role": "assistant", "content": word}) for word in words]
    tail = [chunk(None, usage=usage)] if usage else []
    return [*pieces, chunk({}, finish="stop"), *tail, DONE]


def openai_whole(text: str = "hello", usage: object = USAGE, **message: object) -> bytes:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text, **message}}
    whole = {"id": "x", "object": "chat.completion", "created": 1, "model": "up", "choices": [choice]}
    return json.dumps({**whole, **({"usage": usage} if usage else {})}).encode()


def event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\n".encode() + data({"type": kind, **fields})


CLAUDE_USAGE = {"input_tokens": 10, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 10}


def message(content: Sequence[object], **more: object) -> dict[str, Any]:
    head = {"id": "m", "type": "message", "role": "assistant", "model": "up", "content": list(content)}
    usage = {**CLAUDE_USAGE, "output_tokens": 3}
    return {**head, "stop_reason": "end_turn", "stop_sequence": None, "usage": usage, **more}


def anthropic_whole(text: str = "hello") -> bytes:
    return json.dumps(message([{"type": "text", "text": text}])).encode()


def anthropic_stream(*words: str, block: Mapping[str, object] | None = None) -> list[Piece]:
    start = message([], stop_reason=None, usage={**CLAUDE_USAGE, "output_tokens": 1})
    kind = "text" if block is None else "json"
    deltas = [
        event(
            "content_block_delta",
            index=0,
            delta={"type": "text_delta", "text": word}
            if kind == "text"
            else {"type": "input_json_delta", "partial_json": word},
        )
        for word in words
    ]
    return [
        event("message_start", message=start),
        event("content_block_start", index=0, content_block=block or {"type": "text", "text": ""}),
        event("ping"),
        *deltas,
        event("content_block_stop", index=0),
        event(
            "message_delta",
            delta={"stop_reason": "end_turn", "stop_sequence": None},
            usage={"output_tokens": 3},
        ),
        event("message_stop"),
    ]


@dataclass
class RunningGateway:
    """A running gateway, its client, and its reports."""

    gateway: Gateway
    client: httpx.AsyncClient
    upstream: Scripted
    ledger: Ledger
    records: list[CallRecord]
    alerts: list[Spent]
    waits: list[float]
    clock: SteppedClock

    async def post(self, body: object, path: str = "/v1/chat/completions", **more: Any) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.client.post(path, content=content, **more)

    async def settled(self) -> CallRecord:
        """Wait for the only call's record."""
        async with asyncio.timeout(60):
            while not self.records:
                await asyncio.sleep(0.002)
        (record,) = self.records
        return record


@asynccontextmanager
async def gateway(
    tmp_path: Path,
    *replies: Reply | Callable[[ModelCall], Reply],
    limit: float | None = 1.0,
    price: Price | None = PRICE,
    dialect: Dialect = "openai",
    max_output: int | None = None,
    ledger: Ledger | None = None,
    provider: str = "",
    **options: Any,
) -> AsyncIterator[RunningGateway]:
    upstream = Scripted(*replies)
    served = ServedModel(
        name="m",
        dialect=dialect,
        model="up",
        upstream=upstream,
        price=price,
        max_output=max_output,
        provider=provider,
    )
    records: list[CallRecord] = []
    alerts: list[Spent] = []
    waits: list[float] = []
    clock = SteppedClock()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    money = ledger or MemoryLedger(limit)
    options = {"sleep": sleep, "on_call": records.append, **options}

    def pick(record: type[Struct]) -> dict[str, Any]:
        return {name: options.pop(name) for name in record.__struct_fields__ if name in options}

    running = Gateway(
        [served],
        ServedAttempt(id="a-1", ledger=money, **pick(ServedAttempt)),
        CallListeners(on_alert=alerts.append, **pick(CallListeners)),
        limits=GatewayLimits(**pick(GatewayLimits)),
        clock=clock,
        **options,
    )
    path = tmp_path / "gateway.sock"
    async with running:
        await running.listen_unix(path)
        headers = {"authorization": f"Bearer {running.token}"}
        transport = httpx.AsyncHTTPTransport(uds=str(path), verify=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers) as client:
            yield RunningGateway(running, client, upstream, money, records, alerts, waits, clock)
