"""Embeddings: asked for in OpenAI's form or in Gemini's, made by OpenAI's, Gemini's or Ollama's models.

OpenAI: https://platform.openai.com/docs/api-reference/embeddings; Gemini: https://ai.google.dev/api/embeddings;
Ollama: https://github.com/ollama/ollama/blob/main/docs/api.md#generate-embeddings.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from chargehand.core.errors import UpstreamError
from chargehand.models.contract import Call, Dialect, GatewayFault, ServedModel, Upstream, UpstreamReply, Usage
from chargehand.models.dialects.base import DialectRules, Metered, document, mapping, objects, tokens
from chargehand.models.dialects.conversation import UncarriedError, whole_number
from chargehand.models.dialects.gemini import GeminiRules, camel
from chargehand.models.dialects.table import RULES
from chargehand.models.dialects.translation import error_words
from chargehand.models.scripted_replies import reply_of
from chargehand.models.serving.routes import Route, Taker
from chargehand.models.serving.side_requests import EMBED_FIELDS, EmbedRules
from chargehand.models.serving.streams import LEFT_OUT, closing

_MAKERS: Mapping[Dialect, Dialect] = {"openai": "openai", "responses": "openai", "gemini": "gemini"}
"""In which form models of a dialect are asked; Anthropic has no embeddings."""
_ASKED = ("content", "taskType", "title", "outputDimensionality")
_ABSENT = frozenset({404, 405, 501})
_REPLY_BYTES = 64 * 1_048_576


class GeminiEmbedRules(GeminiRules):
    """`embedContent` and `batchEmbedContents`: they cost input only."""

    def output_limit(self, body: Mapping[str, Any]) -> int | None:
        """Return 0: nothing is written."""
        return 0

    def choices(self, body: Mapping[str, Any]) -> int:
        """Return 1."""
        return 1

    def prepared(self, body: Mapping[str, Any], model: str, cap: int | None) -> dict[str, Any]:
        """Return the body with the model replaced, which each part of a batch names anew."""
        if "requests" not in body:
            return {**body, "model": model}
        requests = [{**one, "model": f"models/{model}"} for one in objects(body["requests"])]
        return {**body, "model": model, "requests": requests}

    def metered(self, document: Mapping[str, Any]) -> Metered:
        """Return `usageMetadata.promptTokenCount`, which older models do not tell."""
        usage = mapping(document.get("usageMetadata"))
        return Metered(usage=Usage(input=tokens(usage.get("promptTokenCount")), output=0))


EMBED_RULES: Mapping[Dialect, DialectRules] = {"openai": EmbedRules(), "gemini": GeminiEmbedRules()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """What is to be embedded; `packed`: as base64 of little-endian floats, `single`: Gemini's form of one."""

    texts: tuple[str, ...]
    dimensions: int | None = None
    packed: bool = False
    single: bool = False
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Vectors:
    """What came of it, in order; `used` is `None` where the provider does not say."""

    vectors: tuple[tuple[float, ...], ...]
    used: int | None


def embedders(chain: Sequence[ServedModel], route: Route, given: Mapping[str, Any]) -> tuple[Taker, ...]:
    """Return who of a chain makes these embeddings, with the body; raises `GatewayFault` where nobody does."""
    body = _screened(route.dialect, given)
    good, skipped = list[Taker](), list[str]()
    for served in chain:
        reason = _unable(served, route.dialect, body)
        if reason:
            skipped.append(f"{served.name} ({served.model}): {reason}")
        else:
            good.append(Taker(served=served, body=body, skipped=tuple(skipped)))
    if not good:
        raise GatewayFault("uncarried", f"no model makes these embeddings: {'; '.join(skipped)}")
    return tuple(good)


def embedding_upstream(served: ServedModel, dialect: Dialect) -> Upstream:
    """Return who makes the embeddings of a model, for a client that asks in OpenAI's form or in Gemini's."""
    form = _MAKERS[served.dialect]
    upstream = OllamaEmbeddings(served.upstream) if served.ollama else served.upstream
    return upstream if form == dialect else TranslatingEmbeddings(upstream, form)


def _screened(dialect: Dialect, given: Mapping[str, Any]) -> dict[str, Any]:
    if dialect != "gemini":
        return {name: value for name, value in given.items() if name in EMBED_FIELDS}
    body = camel(given)
    many = "requests" in body
    asked = [_kept(one) for one in (objects(body["requests"]) if many else [body])]
    parts = [part for one in asked for part in objects(mapping(one.get("content")).get("parts"))]
    if any(set(part) - {"text"} or not isinstance(part.get("text"), str) for part in parts):
        raise GatewayFault("bad_request", "embeddings are made of text only here")
    model = {"model": body.get("model")}
    return {**model, "requests": asked} if many else {**model, **asked[0]}


