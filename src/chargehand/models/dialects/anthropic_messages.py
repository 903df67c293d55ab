"""Anthropic messages, read and written."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from chargehand.models.contract import STOP_WORDS, Dialect, Usage
from chargehand.models.dialects.anthropic import AnthropicRules, AnthropicTally
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
    Role,
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
from chargehand.models.metering import DEFAULT_OUTPUT

_CARRIED = frozenset(
    {"messages", "model", "stream", "system", "tools", "tool_choice", "max_tokens", "temperature", "top_p"}
    | {"stop_sequences", "output_config", "output_format"}
)
_STOPS = {word: stop for stop, word in STOP_WORDS["anthropic"].items()} | {"stop_sequence": "end"}
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_RULES = AnthropicRules()


class AnthropicCodec:
    """Messages."""

    name: Dialect = "anthropic"

    def asked(self, body: Mapping[str, Any]) -> Asked:
        """Read a request; reasoning is left out: it is signed for its own provider."""
        turns = []
        for message in objects(body.get("messages")):
            role: Role = "assistant" if message.get("role") == "assistant" else "user"
            turns.append(Turn(role=role, parts=tuple(_read_parts(message.get("content")))))
        given = mapping(body.get("tool_choice"))
        choice, chosen = _read_choice(given)
        config = mapping(body.get("output_config"))
        shape = mapping(config.get("format")) or mapping(body.get("output_format"))
        left = [name for name in body if name not in _CARRIED] + (["effort"] if config.get("effort") else [])
        return Asked(
            turns=named(merged(turns)),
            system=_read_system(body.get("system")),
            tools=tuple(_read_tools(body.get("tools"))),
            choice=choice,
            chosen=chosen,
            parallel=False if given.get("disable_parallel_tool_use") is True else None,
            limit=whole_number(body.get("max_tokens")),
            temperature=number(body.get("temperature")),
            top_p=number(body.get("top_p")),
            stop=words(body.get("stop_sequences")),
            schema=mapping(shape.get("schema")) or None,
            json=bool(shape),
            stream=body.get("stream") is True,
            left_out=tuple(sorted([*left, *_reasoning(body)])),
        )

    def body(self, asked: Asked, model: str) -> dict[str, Any]:
        """Write a request; a limit is put in where there is none, which this dialect asks for."""
        messages = [{"role": turn.role, "content": _blocks(turn)} for turn in asked.turns]
        limit = DEFAULT_OUTPUT if asked.limit is None else asked.limit
        body: dict[str, Any] = {"model": model, "messages": messages, "max_tokens": limit, "stream": asked.stream}
        if asked.system:
            body["system"] = [{"type": "text", "text": text} for text in asked.system]
        if asked.tools:
            body["tools"] = [_tool(tool) for tool in wrapped(asked.tools)]
            body |= _choice(asked)
        if asked.schema is not None:
            body["output_config"] = {"format": {"type": "json_schema", "schema": asked.schema}}
        elif asked.json:
            raise UncarriedError("json mode", "messages know no JSON mode without a schema")
        # Above 1 is the other dialects' own; this one's range ends there.
        heat = None if asked.temperature is None else min(asked.temperature, 1.0)
        hints = {"temperature": heat, "top_p": asked.top_p}
        body |= {name: value for name, value in hints.items() if value is not None}
        if asked.stop:
            body["stop_sequences"] = list(asked.stop)
        return body

    def reader(self, seed: str) -> AnthropicReader:
        """Return the reader of one reply."""
        return AnthropicReader()

    def writer(self, model: str, id: str) -> AnthropicWriter:
        """Return the writer of one reply."""
        return AnthropicWriter(model, id)


def _reasoning(body: Mapping[str, Any]) -> list[str]:
    blocks = [block for message in objects(body.get("messages")) for block in objects(message.get("content"))]
    return ["reasoning"] if any(str(block.get("type")).endswith("thinking") for block in blocks) else []


def _read_system(system: object) -> tuple[str, ...]:
    if isinstance(system, str):
        return (system,) if system else ()
    return tuple(str(block.get("text", "")) for block in objects(system))


def _read_parts(content: object) -> Iterator[Part]:
    if isinstance(content, str):
        if content:
            yield Text(text=content)
        return
    for block in objects(content):
        match block.get("type"):
            case "text":
                yield Text(text=str(block.get("text", "")))
            case "image" | "document":
                yield _read_blob(block)
            case "tool_use":
                arguments = json.dumps(block.get("input") or {})
                yield ToolUse(id=str(block.get("id", "")), name=str(block.get("name", "")), arguments=arguments)
            case "tool_result":
                inner = [part for part in _read_parts(block.get("content")) if isinstance(part, Text | Blob)]
                failed = block.get("is_error") is True
                yield ToolResult(id=str(block.get("tool_use_id", "")), content=tuple(inner), failed=failed)
            case "thinking" | "redacted_thinking":
                continue
            case kind:
                raise UncarriedError(str(kind), f"a block of type {kind!r:.40} means nothing to another dialect")


def _read_blob(block: Mapping[str, Any]) -> Text | Blob:
    source = mapping(block.get("source"))
    image = block.get("type") == "image"
    name = str(block.get("title") or "")
    match source.get("type"):
        case "base64":
            media, data = str(source.get("media_type", "")), str(source.get("data", ""))
            return Blob(media_type=media, data=data, name=name, kind="image" if image else "file")
        case "url":
            return Blob(url=str(source.get("url", "")), name=name, kind="image" if image else "file")
        case "text":
            return Text(text=str(source.get("data", "")))
    raise UncarriedError(
        str(block.get("type")), f"a source of type {source.get('type')!r:.40} stays with Anthropic"
    )


def _read_tools(tools: object) -> Iterator[Offer]:
    for tool in objects(tools):
        if tool.get("type") not in (None, "custom"):
            raise UncarriedError("tool", f"the tool type {tool['type']!r:.40} is Anthropic's own")
        yield Offer(
            name=str(tool.get("name", "")),
            description=str(tool.get("description") or ""),
            schema=mapping(tool.get("input_schema")),
        )


def _read_choice(choice: Mapping[str, Any]) -> tuple[Choice | None, str]:
    match choice.get("type"):
        case "auto" | "none" as kind:
            return kind, ""
        case "any":
            return "required", ""
        case "tool":
            return "tool", str(choice.get("name", ""))
    return None, ""


def _blocks(turn: Turn) -> list[dict[str, Any]]:
    # Results first: this dialect wants them right behind their calls.
    results = [part for part in turn.parts if isinstance(part, ToolResult)]
    others = [part for part in turn.parts if not isinstance(part, ToolResult)]
    return [_block(part) for part in (*results, *others)]


def _block(part: Part) -> dict[str, Any]:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Blob():
            source: dict[str, Any] = {"type": "base64", "media_type": part.media_type, "data": part.data}
            if part.url:
                source = {"type": "url", "url": part.url}
            return {"type": "image" if part.kind == "image" else "document", "source": source}
        case ToolUse():
            call = as_function(part)
            return {"type": "tool_use", "id": _legal(call.id), "name": call.name, "input": call.value()}
        case ToolResult():
            content = [_block(inner) for inner in part.content]
            failed = {"is_error": True} if part.failed else {}
            return {"type": "tool_result", "tool_use_id": _legal(part.id), "content": content, **failed}


def _legal(id: str) -> str:
    """Return an id as this dialect takes it: other dialects' may hold more than letters and digits."""
    return id if _ID.fullmatch(id) else f"id_{hashlib.sha256(id.encode(errors='replace')).hexdigest()[:32]}"


