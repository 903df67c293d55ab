"""OpenAI chat completions: conversations and replies, to and from their dialect-neutral form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from chargehand.models import conversation as neutral
from chargehand.models._json import as_limit, as_mapping, as_mappings, as_number, as_texts, dump_json
from chargehand.models.contract import StopReason, Usage
from chargehand.models.conversation import NeutralReply, NeutralRequest, UntranslatableError
from chargehand.models.dialects.base import ModelDialect, WireRequest
from chargehand.models.dialects.reasoning import is_openai, read_thinking, write_effort
from chargehand.models.dialects.unread import Shape, list_unread

# Further fields, passed on to dialects that have them; fields only for OpenAI's own models are separate.
_HINTS = frozenset({"seed", "frequency_penalty", "presence_penalty"})
_OWN_HINTS = frozenset({"user", "safety_identifier", "verbosity", "prompt_cache_key", "prompt_cache_retention"})
_READ_HINTS = _HINTS | _OWN_HINTS | {"top_k"}
_PART: Shape = {
    "type": None,
    "text": None,
    "refusal": None,
    "image_url": {"url": None, "detail": None},
    "file": {"file_data": None, "filename": None},
    "prompt_cache_breakpoint": None,
    "cache_control": None,
}
_NAMED = {"name": None, "description": None}
_READ: Shape = {
    "messages": {
        "role": None,
        "content": _PART,
        "refusal": None,
        "reasoning_content": None,
        "reasoning": None,
        "tool_call_id": None,
        "tool_calls": {
            "id": None,
            "type": None,
            "index": None,
            "function": {"name": None, "arguments": None},
            "custom": {"name": None, "input": None},
        },
    },
    "tools": {
        "type": None,
        "function": {**_NAMED, "parameters": None, "strict": None},
        "custom": {**_NAMED, "format": None},
    },
    "response_format": {"type": None, "json_schema": {**_NAMED, "schema": None, "strict": None}},
    "reasoning": {"effort": None, "max_tokens": None},
    "thinking": {"type": None, "budget_tokens": None},
    "stream_options": {"include_usage": None, "include_obfuscation": None},
    **dict.fromkeys(("model", "stream", "tool_choice", "parallel_tool_calls", "stop", "n", "max_tokens")),
    **dict.fromkeys(("max_completion_tokens", "temperature", "top_p", "reasoning_effort", "enable_thinking")),
    **dict.fromkeys(_READ_HINTS),
}
_CARRIED = frozenset({"detail", "file_name", "strict", "parallel"})
_SAID: Shape = {
    **dict.fromkeys(("role", "content", "refusal", "reasoning_content", "reasoning")),
    "tool_calls": {**dict.fromkeys(("id", "type", "index")), "function": {"name": None, "arguments": None}},
}
_REPLY: Shape = {
    "choices": {"index": None, "finish_reason": None, "message": _SAID, "delta": _SAID},
    # The reply's own metadata, which means nothing outside its provider.
    **dict.fromkeys(("id", "object", "created", "model", "system_fingerprint", "service_tier", "usage", "error")),
}
# Model families whose makers want the reasoning of earlier replies; other providers refuse that field.
_WANTS_THOUGHTS = re.compile(r"deepseek|kimi|glm-|mimo")
_FINISH_REASONS: Mapping[StopReason, str] = {
    "end": "stop",
    "tools": "tool_calls",
    "length": "length",
    "refusal": "content_filter",
}
_STOPS = {word: stop for stop, word in _FINISH_REASONS.items()} | {"function_call": "tools"}


def read_chat_request(body: Mapping[str, Any], limit: int | None) -> NeutralRequest:
    """Read a request; raises `UntranslatableError` for parts that no other dialect can express."""
    for field in ("functions", "function_call", "logprobs", "audio"):
        if body.get(field):
            raise UntranslatableError(field, f"`{field}` has no equivalent in another dialect")
    if body.get("n") not in (None, 1):
        raise UntranslatableError("n", "several replies at once cannot be asked of another dialect")
    system: list[str] = []
    turns: list[neutral.ConversationTurn] = []
    for message in as_mappings(body.get("messages")):
        turn = _read_message(message)
        if turn is None:
            system.extend(
                part.text for part in _read_parts(message.get("content")) if isinstance(part, neutral.TextPart)
            )
        else:
            turns.append(turn)
    choice, chosen = _read_choice(body.get("tool_choice"))
    wanted = as_mapping(body.get("response_format"))
    shape = as_mapping(wanted.get("json_schema"))
    parallel = body.get("parallel_tool_calls")
    # OpenAI's field, and those of routers and of other makers of models: see `_FIELDS` of the dialect.
    router = as_mapping(body.get("reasoning"))
    effort = body.get("reasoning_effort") or router.get("effort")
    budget = as_limit(router.get("max_tokens"))
    if budget is None:
        budget = read_thinking(as_mapping(body.get("thinking")))
    if isinstance(switch := body.get("enable_thinking"), bool) and budget is None:
        budget = neutral.DYNAMIC_BUDGET if switch else 0
    return NeutralRequest(
        turns=neutral.join_turns(turns),
        system=tuple(system),
        tools=tuple(map(_read_tool, as_mappings(body.get("tools")))),
        choice=choice,
        chosen=chosen,
        parallel=parallel if isinstance(parallel, bool) else None,
        limit=limit,
        temperature=as_number(body.get("temperature")),
        top_p=as_number(body.get("top_p")),
        stop=as_texts(body.get("stop")),
        schema=neutral.read_reply_schema(shape),
        json=wanted.get("type") in ("json_object", "json_schema"),
        reasoning=neutral.ReasoningRequest(effort=effort if isinstance(effort, str) else None, budget=budget),
        hints={name: body[name] for name in sorted(_READ_HINTS) if body.get(name) is not None},
        stream=body.get("stream") is True,
        left_out=tuple(list_unread(body, _READ)),
    )


def write_chat_request(request: NeutralRequest, model: str) -> WireRequest:
    """Write a request without its model and limit; pictures of tool results follow in a user message."""
    carried = _CARRIED | _HINTS | (_OWN_HINTS if is_openai(model) else frozenset())
    thoughts = _WANTS_THOUGHTS.search(model.lower()) is not None
    carried |= {"thoughts"} if thoughts else frozenset()
    left = neutral.find_features(request) - carried
    messages: list[dict[str, Any]] = [{"role": "system", "content": text} for text in request.system]
    for turn in neutral.spell_out_contexts(request.turns):
        if turn.role == "user":
            messages.extend(_write_user(turn))
        elif (message := _write_assistant(turn, thoughts=thoughts)) is not None:
            messages.append(message)
    body: dict[str, Any] = {"messages": messages, "stream": request.stream}
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "parameters": tool.schema or {"type": "object", "properties": {}},
                    **({"description": tool.description} if tool.description else {}),
                    **({} if tool.strict is None else {"strict": tool.strict}),
                },
            }
            for tool in neutral.wrap_custom_tools(request.tools)
        ]
    if request.choice is not None and request.tools:
        named_tool = {"type": "function", "function": {"name": request.chosen}}
        body["tool_choice"] = named_tool if request.choice == "tool" else request.choice
    if request.parallel is not None and request.tools:
        body["parallel_tool_calls"] = request.parallel
    if request.schema is not None:
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": neutral.write_reply_schema(request.schema),
        }
    elif request.json:
        body["response_format"] = {"type": "json_object"}
    left |= {"summary"} if request.reasoning.summary else set()
    hints = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "reasoning_effort": write_effort(request.reasoning, model, left),
        "stop": list(request.stop) or None,
        **{name: value for name, value in request.hints.items() if name in carried},
    }
    return WireRequest(body | {name: value for name, value in hints.items() if value is not None}, tuple(left))


def _read_message(message: Mapping[str, Any]) -> neutral.ConversationTurn | None:
    """Return the turn of a message, or `None` if it belongs to the system's part."""
    role = message.get("role")
    content = message.get("content")
    match role:
        case "system" | "developer":
            return None
        case "user":
            return neutral.ConversationTurn(role="user", parts=tuple(_read_parts(content)))
        case "tool":
            own = str(message.get("tool_call_id", ""))
            return neutral.ConversationTurn(
                role="user", parts=(neutral.ToolResultPart(id=own, content=tuple(_read_parts(content))),)
            )
        case "assistant":
            calls = map(_read_call, as_mappings(message.get("tool_calls")))
            thought = message.get("reasoning_content") or message.get("reasoning")
            thoughts = [neutral.ThoughtPart(text=thought)] if isinstance(thought, str) and thought else []
            parts = (*thoughts, *_read_parts(content), *_read_parts(message.get("refusal")), *calls)
            return neutral.ConversationTurn(role="assistant", parts=parts)
    raise UntranslatableError("role", f"a message of role {role!r:.40} has no equivalent in another dialect")