def _kept(asked: Mapping[str, Any]) -> dict[str, Any]:
    return {name: asked[name] for name in _ASKED if name in asked}


def _unable(served: ServedModel, dialect: Dialect, body: Mapping[str, Any]) -> str:
    form = _MAKERS.get(served.dialect)
    if form is None:
        return "Anthropic's messages have no embeddings"
    try:
        if form != dialect:
            _READ[dialect](body)
    except UncarriedError as error:
        return str(error)
    return ""


class _Counted:
    """A count that is known already; see `Meter`."""

    def __init__(self, used: int | None) -> None:
        self._usage = Usage(input=used, output=0)

    def used(self) -> tuple[Usage, int]:
        return self._usage, 0


class TranslatingEmbeddings:
    """Puts calls for embeddings into the form `to` of `inner`, and the vectors back into that of the call."""

    def __init__(self, inner: Upstream, to: Dialect) -> None:
        self._inner = inner
        self._to = to

    async def send(self, call: Call) -> UpstreamReply:
        """Send one call; raises `UpstreamError` as `inner` does, and where its reply cannot be read."""
        model = str(call.body.get("model", ""))
        try:
            asked = _READ[call.dialect](call.body)
        except UncarriedError as error:
            raise UpstreamError(str(error), code="uncarried") from None
        body = EMBED_RULES[self._to].prepared(_WRITE[self._to](asked), model, None)
        reply = await self._inner.send(replace(call, dialect=self._to, body=body, headers={}))
        headers = {name.lower(): value for name, value in reply.headers.items() if name.lower() != "content-type"}
        if asked.left_out:
            headers[LEFT_OUT] = ", ".join(asked.left_out)
        content = await _whole(reply)
        if not 200 <= reply.status < 300:
            words = error_words(content) or f"the provider answered with HTTP {reply.status}"
            return reply_of(
                reply.status, [RULES[call.dialect].error(reply.status, "upstream_error", words)], headers=headers
            )
        made = _VECTORS[self._to](_document(content))
        return _answered(call, made, asked, headers)

    async def close(self) -> None:
        """Close the inner upstream."""
        await self._inner.close()


class OllamaEmbeddings:
    """Asks Ollama in OpenAI's form, and one that is too old for that by its own `/api/embed`."""

    def __init__(self, inner: Upstream) -> None:
        self._inner = inner

    async def send(self, call: Call) -> UpstreamReply:
        """Send one call; raises `UpstreamError` as `inner` does, and where its reply cannot be read."""
        reply = await self._inner.send(call)
        if reply.status not in _ABSENT:
            return reply
        refusal = await _whole(reply)
        try:
            asked = _read_openai(call.body)
        except UncarriedError:
            return reply_of(reply.status, [refusal])
        body: dict[str, Any] = {"model": call.body.get("model"), "input": list(asked.texts)}
        if asked.dimensions is not None:
            body["dimensions"] = asked.dimensions
        reply = await self._inner.send(replace(call, body=body, path="/api/embed"))
        content = await _whole(reply)
        if not 200 <= reply.status < 300:
            words = error_words(content) or error_words(refusal) or f"Ollama answered with HTTP {reply.status}"
            return reply_of(reply.status, [RULES[call.dialect].error(reply.status, "upstream_error", words)])
        return _answered(call, _ollama_vectors(_document(content)), asked, {})

    async def close(self) -> None:
        """Close the inner upstream."""
        await self._inner.close()


def _answered(call: Call, made: Vectors, asked: Texts, headers: Mapping[str, str]) -> UpstreamReply:
    if len(made.vectors) != len(asked.texts):
        raise _malformed(f"{len(made.vectors)} vectors came for {len(asked.texts)} texts")
    said = _SAY[call.dialect](made, asked, str(call.body.get("model", "")))
    reply = reply_of(200, [msgspec.json.encode(said)], headers=headers)
    return replace(reply, meter=_Counted(made.used))


async def _whole(reply: UpstreamReply) -> bytes:
    body = bytearray()
    async with closing(reply.chunks):
        async for chunk in reply.chunks:
            body += chunk
            if len(body) > _REPLY_BYTES:
                raise _malformed(f"the reply is larger than {_REPLY_BYTES} B")
    return bytes(body)


