"""Embeddings: requested in OpenAI's or Gemini's format, made by models of OpenAI, Gemini or Ollama."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from chargehand.core.errors import UpstreamError
from chargehand.models._json import as_tokens, dump_json
from chargehand.models.contract import (
    Dialect,
    ModelCall,
    ModelUpstream,
    ReplyUsage,
    ServedModel,
    UpstreamReply,
    Usage,
    reply_from_pieces,
)
from chargehand.models.conversation import UntranslatableError
from chargehand.models.dialects.base import (
    DialectTable,
    EmbeddingsFormat,
    EmbeddingTexts,
    EmbeddingVectors,
    read_vector,
)
from chargehand.models.dialects.left_out import LEFT_OUT, join_left_out
from chargehand.models.dialects.translation import parse_reply, read_error_message

# The answers of an Ollama without OpenAI's endpoint.
_ABSENT = frozenset({404, 405, 501})


def explain_refusal(served: ServedModel, dialect: Dialect, body: Mapping[str, Any], dialects: DialectTable) -> str:
    """Return why a model cannot make the embeddings that a client of `dialect` asks for; empty if it can."""
    form = dialects[served.dialect].embeddings
    if form is None:
        return f"models that speak the dialect {served.dialect} have no embeddings"
    try:
        if form.name != dialect:
            dialects[dialect].require_embeddings().read_texts(body)
    except UntranslatableError as error:
        return str(error)
    return ""


def embeddings_upstream(served: ServedModel, dialect: Dialect, dialects: DialectTable) -> ModelUpstream:
    """Return the upstream for a model's embeddings, for a client that asks in the format of `dialect`."""
    form = dialects[served.dialect].require_embeddings()
    upstream = OllamaEmbeddings(served.upstream, form) if served.ollama else served.upstream
    if form.name == dialect:
        return upstream
    return TranslatingEmbeddings(upstream, form, client=dialects[dialect].require_embeddings())


class TranslatingEmbeddings:
    """Translates calls for embeddings into the format of `inner`, and the vectors into that of the `client`."""

    def __init__(self, inner: ModelUpstream, form: EmbeddingsFormat, *, client: EmbeddingsFormat) -> None:
        self._inner = inner
        self._form = form
        self._client = client

    async def send(self, call: ModelCall) -> UpstreamReply:
        """Send one call; raises `UpstreamError` as `inner` does, and if its reply cannot be read."""
        try:
            asked = self._client.read_texts(call.body)
        except UntranslatableError as error:
            raise UpstreamError(str(error), code="uncarried") from None
        body = self._form.prepare(self._form.write_texts(asked), str(call.body.get("model", "")), None)
        reply = await self._inner.send(replace(call, dialect=self._form.name, body=body, headers={}))
        headers = {name: value for name, value in reply.lower_headers.items() if name != "content-type"}
        if asked.left_out:
            headers[LEFT_OUT] = ", ".join(join_left_out(asked.left_out))
        content = await reply.read_all()
        if not reply.is_success:
            message = read_error_message(content) or f"the provider answered with HTTP {reply.status}"
            refusal = self._client.write_error(reply.status, "upstream_error", message)
            return reply_from_pieces(reply.status, [refusal], headers=headers)
        made = self._form.read_vectors(parse_reply(content))
        return _write_reply(self._client, call, made, asked, headers)

    async def close(self) -> None:
        """Close the inner upstream."""
        await self._inner.close()


class OllamaEmbeddings:
    """Asks Ollama in OpenAI's format, and versions too old for that by their own `/api/embed`.

    https://github.com/ollama/ollama/blob/main/docs/api.md#generate-embeddings
    """

    def __init__(self, inner: ModelUpstream, form: EmbeddingsFormat) -> None:
        self._inner = inner
        self._form = form

    async def send(self, call: ModelCall) -> UpstreamReply:
        """Send one call; raises `UpstreamError` as `inner` does, and if its reply cannot be read."""
        reply = await self._inner.send(call)
        # Tried each time: that costs a millisecond on this machine, and needs no memory.
        if reply.status not in _ABSENT:
            return reply
        refusal = await reply.read_all()
        try:
            asked = self._form.read_texts(call.body)
        except UntranslatableError:
            return reply_from_pieces(reply.status, [refusal])
        body: dict[str, Any] = {"model": call.body.get("model"), "input": list(asked.texts)}
        if asked.dimensions is not None:
            body["dimensions"] = asked.dimensions
        reply = await self._inner.send(replace(call, body=body, path="/api/embed"))
        content = await reply.read_all()
        if not reply.is_success:
            message = read_error_message(content) or read_error_message(refusal)
            message = message or f"Ollama answered with HTTP {reply.status}"
            refusal = self._form.write_error(reply.status, "upstream_error", message)
            return reply_from_pieces(reply.status, [refusal])
        document = parse_reply(content)
        rows = document.get("embeddings")
        vectors = tuple(map(read_vector, rows)) if isinstance(rows, list) else ()
        made = EmbeddingVectors(vectors=vectors, used=as_tokens(document.get("prompt_eval_count")))
        names = ", ".join(join_left_out(asked.left_out))
        return _write_reply(self._form, call, made, asked, {LEFT_OUT: names} if names else {})

    async def close(self) -> None:
        """Close the inner upstream."""
        await self._inner.close()


def _write_reply(
    client: EmbeddingsFormat,
    call: ModelCall,
    made: EmbeddingVectors,
    asked: EmbeddingTexts,
    headers: Mapping[str, str],
) -> UpstreamReply:
    if len(made.vectors) != len(asked.texts):
        message = f"{len(made.vectors)} vectors came for {len(asked.texts)} texts"
        raise UpstreamError(message, code="reply_unreadable")
    document = client.write_vectors(made, asked, str(call.body.get("model", "")))
    metered = ReplyUsage(usage=Usage(input=made.used, output=0))
    return reply_from_pieces(200, [dump_json(document)], headers=headers, meter=lambda: metered)
