"""Shared by OpenAI's two dialects: the format of errors, and of embeddings."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from typing import Any

from chargehand.models._json import as_limit, as_mapping, as_mappings, as_tokens, dump_json
from chargehand.models.contract import ReplyUsage, Usage
from chargehand.models.conversation import UntranslatableError
from chargehand.models.dialects.base import (
    EmbeddingsFormat,
    EmbeddingTexts,
    EmbeddingVectors,
    ModelDialect,
    WireRequest,
    read_vector,
    screen_fields,
)

_ERROR_TYPES = {400: "invalid_request_error", 401: "authentication_error", 402: "insufficient_quota"}
_EMBED_FIELDS = frozenset({"model", "input", "dimensions", "encoding_format", "user"})


class OpenAIDialect(ModelDialect):
    """A dialect of OpenAI's; models of either make embeddings in the older form, that of chat completions."""

    def __init__(self) -> None:
        self.embeddings = OpenAIEmbeddings(self)

    def write_error(self, status: int, code: str, message: str) -> bytes:
        """Return `{"error": {...}}`."""
        kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        return dump_json({"error": {"message": message, "type": kind, "param": None, "code": code}})


class OpenAIEmbeddings(EmbeddingsFormat):
    """Embeddings: https://platform.openai.com/docs/api-reference/embeddings."""

    name = "openai"

    def screen(self, body: Mapping[str, Any]) -> WireRequest:
        """Return the known fields."""
        return screen_fields(body, _EMBED_FIELDS)

    def prepare(self, body: Mapping[str, Any], model: str, limit: int | None) -> dict[str, Any]:
        """Return the body with the model replaced."""
        return {**body, "model": model}

    def read_usage(self, document: Mapping[str, Any]) -> ReplyUsage:
        """Return `usage.prompt_tokens`."""
        usage = as_mapping(document.get("usage"))
        return ReplyUsage(usage=Usage(input=as_tokens(usage.get("prompt_tokens")), output=0))

    def read_texts(self, body: Mapping[str, Any]) -> EmbeddingTexts:
        """Read `input`, which must be text: tokens mean nothing to another provider."""
        given = body.get("input")
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            message = "embeddings of tokens have no equivalent at another provider: send the text"
            raise UntranslatableError("input", message)
        return EmbeddingTexts(
            texts=tuple(texts),
            dimensions=as_limit(body.get("dimensions")),
            packed=body.get("encoding_format") == "base64",
            left_out=("user",) if "user" in body else (),
        )

    def write_texts(self, asked: EmbeddingTexts) -> dict[str, Any]:
        """Write `input` and `dimensions`."""
        size = {} if asked.dimensions is None else {"dimensions": asked.dimensions}
        return {"input": list(asked.texts), **size}

    def read_vectors(self, document: Mapping[str, Any]) -> EmbeddingVectors:
        """Read `data`, in the order of its indexes."""
        rows = sorted(as_mappings(document.get("data")), key=lambda row: as_tokens(row.get("index")) or 0)
        used = as_tokens(as_mapping(document.get("usage")).get("prompt_tokens"))
        return EmbeddingVectors(vectors=tuple(read_vector(row.get("embedding")) for row in rows), used=used)

    def write_vectors(self, made: EmbeddingVectors, asked: EmbeddingTexts, model: str) -> dict[str, Any]:
        """Write `data`, as base64 if requested."""
        data = []
        for index, vector in enumerate(made.vectors):
            packed = (
                base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode() if asked.packed else vector
            )
            data.append({"object": "embedding", "index": index, "embedding": packed})
        usage = {} if made.used is None else {"usage": {"prompt_tokens": made.used, "total_tokens": made.used}}
        return {"object": "list", "data": data, "model": model, **usage}
