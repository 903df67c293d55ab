"""Gemini's own dialect, read and written; what it answers is in `_talk_gemini_reply`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from chargehand.models.contract import Dialect, Stop, Usage
from chargehand.models.dialects.base import mapping, objects
from chargehand.models.dialects.conversation import (
    Asked,
    Blob,
    Broken,
    CallBegun,
    CallPiece,
    Choice,
    Ended,
    Offer,
    Part,
    Piece,
    Said,
    Text,
    TextPiece,
    ThoughtPiece,
    ToolResult,
    ToolUse,
    Turn,
    UncarriedError,
    as_function,
    merged,
    named,
    number,
    whole_number,
    words,
    wrapped,
)
from chargehand.models.dialects.gemini import GeminiRules

_RULES = GeminiRules()
_STOPS: Mapping[str, Stop] = {"STOP": "end", "MAX_TOKENS": "length"}
_WORDS: Mapping[Stop, str] = {"end": "STOP", "tools": "STOP", "length": "MAX_TOKENS", "refusal": "SAFETY"}
_UNUSABLE = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE"})


class GeminiReader:
    """Reads one reply; calls that have no id get one with `seed` in it."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._count = 0
        self._word = ""
        self._usage: Usage | None = None

    def event(self, data: Mapping[str, Any]) -> list[Piece]:
        """Return what a chunk says."""
        if data.get("error"):
            return [Broken(message=str(mapping(data["error"]).get("message") or "error"))]
        if mapping(data.get("usageMetadata")):
            self._usage = _RULES.metered(data).usage
        if mapping(data.get("promptFeedback")).get("blockReason"):
            self._word = "SAFETY"
        found: list[Piece] = []
        for candidate in objects(data.get("candidates"))[:1]:
            for part in objects(mapping(candidate.get("content")).get("parts")):
                found += self._part(part)
            self._word = str(candidate.get("finishReason") or self._word)
        return [Broken(message=f"the reply ended with {self._word}")] if self._word in _UNUSABLE else found

    def whole(self, document: Mapping[str, Any]) -> list[Piece]:
        """Return what a body says."""
        return [*self.event(document), *self.end()]

    def end(self) -> list[Piece]:
        """Return the end, where the model said that it is done."""
        if not self._word:
            return []
        stop = _STOPS.get(self._word, "refusal")
        return [Ended(stop="tools" if self._count and stop == "end" else stop, usage=self._usage)]

    def _part(self, part: Mapping[str, Any]) -> Iterator[Piece]:
        text, call = part.get("text"), mapping(part.get("functionCall"))
        if isinstance(text, str) and text:
            yield ThoughtPiece(text=text) if part.get("thought") else TextPiece(text=text)
        elif call:
            index, self._count = self._count, self._count + 1
            own = str(call.get("id") or f"call_{self._seed}_{self._count}")
            yield CallBegun(index=index, id=own, name=str(call.get("name", "")))
            yield CallPiece(index=index, text=json.dumps(call.get("args") or {}))
        elif part.get("inlineData"):
            raise UncarriedError("image", "a picture that a model made cannot go to a client of another dialect")