def _read_parts(content: object) -> Iterator[neutral.TextPart | neutral.FilePart]:
    if isinstance(content, str):
        if content:
            yield neutral.TextPart(text=content)
        return
    for part in as_mappings(content):
        cached = bool(part.get("prompt_cache_breakpoint") or part.get("cache_control"))
        match part.get("type", "text"):
            case "text" | "refusal":
                yield neutral.TextPart(text=str(part.get("text", part.get("refusal", ""))), cached=cached)
            case "image_url":
                image = as_mapping(part.get("image_url"))
                file = neutral.file_from_url(image.get("url"))
                yield replace(file, detail=neutral.read_detail(image.get("detail")), cached=cached)
            case "file":
                given = as_mapping(part.get("file"))
                name = str(given.get("filename", ""))
                yield replace(neutral.file_from_url(given.get("file_data"), kind="file", name=name), cached=cached)
            case kind:
                message = f"a part of type {kind!r:.40} has no equivalent in another dialect"
                raise UntranslatableError(str(kind), message)


def _read_call(call: Mapping[str, Any]) -> neutral.ToolCallPart:
    own = str(call.get("id", ""))
    if call.get("type") == "custom":
        custom = as_mapping(call.get("custom"))
        name = str(custom.get("name", ""))
        text = str(custom.get("input", ""))
        return neutral.ToolCallPart(id=own, name=name, arguments=text, custom=True)
    function = as_mapping(call.get("function"))
    arguments = function.get("arguments")
    return neutral.ToolCallPart(
        id=own,
        name=str(function.get("name", "")),
        arguments=arguments if isinstance(arguments, str) else json.dumps(arguments or {}),
    )


