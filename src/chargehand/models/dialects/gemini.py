"""Gemini's own dialect: https://ai.google.dev/api/generate-content."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar
from urllib.parse import quote, unquote

from chargehand.models._json import as_limit, as_mapping, as_mappings, as_tokens, dump_json
from chargehand.models.contract import GatewayFault, ModelCall, Operation, ReplyUsage, Usage
from chargehand.models.conversation import FilePart, NeutralRequest, UntranslatableError
from chargehand.models.dialects.base import (
    UNKNOWN_USAGE,
    EmbeddingsFormat,
    EmbeddingTexts,
    EmbeddingVectors,
    ModelDialect,
    RequestRoute,
    StreamMeter,
    WireRequest,
    error_message,
    read_range,
    read_vector,
    screen_fields,
)
from chargehand.models.dialects.gemini_messages import (
    HINTS,
    GeminiReader,
    GeminiWriter,
    read_contents_request,
    write_contents_request,
)
from chargehand.models.dialects.shapes import CONTENTS
from chargehand.models.dialects.unread import list_unread

_ERROR_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    402: "RESOURCE_EXHAUSTED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_MOST_CHOICES = 8
_VERBS: Mapping[str, Operation] = {
    "generateContent": "reply",
    "streamGenerateContent": "reply",
    "countTokens": "count",
    "embedContent": "embed",
    "batchEmbedContents": "embed",
}
# Allowed fields: known to be free of extra charges and to reach no other system. All others are dropped, since a
# list of forbidden fields would always be outdated (decision 0010).
_FIELDS = frozenset(
    {"model", "stream", "contents", "systemInstruction", "tools", "toolConfig", "generationConfig"}
    | {"safetySettings", "labels"}
)
_EMBED_FIELDS = ("content", "taskType", "title", "outputDimensionality")
_UNDERSCORE = re.compile(r"_([a-z])")
# Fields with names chosen by the user, which are not respelt.
_OWN_NAMES = frozenset(
    {"args", "response", "parameters", "parametersJsonSchema", "responseSchema", "responseJsonSchema", "labels"}
)


class GeminiDialect(ModelDialect):
    """The dialect of `generateContent`; the body holds `model` and `stream`, which the wire has in the path."""

    name = "gemini"
    shape = CONTENTS
    required = ("candidates", "promptFeedback")
    endpoints: ClassVar[Mapping[str, Operation]] = {}
    reply_path = "/v1beta/models/{model}:generateContent"
    list_path = "/v1beta/models"
    list_field = "name"
    key_header = "x-goog-api-key"
    feature_headers = ("x-goog-", "x-vertex-ai-")
    plain_headers = frozenset({"x-goog-api-key", "x-goog-api-client"})
    count_field = "totalTokens"
    spelling: ClassVar[Mapping[str, str]] = {
        "effort": "generationConfig.thinkingConfig.thinkingLevel",
        "budget": "generationConfig.thinkingConfig.thinkingBudget",
        "summary": "generationConfig.thinkingConfig.includeThoughts",
        "temperature": "generationConfig.temperature",
        "top_p": "generationConfig.topP",
        "thoughts": "reasoning",
        "failed": "contents.parts.functionResponse.response.error",
        "file_name": "contents.parts.inlineData.displayName",
        "image_name": "contents.parts.inlineData.displayName",
        "detail": "generationConfig.mediaResolution",
        "choice": "toolConfig.functionCallingConfig.mode",
        **{name: f"generationConfig.{field}" for field, name in HINTS.items()},
    }

    def __init__(self) -> None:
        self.embeddings = GeminiEmbeddings(self)

    def find_route(self, place: str) -> RequestRoute | None:
        """Return the route of `/models/MODEL:VERB`."""
        model, colon, verb = unquote(place).removeprefix("/models/").rpartition(":")
        if not place.startswith("/models/") or not colon or verb not in _VERBS:
            return None
        named = {"model": model, "stream": verb == "streamGenerateContent"}
        return RequestRoute(dialect="gemini", operation=_VERBS[verb], named=named)

    def claims_path(self, path: str, place: str) -> bool:
        """Claim paths with a version of Gemini's."""
        return path.startswith(("/v1beta/", "/v1alpha/"))

    def write_model_list(self, names: Iterable[str]) -> bytes:
        """Return the list of models in the form that Gemini's clients read."""
        verbs = list(_VERBS)
        entries = [
            {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": verbs} for name in names
        ]
        return dump_json({"models": entries})

    def write_error(self, status: int, code: str, message: str) -> bytes:
        """Return `{"error": {...}}`; our code is among its details."""
        kind = _ERROR_STATUS.get(status, "INVALID_ARGUMENT" if status < 500 else "INTERNAL")
        info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": code, "domain": "chargehand"}
        return dump_json({"error": {"code": status, "message": message, "status": kind, "details": [info]}})

    def output_limit(self, body: Mapping[str, Any]) -> int | None:
        """Return `generationConfig.maxOutputTokens`."""
        return as_tokens(as_mapping(body.get("generationConfig")).get("maxOutputTokens"))

    def count_choices(self, body: Mapping[str, Any]) -> int:
        """Return `generationConfig.candidateCount`."""
        count = as_mapping(body.get("generationConfig")).get("candidateCount")
        return read_range(count, "candidateCount", _MOST_CHOICES)

    def prepare(self, body: Mapping[str, Any], model: str, limit: int | None) -> dict[str, Any]:
        """Return the body with model and limit replaced."""
        ready = {**body, "model": model}
        if limit is not None:
            ready["generationConfig"] = {**as_mapping(body.get("generationConfig")), "maxOutputTokens": limit}
        return ready

    def read_usage(self, document: Mapping[str, Any]) -> ReplyUsage:
        """Return `usageMetadata`; reasoning counts as output, tokens added by tools as input."""
        usage = as_mapping(document.get("usageMetadata"))
        given = as_tokens(usage.get("promptTokenCount"))
        brought = as_tokens(usage.get("toolUsePromptTokenCount"))
        written = as_tokens(usage.get("candidatesTokenCount"))
        thought = as_tokens(usage.get("thoughtsTokenCount"))
        total = as_tokens(usage.get("totalTokenCount"))
        if given is None:
            return UNKNOWN_USAGE
        read = given + (brought or 0)
        known = written is not None or thought is not None
        # A reply without text has no count of its output, only the total.
        output = (written or 0) + (thought or 0) if known else None if total is None else max(0, total - read)
        cached = as_tokens(usage.get("cachedContentTokenCount"))
        return ReplyUsage(usage=Usage(input=read, output=output, cached=cached))

    def stream_meter(self, body: Mapping[str, Any]) -> StreamMeter:
        """Return the meter of one stream."""
        return _GeminiStreamMeter(self, choices=self.count_choices(body))

    def screen(self, body: Mapping[str, Any]) -> WireRequest:
        """Return the known fields; raises `GatewayFault` for content stored and tools run at the provider."""
        body = _spell_camel(body)
        if body.get("cachedContent"):
            raise GatewayFault("bad_request", "`cachedContent` is not served: nothing is kept at the provider")
        for tool in as_mappings(body.get("tools")):
            others = sorted(name for name in tool if name != "functionDeclarations" and tool[name] is not None)
            if others:
                message = f"tool {others[0]!r:.60} is not served: the provider would run it"
                raise GatewayFault("bad_request", message)
        return screen_fields(body, _FIELDS)

    def read_part(self, part: Mapping[str, Any]) -> FilePart | None:
        """Return the content of `inlineData` or `fileData`."""
        given = as_mapping(part.get("inlineData") or part.get("fileData"))
        if not given:
            return None
        media = str(given.get("mimeType") or "")
        return FilePart(
            kind="image" if media.startswith("image/") else "file",
            media_type=media,
            data=str(given.get("data") or ""),
            name=str(given.get("displayName") or ""),
        )

    def text_part(self, text: str) -> Mapping[str, Any]:
        """Return a text part."""
        return {"text": text}

    def read_request(self, body: Mapping[str, Any]) -> NeutralRequest:
        """Read `contents`, `tools` and the settings of the reply."""
        return read_contents_request(body)

    def write_request(self, request: NeutralRequest, model: str) -> WireRequest:
        """Write a request."""
        return write_contents_request(request, model)

    def reply_reader(self, seed: str) -> GeminiReader:
        """Return the reader of one reply; calls without an id get one with `seed` in it."""
        return GeminiReader(self, seed)

    def reply_writer(self, model: str, id: str) -> GeminiWriter:
        """Return the writer of one reply."""
        return GeminiWriter(self, model, id)

    def locate(self, call: ModelCall) -> tuple[str, Mapping[str, Any]]:
        """Return a path with model and verb, and the body without both."""
        body = {name: value for name, value in call.body.items() if name not in ("model", "stream")}
        verb = "streamGenerateContent?alt=sse" if call.stream else "generateContent"
        if call.operation == "count":
            verb = "countTokens"
        elif call.operation == "embed":
            verb = "batchEmbedContents" if "requests" in body else "embedContent"
        return f"/v1beta/models/{quote(str(call.body.get('model', '')), safe='')}:{verb}", body


def _spell_camel(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body with its fields spelt as documented: Gemini accepts both `inlineData` and `inline_data`."""

    def respell(name: str, value: Any) -> Any:
        if name in _OWN_NAMES:
            return value
        if isinstance(value, dict):
            return _spell_camel(value)
        return [respell("", one) for one in value] if isinstance(value, list) else value

    names = {key: _UNDERSCORE.sub(lambda found: found[1].upper(), key) for key in body}
    return {names[key]: respell(names[key], value) for key, value in body.items()}


class _GeminiStreamMeter(StreamMeter):
    """Meters chunks; the stream has no last event, but ends with the connection."""

    shape = CONTENTS

    def __init__(self, dialect: GeminiDialect, *, choices: int) -> None:
        super().__init__()
        self._dialect = dialect
        self._choices = choices
        self._done: set[object] = set()

    def take(self, content: Mapping[str, Any]) -> bool:
        """Take in one chunk; all of them are sent to the client."""
        if content.get("error"):
            self.failed = error_message(content, "error")
        for candidate in as_mappings(content.get("candidates")):
            parts = as_mappings(as_mapping(candidate.get("content")).get("parts"))
            self.deltas += any(part.get("text") or part.get("functionCall") for part in parts)
            if candidate.get("finishReason"):
                self._done.add(str(candidate.get("index", 0)))
        blocked = bool(as_mapping(content.get("promptFeedback")).get("blockReason"))
        self.finished = blocked or len(self._done) >= self._choices
        if as_mapping(content.get("usageMetadata")):
            self.metered = self._dialect.read_usage(content)
        return True


class GeminiEmbeddings(EmbeddingsFormat):
    """Gemini's `embedContent` and `batchEmbedContents`: https://ai.google.dev/api/embeddings."""

    name = "gemini"

    def screen(self, body: Mapping[str, Any]) -> WireRequest:
        """Return the known fields; raises `GatewayFault` for content other than text."""
        body = _spell_camel(body)
        many = "requests" in body
        asked = [
            {name: one[name] for name in _EMBED_FIELDS if name in one}
            for one in (as_mappings(body["requests"]) if many else [body])
        ]
        parts = (part for one in asked for part in _list_parts(one))
        if any(set(part) - {"text"} or not isinstance(part.get("text"), str) for part in parts):
            raise GatewayFault("bad_request", "only text can be embedded here")
        known = {"requests": dict.fromkeys((*_EMBED_FIELDS, "model"))} if many else dict.fromkeys(_EMBED_FIELDS)
        left = tuple(dict.fromkeys(list_unread(body, {**known, "model": None, "stream": None})))
        model = {"model": body.get("model")}
        return WireRequest({**model, "requests": asked} if many else {**model, **asked[0]}, left)

    def prepare(self, body: Mapping[str, Any], model: str, limit: int | None) -> dict[str, Any]:
        """Return the body with the model replaced, also in each part of a batch, which repeats it."""
        if "requests" not in body:
            return {**body, "model": model}
        requests = [{**one, "model": f"models/{model}"} for one in as_mappings(body["requests"])]
        return {**body, "model": model, "requests": requests}

    def read_usage(self, document: Mapping[str, Any]) -> ReplyUsage:
        """Return `usageMetadata.promptTokenCount`, which older models do not report."""
        usage = as_mapping(document.get("usageMetadata"))
        return ReplyUsage(usage=Usage(input=as_tokens(usage.get("promptTokenCount")), output=0))

    def read_texts(self, body: Mapping[str, Any]) -> EmbeddingTexts:
        """Read one request or a batch, whose vectors must all have one size."""
        many = "requests" in body
        asked = as_mappings(body["requests"]) if many else [body]
        sizes = {one.get("outputDimensionality") for one in asked}
        if len(sizes) > 1:
            message = "other providers make all vectors of one call of one size"
            raise UntranslatableError("outputDimensionality", message)
        return EmbeddingTexts(
            texts=tuple("".join(str(part.get("text", "")) for part in _list_parts(one)) for one in asked),
            dimensions=as_limit(next(iter(sizes), None)),
            single=not many,
            left_out=tuple(name for name in ("taskType", "title") if any(one.get(name) for one in asked)),
        )

    def write_texts(self, asked: EmbeddingTexts) -> dict[str, Any]:
        """Write a batch."""
        size = {} if asked.dimensions is None else {"outputDimensionality": asked.dimensions}
        return {"requests": [{"content": {"parts": [{"text": text}]}, **size} for text in asked.texts]}

    def read_vectors(self, document: Mapping[str, Any]) -> EmbeddingVectors:
        """Read `embeddings`, or the only `embedding`."""
        used = as_tokens(as_mapping(document.get("usageMetadata")).get("promptTokenCount"))
        rows = as_mappings(document.get("embeddings")) or as_mappings([document.get("embedding")])
        return EmbeddingVectors(vectors=tuple(read_vector(row.get("values")) for row in rows), used=used)

    def write_vectors(self, made: EmbeddingVectors, asked: EmbeddingTexts, model: str) -> dict[str, Any]:
        """Write `embedding` for a single text, `embeddings` for a batch."""
        usage = {} if made.used is None else {"usageMetadata": {"promptTokenCount": made.used}}
        rows = [{"values": vector} for vector in made.vectors]
        return {"embedding": rows[0], **usage} if asked.single else {"embeddings": rows, **usage}


def _list_parts(asked: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return as_mappings(as_mapping(asked.get("content")).get("parts"))