class GeminiWriter:
    """Writes one reply; a call goes out when it is whole, for this dialect knows no half ones."""

    def __init__(self, model: str, id: str) -> None:
        self._head = {"modelVersion": model, "responseId": id}
        self._calls: dict[int, CallBegun] = {}
        self._texts: dict[int, str] = {}

    def event(self, piece: Piece) -> bytes:
        """Return the chunks of one piece."""
        match piece:
            case TextPiece():
                return self._chunk([{"text": piece.text}])
            case ThoughtPiece():
                return self._chunk([{"text": piece.text, "thought": True}])
            case CallBegun():
                self._calls[piece.index], self._texts[piece.index] = piece, ""
                return b""
            case CallPiece():
                self._texts[piece.index] += piece.text
                return b""
            case Ended():
                calls = [
                    ToolUse(id=call.id, name=call.name, arguments=self._texts[index])
                    for index, call in self._calls.items()
                ]
                return self._chunk(list(map(_call, calls)), _WORDS[piece.stop], piece.usage)
            case Broken():
                return _RULES.error_event(502, "upstream_error", piece.message)

    def _chunk(self, parts: list[dict[str, Any]], finish: str = "", usage: Usage | None = None) -> bytes:
        return b"data: " + msgspec.json.encode(self._document(parts, finish, usage)) + b"\n\n"

    def _document(self, parts: list[dict[str, Any]], finish: str, usage: Usage | None) -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
        if finish:
            candidate["finishReason"] = finish
        return {"candidates": [candidate], **self._head} | (
            {"usageMetadata": _usage(usage)} if usage is not None else {}
        )

    def whole(self, said: Said) -> dict[str, Any]:
        """Return a reply in one piece."""
        parts: list[dict[str, Any]] = [{"text": said.thoughts, "thought": True}] if said.thoughts else []
        parts += [{"text": said.text}] if said.text else []
        return self._document([*parts, *map(_call, said.calls)], _WORDS[said.stop], said.usage)


def _call(call: ToolUse) -> dict[str, Any]:
    return {"functionCall": {"id": call.id, "name": call.name, "args": call.value()}}


def _usage(usage: Usage) -> dict[str, int]:
    read, written = usage.input or 0, usage.output or 0
    cached = {} if usage.cached is None else {"cachedContentTokenCount": usage.cached}
    counts = {"promptTokenCount": read, "candidatesTokenCount": written, "totalTokenCount": read + written}
    return {**counts, **cached}


