"""The dialects of models, and two official clients, talking to an upstream in the same process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
from tests.late import LateModule

from chargehand.models.contract import Dialect, ModelCall, ModelUpstream, UpstreamReply
from chargehand.models.registries import DIALECTS

__all__ = [
    "DIALECTS",
    "SECONDS",
    "UpstreamTransport",
    "anthropic",
    "anthropic_client",
    "call",
    "document",
    "openai",
    "openai_client",
    "read",
]
anthropic, openai = LateModule("anthropic"), LateModule("openai")

SECONDS = 5.0


def call(
    turn: int = 1,
    *,
    dialect: Dialect = "openai",
    attempt: str = "a",
    said: str = "hello",
    seconds: float = SECONDS,
    **body: Any,
) -> ModelCall:
    """Return a call with one user message."""
    messages = [{"role": "user", "content": said}]
    return ModelCall(
        id=f"c-{turn}",
        dialect=dialect,
        attempt=attempt,
        turn=turn,
        seconds=seconds,
        body={"model": "m", "messages": messages, **body},
    )


async def read(reply: UpstreamReply) -> bytes:
    """Return the whole body of a reply."""
    return b"".join([piece async for piece in reply.chunks])


async def document(reply: UpstreamReply) -> Any:
    """Return the body of a reply as JSON."""
    return json.loads(await read(reply))


class _Body(httpx2.AsyncByteStream):
    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._chunks:
            yield chunk

    async def aclose(self) -> None:
        await self._chunks.aclose()


class UpstreamTransport(httpx2.AsyncBaseTransport):
    """Passes a client's requests to an upstream, and the reply back in its pieces."""

    def __init__(self, upstream: ModelUpstream, dialect: Dialect) -> None:
        self.upstream, self.dialect, self.turn = upstream, dialect, 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.turn += 1
        body = json.loads(await request.aread())
        sent = ModelCall(id=f"c-{self.turn}", dialect=self.dialect, body=body, attempt="a", turn=self.turn)
        reply = await self.upstream.send(sent)
        return httpx2.Response(reply.status, headers=dict(reply.headers), stream=_Body(reply.chunks))


def openai_client(upstream: ModelUpstream) -> openai.AsyncOpenAI:
    """Return OpenAI's client."""
    http = httpx2.AsyncClient(transport=UpstreamTransport(upstream, "openai"))
    return openai.AsyncOpenAI(api_key="k", base_url="http://gateway/v1", http_client=http, max_retries=0)


def anthropic_client(upstream: ModelUpstream) -> anthropic.AsyncAnthropic:
    """Return Anthropic's client."""
    http = httpx2.AsyncClient(transport=UpstreamTransport(upstream, "anthropic"))
    return anthropic.AsyncAnthropic(api_key="k", base_url="http://gateway", http_client=http, max_retries=0)
