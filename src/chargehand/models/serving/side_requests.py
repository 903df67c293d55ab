"""What is asked beside replies: the tokens of a request, and embeddings."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any

import msgspec

from chargehand.core.errors import UpstreamError
from chargehand.models.contract import Call, Dialect, Upstream, UpstreamReply, Usage
from chargehand.models.dialects.base import Metered, document, mapping, objects, tokens
from chargehand.models.dialects.openai_chat import OpenAIRules
from chargehand.models.scripted_replies import reply_of
from chargehand.models.serving.streams import closing

_BYTES_A_TOKEN = 4
_DIMENSIONS = 8
EMBED_FIELDS = frozenset({"model", "input", "dimensions", "encoding_format", "user"})


class EmbedRules(OpenAIRules):
    """Embeddings: they cost input only."""

    def output_limit(self, body: Mapping[str, Any]) -> int | None:
        """Return 0: nothing is written."""
        return 0

    def prepared(self, body: Mapping[str, Any], model: str, cap: int | None) -> dict[str, Any]:
        """Return the body with the model replaced."""
        return {**body, "model": model}

    def metered(self, document: Mapping[str, Any]) -> Metered:
        """Return `usage.prompt_tokens`."""
        return Metered(usage=Usage(input=tokens(mapping(document.get("usage")).get("prompt_tokens")), output=0))


def is_bare(body: Mapping[str, Any]) -> bool:
    """Return whether a request offers no tool, as those for a title, a summary or a look at the quota do."""
    return not body.get("tools")


def estimate(body: Mapping[str, Any]) -> int:
    """Return about how many tokens a request has: one for four bytes of it, rounded up."""
    said = {name: value for name, value in body.items() if name not in ("model", "stream")}
    return -(-len(msgspec.json.encode(said)) // _BYTES_A_TOKEN)


def counted(dialect: Dialect, count: int) -> bytes:
    """Return a count of tokens as a dialect says it."""
    return msgspec.json.encode({"totalTokens": count} if dialect == "gemini" else {"input_tokens": count})


async def asked_count(upstream: Upstream, call: Call) -> bytes | None:
    """Return what a provider counts, `None` where it does not or something is wrong: then it is estimated."""
    try:
        async with asyncio.timeout(call.seconds):
            reply = await upstream.send(call)
            async with closing(reply.chunks):
                body = b"".join([chunk async for chunk in reply.chunks])
    except (UpstreamError, TimeoutError):
        return None
    name = "totalTokens" if call.dialect == "gemini" else "input_tokens"
    try:
        known = tokens(mapping(document(body)).get(name)) is not None
    except ValueError:
        return None
    return body if reply.status == 200 and known else None


def side_reply(call: Call) -> UpstreamReply:
    """Answer what is asked beside replies where no provider is: by the bytes, the same every time."""
    if call.operation == "count":
        return reply_of(200, [counted(call.dialect, estimate(call.body))])
    if call.dialect == "gemini":
        return reply_of(200, [json.dumps(_gemini_embeddings(call.body)).encode()])
    given = call.body.get("input")
    texts = given if isinstance(given, list) else [given]
    packed = call.body.get("encoding_format") == "base64"
    made = [_packed(_vector(text)) if packed else _vector(text) for text in texts]
    data = [{"object": "embedding", "index": n, "embedding": vector} for n, vector in enumerate(made)]
    read = estimate({"input": given})
    usage = {"prompt_tokens": read, "total_tokens": read}
    document = {"object": "list", "data": data, "model": call.body.get("model"), "usage": usage}
    return reply_of(200, [json.dumps(document).encode()])


def _gemini_embeddings(body: Mapping[str, Any]) -> dict[str, Any]:
    many = "requests" in body
    asked = objects(body["requests"]) if many else [body]
    rows = [{"values": _vector(_words(one))} for one in asked]
    usage = {"promptTokenCount": sum(estimate({"content": _words(one)}) for one in asked)}
    return {**({"embeddings": rows} if many else {"embedding": rows[0]}), "usageMetadata": usage}


def _words(asked: Mapping[str, Any]) -> str:
    return "".join(str(part.get("text", "")) for part in objects(mapping(asked.get("content")).get("parts")))


def _vector(text: object) -> list[float]:
    digest = hashlib.sha256(json.dumps(text).encode()).digest()[:_DIMENSIONS]
    return [byte / 255 for byte in digest]


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