def _read_tool(tool: Mapping[str, Any]) -> neutral.OfferedTool:
    if tool.get("type") != "custom":
        function = as_mapping(tool.get("function"))
        return neutral.OfferedTool(
            name=str(function.get("name", "")),
            description=str(function.get("description") or ""),
            schema=as_mapping(function.get("parameters")),
            strict=neutral.read_flag(function.get("strict")),
        )
    custom = as_mapping(tool.get("custom"))
    shape = as_mapping(custom.get("format"))
    grammar = as_mapping(shape.get("grammar")).get("definition") or shape.get("definition")
    return neutral.offer_custom_tool(str(custom.get("name", "")), str(custom.get("description") or ""), grammar)


def _read_choice(choice: object) -> tuple[neutral.ToolChoice | None, str]:
    match choice:
        case "auto" | "none" | "required":
            return choice, ""
        case {"function": {"name": str(name)}} | {"custom": {"name": str(name)}}:
            return "tool", name
        case None:
            return None, ""
    raise UntranslatableError("tool_choice", f"tool_choice {choice!r:.80} has no equivalent in another dialect")


def _write_user(turn: neutral.ConversationTurn) -> Iterator[dict[str, Any]]:
    plain: list[neutral.ConversationPart] = []
    for part in turn.parts:
        if isinstance(part, neutral.ToolResultPart):
            yield {"role": "tool", "tool_call_id": part.id, "content": part.text}
            # Messages of role `tool` hold only text.
            plain += part.blob_parts
        else:
            plain.append(part)
    if plain:
        yield {"role": "user", "content": [_write_part(part) for part in plain]}