def _tool(tool: Offer) -> dict[str, Any]:
    described = {"description": tool.description} if tool.description else {}
    return {"name": tool.name, **described, "input_schema": tool.schema or {"type": "object", "properties": {}}}


def _choice(asked: Asked) -> dict[str, Any]:
    kinds = {"auto": "auto", "none": "none", "required": "any", "tool": "tool"}
    if asked.choice is None and asked.parallel is not False:
        return {}
    choice: dict[str, Any] = {"type": kinds[asked.choice or "auto"]}
    if asked.choice == "tool":
        choice["name"] = asked.chosen
    if asked.parallel is False and asked.choice != "none":
        choice["disable_parallel_tool_use"] = True
    return {"tool_choice": choice}


class AnthropicReader:
    """Reads one reply."""

    def __init__(self) -> None:
        self._tally = AnthropicTally()
        self._calls: dict[int, int] = {}
        self._word = ""

    def event(self, data: Mapping[str, Any]) -> list[Piece]:
        """Return what an event says."""
        self._tally.take(data)
        if self._tally.failed:
            return [Broken(message=self._tally.failed)]
        match data.get("type"):
            case "content_block_start":
                return list(
                    self._block(int(data.get("index", 0)), mapping(data.get("content_block")), whole=False)
                )
            case "content_block_delta":
                return list(self._delta(int(data.get("index", 0)), mapping(data.get("delta"))))
            case "message_delta":
                self._word = str(mapping(data.get("delta")).get("stop_reason") or self._word)
        return []

    def whole(self, document: Mapping[str, Any]) -> list[Piece]:
        """Return what a body says."""
        found: list[Piece] = []
        for index, block in enumerate(objects(document.get("content"))):
            found += self._block(index, block, whole=True)
        self._word = str(document.get("stop_reason") or "end_turn")
        return [*found, Ended(stop=self._stop(), usage=_RULES.metered(document).usage)]

    def end(self) -> list[Piece]:
        """Return the end, where the model said that it is done."""
        return [Ended(stop=self._stop(), usage=self._tally.metered().usage)] if self._word else []

    def _stop(self) -> Any:
        return _STOPS.get(self._word, "end")

    def _block(self, index: int, block: Mapping[str, Any], *, whole: bool) -> Iterator[Piece]:
        match block.get("type"):
            case "text" if block.get("text"):
                yield TextPiece(text=str(block["text"]))
            case "thinking" if block.get("thinking"):
                yield ThoughtPiece(text=str(block["thinking"]))
            case "tool_use":
                own = self._calls[index] = len(self._calls)
                yield CallBegun(index=own, id=str(block.get("id", "")), name=str(block.get("name", "")))
                if whole or block.get("input"):
                    yield CallPiece(index=own, text=json.dumps(block.get("input") or {}))

    def _delta(self, index: int, delta: Mapping[str, Any]) -> Iterator[Piece]:
        match delta.get("type"):
            case "text_delta":
                yield TextPiece(text=str(delta.get("text", "")))
            case "thinking_delta":
                yield ThoughtPiece(text=str(delta.get("thinking", "")))
            case "input_json_delta" if index in self._calls:
                yield CallPiece(index=self._calls[index], text=str(delta.get("partial_json", "")))