def _document(content: bytes) -> Mapping[str, Any]:
    try:
        return mapping(document(content))
    except ValueError:
        raise _malformed("the provider's reply is not JSON") from None


def _malformed(message: str) -> UpstreamError:
    return UpstreamError(message, code="upstream_malformed")


def _read_openai(body: Mapping[str, Any]) -> Texts:
    given = body.get("input")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UncarriedError("input", "embeddings of tokens mean nothing to another provider: send the text")
    return Texts(
        texts=tuple(texts),
        dimensions=whole_number(body.get("dimensions")),
        packed=body.get("encoding_format") == "base64",
        left_out=("user",) if "user" in body else (),
    )


def _read_gemini(body: Mapping[str, Any]) -> Texts:
    many = "requests" in body
    asked = objects(body["requests"]) if many else [body]
    sizes = {one.get("outputDimensionality") for one in asked}
    if len(sizes) > 1:
        raise UncarriedError("outputDimensionality", "other providers make all vectors of one call of one size")
    texts = ("".join(str(part.get("text", "")) for part in _parts(one)) for one in asked)
    hints = (name for name in ("taskType", "title") if any(one.get(name) for one in asked))
    return Texts(
        texts=tuple(texts),
        dimensions=whole_number(next(iter(sizes), None)),
        single=not many,
        left_out=tuple(hints),
    )


def _parts(asked: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return objects(mapping(asked.get("content")).get("parts"))


def _write_openai(asked: Texts) -> dict[str, Any]:
    size = {} if asked.dimensions is None else {"dimensions": asked.dimensions}
    return {"input": list(asked.texts), **size}


def _write_gemini(asked: Texts) -> dict[str, Any]:
    size = {} if asked.dimensions is None else {"outputDimensionality": asked.dimensions}
    return {"requests": [{"content": {"parts": [{"text": text}]}, **size} for text in asked.texts]}


def _openai_vectors(content: Mapping[str, Any]) -> Vectors:
    rows = sorted(objects(content.get("data")), key=lambda row: tokens(row.get("index")) or 0)
    used = tokens(mapping(content.get("usage")).get("prompt_tokens"))
    return Vectors(vectors=tuple(_vector(row.get("embedding")) for row in rows), used=used)


def _gemini_vectors(content: Mapping[str, Any]) -> Vectors:
    used = tokens(mapping(content.get("usageMetadata")).get("promptTokenCount"))
    rows = objects(content.get("embeddings")) or objects([content.get("embedding")])
    return Vectors(vectors=tuple(_vector(row.get("values")) for row in rows), used=used)


def _ollama_vectors(content: Mapping[str, Any]) -> Vectors:
    rows = content.get("embeddings")
    made = tuple(_vector(row) for row in rows) if isinstance(rows, list) else ()
    return Vectors(vectors=made, used=tokens(content.get("prompt_eval_count")))


def _vector(row: object) -> tuple[float, ...]:
    if isinstance(row, str):  # some make base64 unasked
        try:
            packed = base64.b64decode(row, validate=True)
            return struct.unpack(f"<{len(packed) // 4}f", packed)
        except (ValueError, struct.error):
            raise _malformed("a vector of the reply is no base64 of floats") from None
    if not isinstance(row, list) or not all(isinstance(one, int | float) for one in row):
        raise _malformed("a vector of the reply is no list of numbers")
    return tuple(float(one) for one in row)


def _say_openai(made: Vectors, asked: Texts, model: str) -> dict[str, Any]:
    data = [
        {"object": "embedding", "index": index, "embedding": _packed(vector) if asked.packed else vector}
        for index, vector in enumerate(made.vectors)
    ]
    usage = {} if made.used is None else {"usage": {"prompt_tokens": made.used, "total_tokens": made.used}}
    return {"object": "list", "data": data, "model": model, **usage}


def _say_gemini(made: Vectors, asked: Texts, model: str) -> dict[str, Any]:
    usage = {} if made.used is None else {"usageMetadata": {"promptTokenCount": made.used}}
    rows = [{"values": vector} for vector in made.vectors]
    return {"embedding": rows[0], **usage} if asked.single else {"embeddings": rows, **usage}


def _packed(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


_READ = {"openai": _read_openai, "gemini": _read_gemini}
_WRITE = {"openai": _write_openai, "gemini": _write_gemini}
_VECTORS = {"openai": _openai_vectors, "gemini": _gemini_vectors}
_SAY = {"openai": _say_openai, "gemini": _say_gemini}