def _write_part(part: neutral.ConversationPart) -> dict[str, Any]:
    match part:
        case neutral.TextPart():
            return {"type": "text", "text": part.text}
        case neutral.FilePart(kind="image"):
            closely = {"detail": part.detail} if part.detail else {}
            return {"type": "image_url", "image_url": {"url": neutral.data_url(part), **closely}}
        case neutral.FilePart() if part.data:
            return {"type": "file", "file": {"filename": part.name or "file", "file_data": neutral.data_url(part)}}
    raise UntranslatableError("file", "chat completions take a file only with its content")


def _write_assistant(turn: neutral.ConversationTurn, *, thoughts: bool) -> dict[str, Any] | None:
    """Return the message of a turn, or `None` if it holds only reasoning."""
    if any(isinstance(part, neutral.FilePart) for part in turn.parts):
        raise UntranslatableError("image", "chat completions take no picture that a model made")
    text = "".join(part.text for part in turn.parts if isinstance(part, neutral.TextPart))
    calls = [neutral.as_function_call(part) for part in turn.parts if isinstance(part, neutral.ToolCallPart)]
    thought = "".join(part.text for part in turn.parts if isinstance(part, neutral.ThoughtPart))
    if not (text or calls) and thought:
        return None
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
    message |= {"reasoning_content": thought} if thought and thoughts else {}
    return message | ({"tool_calls": [_write_call(call) for call in calls]} if calls else {})


def _write_call(call: neutral.ToolCallPart) -> dict[str, Any]:
    if call.custom:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments or "{}"}
    return {"id": call.id, "type": "function", "function": function}


class OpenAIChatReader:
    """Reads one reply, whole or in chunks."""

    def __init__(self, dialect: ModelDialect, seed: str) -> None:
        self._dialect = dialect
        self._seed = seed
        self._calls: dict[object, int] = {}
        self._usage: Usage | None = None
        self._word = ""
        self._refused = False
        self.left_out = set[str]()

    def read_event(self, data: Mapping[str, Any]) -> list[neutral.ReplyDelta]:
        """Return the deltas of a chunk."""
        return self._read(data, "delta", "")

    def read_whole(self, document: Mapping[str, Any]) -> list[neutral.ReplyDelta]:
        """Return the deltas of a body."""
        found = self._read(document, "message", "stop")
        return found if document.get("error") else [*found, *self.finish()]

    def finish(self) -> list[neutral.ReplyDelta]:
        """Return the end if the model said that it is done."""
        if not self._word:
            return []
        stop = "refusal" if self._refused else _STOPS.get(self._word, "end")
        # Some providers send `stop` even if the reply has calls.
        return [neutral.ReplyEnd(stop="tools" if self._calls and stop == "end" else stop, usage=self._usage)]

    def _read(self, data: Mapping[str, Any], holder: str, default: str) -> list[neutral.ReplyDelta]:
        if data.get("error"):
            return [neutral.ReplyError(message=str(as_mapping(data["error"]).get("message") or data["error"]))]
        self.left_out.update(list_unread(data, _REPLY))
        if as_mapping(data.get("usage")):
            self._usage = self._dialect.read_usage(data).usage
        found: list[neutral.ReplyDelta] = []
        for choice in as_mappings(data.get("choices"))[:1]:
            found += self._read_message(as_mapping(choice.get(holder)))
            self._word = str(choice.get("finish_reason") or self._word or default)
        return found

    def _read_message(self, message: Mapping[str, Any]) -> Iterator[neutral.ReplyDelta]:
        thought = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(thought, str) and thought:
            yield neutral.ThinkingDelta(text=thought)
        for name in ("content", "refusal"):
            text = message.get(name)
            if isinstance(text, str) and text:
                self._refused = self._refused or name == "refusal"
                yield neutral.TextDelta(text=text)
        for call in as_mappings(message.get("tool_calls")):
            yield from self._read_call(call)

    def _read_call(self, call: Mapping[str, Any]) -> Iterator[neutral.ReplyDelta]:
        function = as_mapping(call.get("function"))
        # Some providers leave the index out, and send each call in one piece.
        key = call.get("index")
        key = key if isinstance(key, int | str) else f"whole {len(self._calls)}"
        if key not in self._calls:
            index = self._calls[key] = len(self._calls)
            own = str(call.get("id") or f"call_{self._seed}_{index + 1}")
            yield neutral.ToolCallStart(index=index, id=own, name=str(function.get("name") or ""))
        text = function.get("arguments")
        if isinstance(text, dict):
            text = json.dumps(text)
        if text:
            yield neutral.ToolCallDelta(index=self._calls[key], text=str(text))