class AnthropicWriter:
    """Writes one reply; reasoning has no signature, which clients keep as it is."""

    def __init__(self, model: str, id: str) -> None:
        self._head = {"id": f"msg_{id}", "type": "message", "role": "assistant", "model": model}
        self._count = -1
        self._open = ""
        self._calls: dict[int, int] = {}

    def event(self, piece: Piece) -> bytes:
        """Return the events of one piece."""
        match piece:
            case TextPiece():
                block: dict[str, Any] = {"type": "text", "text": ""}
                return self._ready("text", block) + self._delta("text_delta", text=piece.text)
            case ThoughtPiece():
                block = {"type": "thinking", "thinking": "", "signature": ""}
                return self._ready("thinking", block) + self._delta("thinking_delta", thinking=piece.text)
            case CallBegun():
                block = {"type": "tool_use", "id": piece.id, "name": piece.name, "input": {}}
                begun = self._ready(f"call {piece.index}", block)
                self._calls[piece.index] = self._count
                return begun
            case CallPiece():
                if self._open != f"call {piece.index}":
                    raise UncarriedError("tool calls", "the provider sends two tool calls mixed into each other")
                return self._delta("input_json_delta", partial_json=piece.text)
            case Ended():
                return self._end(piece)
            case Broken():
                return _RULES.error_event(502, "upstream_error", piece.message)

    def _ready(self, what: str, block: Mapping[str, Any]) -> bytes:
        if self._open == what:
            return b""
        out = self._started() + self._closed()
        self._open = what
        self._count += 1
        return out + _event("content_block_start", index=self._count, content_block=block)

    def _started(self) -> bytes:
        if self._count >= 0:
            return b""
        usage = {"input_tokens": 0, "output_tokens": 0}
        begun: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        return _event("message_start", message={**self._head, **begun})

    def _closed(self) -> bytes:
        return _event("content_block_stop", index=self._count) if self._open else b""

    def _delta(self, kind: str, **fields: str) -> bytes:
        return _event("content_block_delta", index=self._count, delta={"type": kind, **fields})

    def _end(self, piece: Ended) -> bytes:
        out = self._started() + self._closed()
        stop = {"stop_reason": STOP_WORDS["anthropic"][piece.stop], "stop_sequence": None}
        out += _event("message_delta", delta=stop, usage=_usage(piece.usage or Usage()))
        return out + _event("message_stop")

    def whole(self, said: Said) -> dict[str, Any]:
        """Return a reply in one piece."""
        content: list[dict[str, Any]] = []
        if said.thoughts:
            content.append({"type": "thinking", "thinking": said.thoughts, "signature": ""})
        if said.text:
            content.append({"type": "text", "text": said.text})
        content += [_block(call) for call in said.calls]
        stop = {"stop_reason": STOP_WORDS["anthropic"][said.stop], "stop_sequence": None}
        return {**self._head, "content": content, **stop, "usage": _usage(said.usage)}


def _usage(usage: Usage) -> dict[str, int]:
    # This dialect counts what is cached apart from the rest of the input.
    cached, written = usage.cached or 0, usage.cache_write or 0
    return {
        "input_tokens": max(0, (usage.input or 0) - cached - written),
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": written,
        "output_tokens": usage.output or 0,
    }


def _event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\ndata: ".encode() + msgspec.json.encode({"type": kind, **fields}) + b"\n\n"