_CARRIED = frozenset(
    {"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "model", "stream"}
)
_CONFIG = frozenset(
    {"maxOutputTokens", "temperature", "topP", "stopSequences", "responseMimeType", "responseSchema"}
    | {"responseJsonSchema", "candidateCount"}
)
_MODES: Mapping[str, Choice] = {"AUTO": "auto", "NONE": "none", "ANY": "required", "VALIDATED": "auto"}
_ANY_SIGNATURE = "skip_thought_signature_validator"
"""What stands for a signature where another model made the call, by Google's page on thought signatures."""
_JSON = "application/json"


class GeminiCodec:
    """`generateContent`."""

    name: Dialect = "gemini"

    def asked(self, body: Mapping[str, Any]) -> Asked:
        """Read a request; reasoning is left out: it is signed for its own provider."""
        config = mapping(body.get("generationConfig"))
        if config.get("candidateCount") not in (None, 1):
            raise UncarriedError("candidateCount", "several replies at once cannot be asked of another dialect")
        system = objects(mapping(body.get("systemInstruction")).get("parts"))
        choice, chosen = _read_choice(mapping(mapping(body.get("toolConfig")).get("functionCallingConfig")))
        schema = config.get("responseJsonSchema") or _plain(config.get("responseSchema"))
        contents = objects(body.get("contents"))
        thought = any(part.get("thought") for content in contents for part in objects(content.get("parts")))
        left = [name for name in body if name not in _CARRIED]
        left += [*(name for name in config if name not in _CONFIG), *(["reasoning"] if thought else [])]
        return Asked(
            turns=named(merged(_read_contents(contents))),
            system=tuple(str(part["text"]) for part in system if part.get("text")),
            tools=tuple(_read_tools(body.get("tools"))),
            choice=choice,
            chosen=chosen,
            limit=whole_number(config.get("maxOutputTokens")),
            temperature=number(config.get("temperature")),
            top_p=number(config.get("topP")),
            stop=words(config.get("stopSequences")),
            schema=mapping(schema) or None,
            json=config.get("responseMimeType") == _JSON,
            stream=body.get("stream") is True,
            left_out=tuple(sorted(left)),
        )

    def body(self, asked: Asked, model: str) -> dict[str, Any]:
        """Write a request."""
        contents = [
            {"role": "model" if turn.role == "assistant" else "user", "parts": list(_parts(turn, model))}
            for turn in asked.turns
        ]
        body: dict[str, Any] = {"contents": contents, "model": model, "stream": asked.stream}
        if asked.system:
            body["systemInstruction"] = {"parts": [{"text": text} for text in asked.system]}
        if asked.tools:
            body["tools"] = [{"functionDeclarations": [_tool(tool) for tool in wrapped(asked.tools)]}]
            if asked.choice is not None:
                body["toolConfig"] = {"functionCallingConfig": _choice(asked)}
        config: dict[str, Any] = {
            "maxOutputTokens": asked.limit,
            "temperature": asked.temperature,
            "topP": asked.top_p,
            "stopSequences": list(asked.stop) or None,
            "responseMimeType": _JSON if asked.json else None,
            "responseJsonSchema": asked.schema,
        }
        config = {name: value for name, value in config.items() if value is not None}
        return body | ({"generationConfig": config} if config else {})

    def reader(self, seed: str) -> GeminiReader:
        """Return the reader of one reply."""
        return GeminiReader(seed)

    def writer(self, model: str, id: str) -> GeminiWriter:
        """Return the writer of one reply."""
        return GeminiWriter(model, id)


def _read_contents(contents: list[Mapping[str, Any]]) -> Iterator[Turn]:
    """Yield the turns; calls without an id get one, and their results the same by name and order."""
    unanswered: dict[str, list[str]] = {}
    count = 0
    for content in contents:
        parts: list[Part] = []
        for part in objects(content.get("parts")):
            if part.get("functionCall"):
                count += 1
                call = _read_call(mapping(part["functionCall"]), f"call_{count}")
                unanswered.setdefault(call.name, []).append(call.id)
                parts.append(call)
            elif part.get("functionResponse"):
                parts.append(_read_result(mapping(part["functionResponse"]), unanswered))
            else:
                parts.extend(_read_part(part))
        yield Turn(role="assistant" if content.get("role") == "model" else "user", parts=tuple(parts))


def _read_call(call: Mapping[str, Any], default: str) -> ToolUse:
    arguments = json.dumps(call.get("args") or {})
    return ToolUse(id=str(call.get("id") or default), name=str(call.get("name", "")), arguments=arguments)


def _read_result(given: Mapping[str, Any], unanswered: dict[str, list[str]]) -> ToolResult:
    name, waiting = str(given.get("name", "")), unanswered.get(str(given.get("name", "")), [])
    own = str(given.get("id") or (waiting[0] if waiting else ""))
    if own in waiting:
        waiting.remove(own)
    if not own:
        raise UncarriedError("functionResponse", f"a result of {name!r:.80} answers no call")
    said = mapping(given.get("response"))
    content: list[Text | Blob] = []
    (key, value), *more = said.items() or [("output", "")]
    if not more and key in ("output", "result", "error") and isinstance(value, str):
        content = [Text(text=value)] if value else []
    else:
        content = [Text(text=json.dumps(said, ensure_ascii=False))]
    content += [blob for part in objects(given.get("parts")) for blob in _read_part(part)]
    return ToolResult(id=own, name=name, content=tuple(content), failed=not more and key == "error")


def _read_part(part: Mapping[str, Any]) -> Iterator[Text | Blob]:
    if part.get("thought"):
        return
    if isinstance(part.get("text"), str):
        if part["text"]:
            yield Text(text=part["text"])
    elif part.get("inlineData"):
        data = mapping(part["inlineData"])
        yield _blob(str(data.get("mimeType", "")), data=str(data.get("data", "")))
    elif part.get("fileData"):
        data = mapping(part["fileData"])
        yield _blob(str(data.get("mimeType", "")), url=str(data.get("fileUri", "")))
    elif set(part) - {"thoughtSignature"}:
        kind = ", ".join(sorted(part))
        raise UncarriedError(kind, f"a part with {kind[:80]!r} means nothing to another dialect")


def _blob(media: str, *, data: str = "", url: str = "") -> Blob:
    if url.startswith("https://generativelanguage.googleapis.com/"):
        raise UncarriedError("fileData", "a file kept by Google cannot go to another provider")
    return Blob(media_type=media, data=data, url=url, kind="image" if media.startswith("image/") else "file")


def _read_tools(tools: object) -> Iterator[Offer]:
    for tool in objects(tools):
        for one in objects(tool.get("functionDeclarations")):
            schema = one.get("parametersJsonSchema") or _plain(one.get("parameters"))
            yield Offer(
                name=str(one.get("name", "")),
                description=str(one.get("description") or ""),
                schema=mapping(schema),
            )


def _plain(schema: object) -> Any:
    """Return a schema with its types as JSON Schema spells them, in lower case."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    plain: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "type" and isinstance(value, str):
            plain[key] = value.lower()
        elif key == "properties" and isinstance(value, dict):
            plain[key] = {name: _plain(inner) for name, inner in value.items()}
        elif key in ("enum", "required", "example", "default"):
            plain[key] = value
        elif key != "propertyOrdering":
            plain[key] = _plain(value)
    if plain.pop("nullable", False) is True and isinstance(plain.get("type"), str):
        plain["type"] = [plain["type"], "null"]
    return plain


def _read_choice(config: Mapping[str, Any]) -> tuple[Choice | None, str]:
    if not config:
        return None, ""
    names = words(config.get("allowedFunctionNames"))
    mode = _MODES.get(str(config.get("mode", "AUTO")), "auto")
    if len(names) > 1:
        raise UncarriedError("toolConfig", "a choice among some of the tools means nothing to another dialect")
    return ("tool", names[0]) if names and mode == "required" else (mode, "")


def _choice(asked: Asked) -> dict[str, Any]:
    if asked.choice == "tool":
        return {"mode": "ANY", "allowedFunctionNames": [asked.chosen]}
    return {"mode": {"auto": "AUTO", "none": "NONE", "required": "ANY"}[asked.choice or "auto"]}


def _tool(tool: Offer) -> dict[str, Any]:
    described = {"description": tool.description} if tool.description else {}
    shape = tool.schema or {"type": "object", "properties": {}}
    return {"name": tool.name, **described, "parametersJsonSchema": shape}


def _parts(turn: Turn, model: str) -> Iterator[dict[str, Any]]:
    behind: list[Part] = []
    signed = False
    for part in turn.parts:
        match part:
            case ToolUse():
                call = as_function(part)
                made: dict[str, Any] = {"functionCall": {"id": call.id, "name": call.name, "args": call.value()}}
                if model.startswith("gemini-3") and not signed:
                    made["thoughtSignature"] = _ANY_SIGNATURE
                signed = True
                yield made
            case ToolResult():
                if not part.name:
                    raise UncarriedError("tool result", f"the result {part.id!r:.80} answers no call")
                said = {"error" if part.failed else "output": part.text}
                yield {"functionResponse": {"id": part.id, "name": part.name, "response": said}}
                if part.blobs:
                    behind += [Text(text=f"What tool call {part.id} returned beside its text:"), *part.blobs]
            case _:
                behind.append(part)
                if turn.role == "assistant":
                    yield _part(behind.pop())
    yield from map(_part, behind)


def _part(part: Part) -> dict[str, Any]:
    match part:
        case Text():
            return {"text": part.text}
        case Blob() if part.url:
            return {"fileData": {"fileUri": part.url} | ({"mimeType": part.media_type} if part.media_type else {})}
        case Blob():
            return {"inlineData": {"mimeType": part.media_type, "data": part.data}}
    raise UncarriedError("part", "a tool's part stands where words belong")
