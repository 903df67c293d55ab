"""OpenAI chat completions, read and written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from chargehand.models.contract import STOP_WORDS, Dialect, Usage
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
    blob_from_url,
    data_url,
    merged,
    named,
    number,
    words,
    wrapped,
)
from chargehand.models.dialects.openai_chat import OpenAIRules

_CARRIED = frozenset(
    {"messages", "model", "stream", "stream_options", "tools", "tool_choice", "parallel_tool_calls", "stop"}
    | {"max_tokens", "max_completion_tokens", "temperature", "top_p", "response_format", "reasoning_effort", "n"}
)
_STOPS = {word: stop for stop, word in STOP_WORDS["openai"].items()} | {"function_call": "tools"}
_RULES = OpenAIRules()


class OpenAICodec:
    """Chat completions."""

    name: Dialect = "openai"

    def asked(self, body: Mapping[str, Any]) -> Asked:
        """Read a request."""
        for field in ("functions", "function_call", "logprobs", "audio"):
            if body.get(field):
                raise UncarriedError(field, f"`{field}` means nothing to another dialect")
        if body.get("n") not in (None, 1):
            raise UncarriedError("n", "several replies at once cannot be asked of another dialect")
        system, turns = _read_messages(objects(body.get("messages")))
        choice, chosen = _read_choice(body.get("tool_choice"))
        wanted = mapping(body.get("response_format"))
        parallel = body.get("parallel_tool_calls")
        return Asked(
            turns=named(merged(turns)),
            system=tuple(system),
            tools=tuple(_read_tools(body.get("tools"))),
            choice=choice,
            chosen=chosen,
            parallel=parallel if isinstance(parallel, bool) else None,
            limit=_RULES.output_limit(body),
            temperature=number(body.get("temperature")),
            top_p=number(body.get("top_p")),
            stop=words(body.get("stop")),
            schema=mapping(mapping(wanted.get("json_schema")).get("schema")) or None,
            json=wanted.get("type") in ("json_object", "json_schema"),
            effort=body.get("reasoning_effort"),
            stream=body.get("stream") is True,
            left_out=tuple(sorted(name for name in body if name not in _CARRIED)),
        )

    def body(self, asked: Asked, model: str) -> dict[str, Any]:
        """Write a request; pictures of tool results follow in a message of the user."""
        messages: list[dict[str, Any]] = [{"role": "system", "content": text} for text in asked.system]
        for turn in asked.turns:
            messages.extend(_user(turn) if turn.role == "user" else [_assistant(turn)])
        body: dict[str, Any] = {"messages": messages, "model": model, "stream": asked.stream}
        if asked.tools:
            body["tools"] = [_tool(tool) for tool in wrapped(asked.tools)]
        if asked.choice is not None and asked.tools:
            named_tool = {"type": "function", "function": {"name": asked.chosen}}
            body["tool_choice"] = named_tool if asked.choice == "tool" else asked.choice
        if asked.parallel is not None and asked.tools:
            body["parallel_tool_calls"] = asked.parallel
        if asked.schema is not None:
            shape = {"name": "reply", "schema": asked.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": shape}
        elif asked.json:
            body["response_format"] = {"type": "json_object"}
        hints = {"temperature": asked.temperature, "top_p": asked.top_p, "reasoning_effort": asked.effort}
        body |= {name: value for name, value in hints.items() if value is not None}
        if asked.stop:
            body["stop"] = list(asked.stop)
        return _RULES.prepared(body, model, asked.limit)

    def reader(self, seed: str) -> OpenAIReader:
        """Return the reader of one reply."""
        return OpenAIReader(seed)

    def writer(self, model: str, id: str) -> OpenAIWriter:
        """Return the writer of one reply."""
        return OpenAIWriter(model, id)


def _read_messages(messages: Iterable[Mapping[str, Any]]) -> tuple[list[str], list[Turn]]:
    system: list[str] = []
    turns: list[Turn] = []
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role in ("system", "developer"):
            system.extend(part.text for part in _read_parts(content) if isinstance(part, Text))
        elif role == "user":
            turns.append(Turn(role="user", parts=tuple(_read_parts(content))))
        elif role == "tool":
            result = ToolResult(id=str(message.get("tool_call_id", "")), content=tuple(_read_parts(content)))
            turns.append(Turn(role="user", parts=(result,)))
        elif role == "assistant":
            parts: list[Part] = [*_read_parts(content), *_read_parts(message.get("refusal"))]
            parts += [_read_call(call) for call in objects(message.get("tool_calls"))]
            turns.append(Turn(role="assistant", parts=tuple(parts)))
        else:
            raise UncarriedError("role", f"a message of role {role!r:.40} means nothing to another dialect")
    return system, turns


def _read_parts(content: object) -> Iterator[Text | Blob]:
    if isinstance(content, str):
        if content:
            yield Text(text=content)
        return
    for part in objects(content):
        match part.get("type", "text"):
            case "text" | "refusal":
                yield Text(text=str(part.get("text", part.get("refusal", ""))))
            case "image_url":
                yield blob_from_url(mapping(part.get("image_url")).get("url"))
            case "file":
                file = mapping(part.get("file"))
                yield blob_from_url(file.get("file_data"), kind="file", name=str(file.get("filename", "")))
            case kind:
                raise UncarriedError(str(kind), f"a part of type {kind!r:.40} means nothing to another dialect")


def _read_call(call: Mapping[str, Any]) -> ToolUse:
    if call.get("type") == "custom":
        custom = mapping(call.get("custom"))
        return ToolUse(
            id=str(call.get("id", "")),
            name=str(custom.get("name", "")),
            arguments=str(custom.get("input", "")),
            custom=True,
        )
    function = mapping(call.get("function"))
    text = function.get("arguments")
    return ToolUse(
        id=str(call.get("id", "")),
        name=str(function.get("name", "")),
        arguments=text if isinstance(text, str) else json.dumps(text or {}),
    )


def _read_tools(tools: object) -> Iterator[Offer]:
    for tool in objects(tools):
        if tool.get("type") == "custom":
            custom = mapping(tool.get("custom"))
            yield Offer(name=str(custom.get("name", "")), description=_custom_description(custom), custom=True)
            continue
        function = mapping(tool.get("function"))
        yield Offer(
            name=str(function.get("name", "")),
            description=str(function.get("description") or ""),
            schema=mapping(function.get("parameters")),
        )


def _custom_description(tool: Mapping[str, Any]) -> str:
    shape = mapping(tool.get("format"))
    grammar = mapping(shape.get("grammar")).get("definition") or shape.get("definition")
    text = str(tool.get("description") or "")
    return f"{text}\n\nThe input follows this grammar:\n{grammar}" if grammar else text


def _read_choice(choice: object) -> tuple[Choice | None, str]:
    match choice:
        case "auto" | "none" | "required":
            return choice, ""
        case {"function": {"name": str(name)}} | {"custom": {"name": str(name)}}:
            return "tool", name
        case None:
            return None, ""
    raise UncarriedError("tool_choice", f"tool_choice {choice!r:.80} means nothing to another dialect")


def _tool(tool: Offer) -> dict[str, Any]:
    function = {"name": tool.name, "parameters": tool.schema or {"type": "object", "properties": {}}}
    return {
        "type": "function",
        "function": function | ({"description": tool.description} if tool.description else {}),
    }


def _user(turn: Turn) -> Iterator[dict[str, Any]]:
    plain: list[Part] = []
    for part in turn.parts:
        if isinstance(part, ToolResult):
            yield {"role": "tool", "tool_call_id": part.id, "content": part.text}
            if part.blobs:
                plain += [Text(text=f"What tool call {part.id} returned beside its text:"), *part.blobs]
        else:
            plain.append(part)
    if plain:
        yield {"role": "user", "content": [_part(part) for part in plain]}


def _part(part: Part) -> dict[str, Any]:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Blob(kind="image"):
            return {"type": "image_url", "image_url": {"url": data_url(part)}}
        case Blob() if part.data:
            return {"type": "file", "file": {"filename": part.name or "file", "file_data": data_url(part)}}
    raise UncarriedError("file", "chat completions take a file only with its content")


def _assistant(turn: Turn) -> dict[str, Any]:
    if any(isinstance(part, Blob) for part in turn.parts):
        raise UncarriedError("image", "chat completions take no picture that a model made")
    text = "".join(part.text for part in turn.parts if isinstance(part, Text))
    calls = [as_function(part) for part in turn.parts if isinstance(part, ToolUse)]
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
    if calls:
        message["tool_calls"] = [_call(call) for call in calls]
    return message


def _call(call: ToolUse) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments or "{}"},
    }


class OpenAIReader:
    """Reads one reply."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._calls: dict[object, int] = {}
        self._usage: Usage | None = None
        self._word = ""

    def event(self, data: Mapping[str, Any]) -> list[Piece]:
        """Return what a chunk says."""
        if data.get("error"):
            return [Broken(message=str(mapping(data["error"]).get("message") or data["error"]))]
        self._count(data)
        found: list[Piece] = []
        for choice in objects(data.get("choices"))[:1]:
            found += self._message(mapping(choice.get("delta")))
            self._word = str(choice.get("finish_reason") or self._word)
        return found

    def whole(self, document: Mapping[str, Any]) -> list[Piece]:
        """Return what a body says."""
        if document.get("error"):
            return [Broken(message=str(mapping(document["error"]).get("message") or document["error"]))]
        self._count(document)
        found: list[Piece] = []
        for choice in objects(document.get("choices"))[:1]:
            found += self._message(mapping(choice.get("message")))
            self._word = str(choice.get("finish_reason") or "stop")
        return [*found, *self.end()]

    def end(self) -> list[Piece]:
        """Return the end, where the model said that it is done."""
        if not self._word:
            return []
        stop = _STOPS.get(self._word, "end")
        # Some providers say `stop` also where there are calls.
        return [Ended(stop="tools" if self._calls and stop == "end" else stop, usage=self._usage)]

    def _count(self, data: Mapping[str, Any]) -> None:
        if mapping(data.get("usage")):
            self._usage = _RULES.metered(data).usage

    def _message(self, message: Mapping[str, Any]) -> Iterator[Piece]:
        thought = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(thought, str) and thought:
            yield ThoughtPiece(text=thought)
        for name in ("content", "refusal"):
            text = message.get(name)
            if isinstance(text, str) and text:
                yield TextPiece(text=text)
        for call in objects(message.get("tool_calls")):
            yield from self._call(call)

    def _call(self, call: Mapping[str, Any]) -> Iterator[Piece]:
        function = mapping(call.get("function"))
        # Some providers leave the index out, and send each call in one piece.
        key = call.get("index")
        key = key if key is not None else f"whole {len(self._calls)}"
        if key not in self._calls:
            index = self._calls[key] = len(self._calls)
            own = str(call.get("id") or f"call_{self._seed}_{index + 1}")
            yield CallBegun(index=index, id=own, name=str(function.get("name") or ""))
        text = function.get("arguments")
        if isinstance(text, dict):
            text = json.dumps(text)
        if text:
            yield CallPiece(index=self._calls[key], text=str(text))