class OpenAIChatWriter:
    """Writes one reply, whole or in chunks."""

    def __init__(self, dialect: ModelDialect, model: str, id: str) -> None:
        self._dialect = dialect
        self._head = {"id": f"chatcmpl-{id}", "created": 0, "model": model}
        self._begun = False
        self._custom: set[int] = set()

    def write_delta(self, delta: neutral.ReplyDelta) -> bytes:
        """Return the chunks for one delta; usage has its own chunk."""
        match delta:
            case neutral.TextDelta():
                return self._write_chunk({"content": delta.text})
            case neutral.ThinkingDelta():
                return self._write_chunk({"reasoning_content": delta.text})
            case neutral.ToolCallStart():
                begun: dict[str, Any] = {"type": "function", "function": {"name": delta.name, "arguments": ""}}
                if delta.custom:
                    self._custom.add(delta.index)
                    begun = {"type": "custom", "custom": {"name": delta.name, "input": ""}}
                return self._write_chunk({"tool_calls": [{"index": delta.index, "id": delta.id, **begun}]})
            case neutral.ToolCallDelta():
                custom = delta.index in self._custom
                more = {"custom": {"input": delta.text}} if custom else {"function": {"arguments": delta.text}}
                return self._write_chunk({"tool_calls": [{"index": delta.index, **more}]})
            case neutral.ReplyEnd():
                last = self._write_chunk({}, _FINISH_REASONS[delta.stop])
                if delta.usage is not None:
                    last += self._write_event(choices=[], usage=_write_usage(delta.usage))
                return last + b"data: [DONE]\n\n"
            case neutral.ReplyError():
                return self._dialect.write_error_event(502, "upstream_error", delta.message)

    def _write_chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        if not self._begun:
            self._begun = True
            delta = {"role": "assistant", **delta}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return self._write_event(choices=[choice])

    def _write_event(self, **fields: object) -> bytes:
        data = {**self._head, "object": "chat.completion.chunk", **fields}
        return b"data: " + dump_json(data) + b"\n\n"

    def write_whole(self, reply: NeutralReply) -> dict[str, Any]:
        """Return a reply in one piece."""
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
        if reply.thoughts:
            message["reasoning_content"] = reply.thoughts
        if reply.calls:
            message["tool_calls"] = [_write_call(call) for call in reply.calls]
        finish = _FINISH_REASONS[reply.stop]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
        usage = _write_usage(reply.usage)
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": usage}


def _write_usage(usage: Usage) -> dict[str, Any]:
    read = usage.input or 0
    written = usage.output or 0
    counts: dict[str, Any] = {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
    }
    details = {} if usage.cached is None else {"prompt_tokens_details": {"cached_tokens": usage.cached}}
    return {**counts, **details}