class OpenAIWriter:
    """Writes one reply."""

    def __init__(self, model: str, id: str) -> None:
        self._head = {"id": f"chatcmpl-{id}", "created": 0, "model": model}
        self._begun = False
        self._custom: set[int] = set()

    def event(self, piece: Piece) -> bytes:
        """Return the chunks of one piece."""
        match piece:
            case TextPiece():
                return self._chunk({"content": piece.text})
            case ThoughtPiece():
                return self._chunk({"reasoning_content": piece.text})
            case CallBegun():
                if piece.custom:
                    self._custom.add(piece.index)
                return self._chunk({"tool_calls": [{"index": piece.index, **_begun(piece)}]})
            case CallPiece():
                custom = piece.index in self._custom
                more = {"custom": {"input": piece.text}} if custom else {"function": {"arguments": piece.text}}
                return self._chunk({"tool_calls": [{"index": piece.index, **more}]})
            case Ended():
                last = self._chunk({}, STOP_WORDS["openai"][piece.stop])
                if piece.usage is not None:
                    last += _event({**self._kind(), "choices": [], "usage": _usage(piece.usage)})
                return last + b"data: [DONE]\n\n"
            case Broken():
                return b"data: " + _RULES.error(502, "upstream_error", piece.message) + b"\n\n"

    def _kind(self) -> dict[str, Any]:
        return {**self._head, "object": "chat.completion.chunk"}

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        if not self._begun:
            self._begun = True
            delta = {"role": "assistant", **delta}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _event({**self._kind(), "choices": [choice]})

    def whole(self, said: Said) -> dict[str, Any]:
        """Return a reply in one piece."""
        message: dict[str, Any] = {"role": "assistant", "content": said.text or None, "refusal": None}
        if said.thoughts:
            message["reasoning_content"] = said.thoughts
        if said.calls:
            message["tool_calls"] = [_said_call(call) for call in said.calls]
        finish = STOP_WORDS["openai"][said.stop]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": _usage(said.usage)}


def _begun(piece: CallBegun) -> dict[str, Any]:
    if piece.custom:
        return {"id": piece.id, "type": "custom", "custom": {"name": piece.name, "input": ""}}
    return {"id": piece.id, "type": "function", "function": {"name": piece.name, "arguments": ""}}


def _said_call(call: ToolUse) -> dict[str, Any]:
    if call.custom:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
    return _call(call)


def _usage(usage: Usage) -> dict[str, Any]:
    read, written = usage.input or 0, usage.output or 0
    found: dict[str, Any] = {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
    }
    if usage.cached is not None:
        found["prompt_tokens_details"] = {"cached_tokens": usage.cached}
    return found


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(data) + b"\n\n"
