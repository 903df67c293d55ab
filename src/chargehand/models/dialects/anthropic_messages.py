"""Anthropic messages: conversations and replies, to and from their dialect-neutral form."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Literal

from chargehand.models import conversation as neutral
from chargehand.models._json import as_limit, as_mapping, as_mappings, as_number, as_texts, dump_json
from chargehand.models.contract import StopReason, Usage
from chargehand.models.conversation import NeutralReply, NeutralRequest, UntranslatableError
from chargehand.models.dialects.base import ModelDialect, WireRequest
from chargehand.models.dialects.reasoning import (
    ANTHROPIC_EFFORTS,
    LEAST_ANTHROPIC_BUDGET,
    read_thinking,
    takes_budget,
    takes_thinking,
)
from chargehand.models.dialects.unread import Shape, list_unread
from chargehand.models.metering import DEFAULT_OUTPUT

_BLOCK: dict[str, Any] = {
    **dict.fromkeys(("type", "text", "id", "name", "input", "tool_use_id", "is_error", "title", "context")),
    "source": dict.fromkeys(("type", "media_type", "data", "url")),
    # Reported as `reasoning`, all of them together.
    **dict.fromkeys(("thinking", "signature", "data")),
}
_BLOCK["content"] = _BLOCK
_SHAPE = {"type": None, "schema": None}
_READ: Shape = {
    "messages": {"role": None, "content": _BLOCK},
    "system": {"type": None, "text": None},
    "tools": dict.fromkeys(("type", "name", "description", "input_schema", "strict")),
    "tool_choice": dict.fromkeys(("type", "name", "disable_parallel_tool_use")),
    "thinking": dict.fromkeys(("type", "budget_tokens", "display")),
    "output_config": {"effort": None, "format": _SHAPE},
    "output_format": _SHAPE,
    "metadata": {"user_id": None},
    **dict.fromkeys(("model", "stream", "max_tokens", "temperature", "top_p", "top_k", "stop_sequences")),
}
_REPLY: Shape = {
    "content": dict.fromkeys(("type", "text", "thinking", "id", "name", "input")),
    **dict.fromkeys(("id", "type", "role", "model", "stop_reason", "usage", "stop_details")),
}
# Fields of a stream's delta in addition to those of its block and of the message.
_DELTA: Shape = dict.fromkeys(("type", "text", "thinking", "partial_json"))
_CARRIED = frozenset({"cached", "failed", "file_name", "strict", "parallel", "top_k", "user"})
# The maximum number of marks in a request.
_MOST_MARKS = 4
# Share of the output limit, so that some is left for the reply.
_REASONING_SHARE = 0.8
_STOP_REASONS: Mapping[StopReason, str] = {
    "end": "end_turn",
    "tools": "tool_use",
    "length": "max_tokens",
    "refusal": "refusal",
}
_STOPS = {word: stop for stop, word in _STOP_REASONS.items()}
_CHOICES: Mapping[str, neutral.ToolChoice] = {"auto": "auto", "none": "none", "any": "required", "tool": "tool"}
_CHOICE_TYPES = {choice: kind for kind, choice in _CHOICES.items()}
_MARK: Mapping[str, Any] = {"cache_control": {"type": "ephemeral"}}
# The lowest value allowed together with reasoning.
_LEAST_TOP_P = 0.95
# The ids that Anthropic accepts.
_ID = re.compile(r"[a-zA-Z0-9_-]+")


def read_messages_request(body: Mapping[str, Any]) -> NeutralRequest:
    """Read a request; reasoning is left out, since it is signed for its own provider."""
    turns = []
    reasons = False
    system = body.get("system")
    if isinstance(system, str):
        system = [{"text": system}] if system else []
    said = [str(block.get("text", "")) for block in as_mappings(system)]
    for message in as_mappings(body.get("messages")):
        blocks = as_mappings(message.get("content"))
        if message.get("role") == "system":
            said += [
                part.text for part in _read_parts(message.get("content")) if isinstance(part, neutral.TextPart)
            ]
            continue
        reasons = reasons or any(str(block.get("type")).endswith("thinking") for block in blocks)
        role: neutral.ConversationRole = "assistant" if message.get("role") == "assistant" else "user"
        turns.append(neutral.ConversationTurn(role=role, parts=tuple(_read_parts(message.get("content")))))
    given = as_mapping(body.get("tool_choice"))
    choice = _CHOICES.get(str(given.get("type")))
    config = as_mapping(body.get("output_config"))
    thinking = as_mapping(body.get("thinking"))
    shape = as_mapping(config.get("format")) or as_mapping(body.get("output_format"))
    effort = config.get("effort")
    budget = read_thinking(thinking)
    left = [*list_unread(body, _READ), *(["reasoning"] if reasons else [])]
    left += ["thinking.type"] if thinking and budget is None else []
    hints = {"top_k": body.get("top_k"), "user": as_mapping(body.get("metadata")).get("user_id")}
    return NeutralRequest(
        turns=neutral.join_turns(turns),
        system=tuple(said),
        tools=tuple(map(_read_tool, as_mappings(body.get("tools")))),
        choice=choice,
        chosen=str(given.get("name", "")) if choice == "tool" else "",
        parallel=False if given.get("disable_parallel_tool_use") is True else None,
        limit=as_limit(body.get("max_tokens")),
        temperature=as_number(body.get("temperature")),
        top_p=as_number(body.get("top_p")),
        stop=as_texts(body.get("stop_sequences")),
        schema=neutral.read_reply_schema(shape),
        json=bool(shape),
        reasoning=neutral.ReasoningRequest(
            effort=effort if isinstance(effort, str) else None,
            budget=budget,
            summary="auto" if thinking.get("display") == "summarized" else None,
        ),
        hints={name: value for name, value in hints.items() if value is not None},
        stream=body.get("stream") is True,
        left_out=tuple(left),
    )


def write_messages_request(request: NeutralRequest, model: str) -> WireRequest:
    """Write a request; a missing limit is added, since this dialect requires one."""
    left = neutral.find_features(request) - _CARRIED
    limit = DEFAULT_OUTPUT if request.limit is None else request.limit
    messages = _write_messages(request.turns)
    body: dict[str, Any] = {"model": model, "messages": messages, "max_tokens": limit, "stream": request.stream}
    if request.system:
        body["system"] = [{"type": "text", "text": text} for text in request.system]
    if request.tools:
        body["tools"] = [
            {
                "name": tool.name,
                **({"description": tool.description} if tool.description else {}),
                **({"strict": tool.strict} if tool.strict else {}),
                "input_schema": tool.schema or {"type": "object", "properties": {}},
            }
            for tool in neutral.wrap_custom_tools(request.tools)
        ]
        if request.choice is not None or request.parallel is False:
            # Forbidding parallel calls is a field of the choice here, so it needs a choice to hold it.
            choice: dict[str, Any] = {"type": _CHOICE_TYPES[request.choice or "auto"]}
            if request.choice == "tool":
                choice["name"] = request.chosen
            if request.parallel is False and request.choice != "none":
                choice["disable_parallel_tool_use"] = True
            body["tool_choice"] = choice
    if request.json and request.schema is None:
        raise UntranslatableError("json mode", "Anthropic's messages have no JSON mode without a schema")
    thinking, effort = _write_thinking(request, model, limit, left)
    config: dict[str, Any] = {"effort": effort} if effort else {}
    if request.schema is not None:
        config["format"] = {"type": "json_schema", "schema": request.schema.described}
    body |= {"thinking": thinking} if thinking else {}
    body |= {"output_config": config} if config else {}
    if "user" in request.hints:
        body["metadata"] = {"user_id": request.hints["user"]}
    reasons = thinking is not None and thinking["type"] != "disabled"
    hints = {
        **_write_sampling(request, model, left, reasons=reasons),
        "stop_sequences": list(request.stop) or None,
    }
    return WireRequest(body | {name: value for name, value in hints.items() if value is not None}, tuple(left))


def _write_messages(turns: tuple[neutral.ConversationTurn, ...]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for turn in turns:
        # Results first: this dialect requires them immediately after their calls.
        parts = sorted(turn.parts, key=lambda part: not isinstance(part, neutral.ToolResultPart))
        blocks = [_write_block(part) for part in parts if not isinstance(part, neutral.ThoughtPart)]
        if blocks:
            messages.append({"role": turn.role, "content": blocks})
    marked = [block for message in messages for block in message["content"] if "cache_control" in block]
    for block in marked[:-_MOST_MARKS]:
        del block["cache_control"]
    return messages


def _write_thinking(
    request: NeutralRequest, model: str, limit: int, left: set[str]
) -> tuple[dict[str, Any] | None, str | None]:
    """Return `thinking` and the effort; requested reasoning that does not fit is added to `left`."""
    asked = request.reasoning
    if asked.summary and (asked.amount is None or asked.tokens == 0 or not takes_thinking(model)):
        left.add("summary")
    if asked.amount is None:
        return None, None
    if asked.tokens == 0:
        return ({"type": "disabled"} if takes_thinking(model) else None), None
    # Not together with a choice that forces a call, by the API's own rule.
    forced = request.choice in ("required", "tool")
    if not takes_thinking(model) or (forced and takes_budget(model)):
        left.add(asked.amount)
        return None, None
    if not takes_budget(model):
        effort = ANTHROPIC_EFFORTS.get(asked.word or "")
        if effort is None and asked.tokens != neutral.DYNAMIC_BUDGET:
            left.add(asked.amount)
        shown = {"display": "summarized"} if asked.summary else {}
        return (None if forced else {"type": "adaptive", **shown}), effort
    # In the middle of calls a budget needs the signed reasoning that led to them, which only Claude has.
    amid = (
        any(isinstance(part, neutral.ToolResultPart) for part in request.turns[-1].parts)
        if request.turns
        else True
    )
    most = int(limit * _REASONING_SHARE)
    if amid or most < LEAST_ANTHROPIC_BUDGET or asked.tokens in (None, neutral.DYNAMIC_BUDGET):
        left.add(asked.amount)
        return None, None
    tokens = max(LEAST_ANTHROPIC_BUDGET, min(asked.tokens or 0, most))
    if tokens != asked.tokens:
        left.add(asked.amount)
    return {"type": "enabled", "budget_tokens": tokens}, None


def _write_sampling(request: NeutralRequest, model: str, left: set[str], *, reasons: bool) -> dict[str, Any]:
    """Return the sampling settings within this API's rules; changed settings are added to `left`."""
    asked = {"temperature": request.temperature, "top_p": request.top_p, "top_k": request.hints.get("top_k")}
    # Values above 1 exist only in other dialects; the range of this one ends there.
    fitting: dict[str, Any] = {
        **asked,
        "temperature": None if asked["temperature"] is None else min(asked["temperature"], 1.0),
    }
    if reasons:
        fitting = {"top_p": asked["top_p"] if (asked["top_p"] or 0) >= _LEAST_TOP_P else None}
        # During reasoning the temperature is 1 and cannot be sent.
        left |= {"temperature"} if asked["temperature"] not in (None, 1) else set()
        asked["temperature"] = None
    elif "claude" in model and fitting["temperature"] is not None:
        fitting["top_p"] = None  # Claude takes only one of the two
    left |= {name for name, value in asked.items() if value != fitting.get(name)}
    return fitting


def _read_parts(content: object) -> Iterator[neutral.ConversationPart]:
    if isinstance(content, str):
        if content:
            yield neutral.TextPart(text=content)
        return
    for block in as_mappings(content):
        own = str(block.get("id", ""))
        name = str(block.get("name", ""))
        match block.get("type"):
            case "text":
                yield neutral.TextPart(text=str(block.get("text", "")))
            case "image" | "document":
                yield _read_file(block)
            case "tool_use":
                yield neutral.ToolCallPart(id=own, name=name, arguments=json.dumps(block.get("input") or {}))
            case "tool_result":
                inner = _read_parts(block.get("content"))
                yield neutral.ToolResultPart(
                    id=str(block.get("tool_use_id", "")),
                    content=tuple(part for part in inner if isinstance(part, neutral.TextPart | neutral.FilePart)),
                    failed=block.get("is_error") is True,
                )
            case "thinking" | "redacted_thinking":
                continue
            case kind:
                message = f"a block of type {kind!r:.40} has no equivalent in another dialect"
                raise UntranslatableError(str(kind), message)


def _read_file(block: Mapping[str, Any]) -> neutral.TextPart | neutral.FilePart:
    source = as_mapping(block.get("source"))
    image = block.get("type") == "image"
    name = str(block.get("title") or "")
    context = str(block.get("context") or "")
    match source.get("type"):
        case "base64":
            media = str(source.get("media_type", ""))
            data = str(source.get("data", ""))
            return neutral.FilePart(
                media_type=media, data=data, name=name, context=context, kind="image" if image else "file"
            )
        case "url":
            kind: Literal["image", "file"] = "image" if image else "file"
            return neutral.FilePart(url=str(source.get("url", "")), name=name, context=context, kind=kind)
        case "text":
            head = "".join(f"{line}\n" for line in (name, context) if line)
            return neutral.TextPart(text=head + str(source.get("data", "")))
    message = f"a source of type {source.get('type')!r:.40} stays with Anthropic"
    raise UntranslatableError(str(block.get("type")), message)


def _read_tool(tool: Mapping[str, Any]) -> neutral.OfferedTool:
    if tool.get("type") not in (None, "custom"):
        raise UntranslatableError("tool", f"the tool type {tool['type']!r:.40} is Anthropic's own")
    return neutral.OfferedTool(
        name=str(tool.get("name", "")),
        description=str(tool.get("description") or ""),
        schema=as_mapping(tool.get("input_schema")),
        strict=neutral.read_flag(tool.get("strict")),
    )


def _write_block(part: neutral.ConversationPart) -> dict[str, Any]:
    match part:
        case neutral.TextPart():
            return {"type": "text", "text": part.text, **(_MARK if part.cached and part.text.strip() else {})}
        case neutral.FilePart():
            source: dict[str, Any] = {"type": "base64", "media_type": part.media_type, "data": part.data}
            if part.url:
                source = {"type": "url", "url": part.url}
            mark = _MARK if part.cached else {}
            if part.kind == "image":
                return {"type": "image", "source": source, **mark}
            said = {"title": part.name, "context": part.context}
            return {"type": "document", "source": source, **{k: text for k, text in said.items() if text}, **mark}
        case neutral.ToolCallPart():
            call = neutral.as_function_call(part)
            return {"type": "tool_use", "id": _legal_id(call.id), "name": call.name, "input": call.value()}
        case neutral.ToolResultPart():
            content = [_write_block(inner) for inner in part.content]
            failed = {"is_error": True} if part.failed else {}
            return {"type": "tool_result", "tool_use_id": _legal_id(part.id), "content": content, **failed}
    raise UntranslatableError("reasoning", "Anthropic's messages take only signed reasoning")


def _legal_id(id: str) -> str:
    """Return an id that this dialect accepts: those of other dialects may hold more characters."""
    return id if _ID.fullmatch(id) else f"id_{hashlib.sha256(id.encode(errors='replace')).hexdigest()[:32]}"


def mark_cached(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add cache marks to a request without any: its provider caches nothing without a mark.

    The marks go to the system's part, or else the last tool, and to the newest two turns of the user: where the
    conversation ends now, and where it ended a call ago.
    """
    heads = (*as_mappings(body.get("system")), *as_mappings(body.get("tools")))
    said = [block for one in as_mappings(body.get("messages")) for block in as_mappings(one.get("content"))]
    results = (one for block in said for one in as_mappings(block.get("content")))
    if "cache_control" in body or any("cache_control" in block for block in chain(heads, said, results)):
        return body
    marked = dict(body)
    head = "system" if body.get("system") else "tools"
    if (blocks := _mark_last(body.get(head))) is not None:
        marked[head] = blocks
    messages = list(as_mappings(body.get("messages")))
    places = [place for place, message in enumerate(messages) if message.get("role") == "user"]
    for place in places[-2:]:
        if (blocks := _mark_last(messages[place].get("content"))) is not None:
            messages[place] = {**messages[place], "content": blocks}
            marked["messages"] = messages
    return marked


def _mark_last(content: object) -> list[Any] | None:
    """Return blocks with a mark on the last one, or `None` if no mark fits: on empty text it is an error."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    last = blocks[-1] if isinstance(blocks, list) and blocks else None
    if (
        not isinstance(last, dict)
        or last.get("defer_loading")
        or (last.get("type") == "text" and not str(last.get("text", "")).strip())
    ):
        return None
    return [*blocks[:-1], {**last, **_MARK}] if isinstance(blocks, list) else None


class AnthropicReader:
    """Reads one reply: blocks, whole or as a stream of named events."""

    def __init__(self, dialect: ModelDialect) -> None:
        self._dialect = dialect
        self._meter = dialect.stream_meter({})
        self._calls: dict[int, int] = {}
        self._word = ""
        self.left_out = set[str]()

    def read_event(self, data: Mapping[str, Any]) -> list[neutral.ReplyDelta]:
        """Return the deltas of an event."""
        self._meter.take(data)
        if self._meter.failed:
            return [neutral.ReplyError(message=self._meter.failed)]
        index = int(data.get("index", 0))
        delta = as_mapping(data.get("delta"))
        if data.get("type") == "message_delta":
            self.left_out.update(list_unread(delta, _REPLY))
        else:
            self.left_out.update(list_unread({"content": data.get("content_block")}, _REPLY))
            self.left_out.update(list_unread(delta, _DELTA, "content"))
        match data.get("type"), delta.get("type"):
            case "content_block_start", _:
                return list(self._read_block(index, as_mapping(data.get("content_block")), whole=False))
            case "content_block_delta", "text_delta":
                return [neutral.TextDelta(text=str(delta.get("text", "")))]
            case "content_block_delta", "thinking_delta":
                return [neutral.ThinkingDelta(text=str(delta.get("thinking", "")))]
            case "content_block_delta", "input_json_delta" if index in self._calls:
                return [neutral.ToolCallDelta(index=self._calls[index], text=str(delta.get("partial_json", "")))]
            case "message_delta", _:
                self._word = str(delta.get("stop_reason") or self._word)
        return []

    def read_whole(self, document: Mapping[str, Any]) -> list[neutral.ReplyDelta]:
        """Return the deltas of a body."""
        self.left_out.update(list_unread(document, _REPLY))
        found: list[neutral.ReplyDelta] = []
        for index, block in enumerate(as_mappings(document.get("content"))):
            found += self._read_block(index, block, whole=True)
        stop = _STOPS.get(str(document.get("stop_reason") or "end_turn"), "end")
        return [*found, neutral.ReplyEnd(stop=stop, usage=self._dialect.read_usage(document).usage)]

    def finish(self) -> list[neutral.ReplyDelta]:
        """Return the end if the model said that it is done."""
        if not self._word:
            return []
        return [neutral.ReplyEnd(stop=_STOPS.get(self._word, "end"), usage=self._meter.metered.usage)]

    def _read_block(self, index: int, block: Mapping[str, Any], *, whole: bool) -> Iterator[neutral.ReplyDelta]:
        match block.get("type"):
            case "text" if block.get("text"):
                yield neutral.TextDelta(text=str(block["text"]))
            case "thinking" if block.get("thinking"):
                yield neutral.ThinkingDelta(text=str(block["thinking"]))
            case "tool_use":
                own = self._calls[index] = len(self._calls)
                yield neutral.ToolCallStart(
                    index=own, id=str(block.get("id", "")), name=str(block.get("name", ""))
                )
                if whole or block.get("input"):
                    given = block.get("input") or {}
                    yield neutral.ToolCallDelta(
                        index=own, text=given if isinstance(given, str) else json.dumps(given)
                    )


class AnthropicWriter:
    """Writes one reply; reasoning has an empty signature, and clients keep it unchanged."""

    def __init__(self, dialect: ModelDialect, model: str, id: str) -> None:
        self._dialect = dialect
        self._head = {"id": f"msg_{id}", "type": "message", "role": "assistant", "model": model}
        self._count = -1
        self._open = ""

    def write_delta(self, delta: neutral.ReplyDelta) -> bytes:
        """Return the events for one delta; raises `UntranslatableError` for interleaved calls."""
        match delta:
            case neutral.TextDelta():
                block: dict[str, Any] = {"type": "text", "text": ""}
                return self._open_block("text", block) + self._write_more("text_delta", text=delta.text)
            case neutral.ThinkingDelta():
                block = {"type": "thinking", "thinking": "", "signature": ""}
                opened = self._open_block("thinking", block)
                return opened + self._write_more("thinking_delta", thinking=delta.text)
            case neutral.ToolCallStart():
                block = {"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}}
                return self._open_block(f"call {delta.index}", block)
            case neutral.ToolCallDelta():
                if self._open != f"call {delta.index}":
                    message = "the provider sends two tool calls mixed into each other"
                    raise UntranslatableError("tool calls", message)
                return self._write_more("input_json_delta", partial_json=delta.text)
            case neutral.ReplyEnd():
                stop = {"stop_reason": _STOP_REASONS[delta.stop], "stop_sequence": None}
                out = self._begin_message() + self._close_block()
                out += _write_event("message_delta", delta=stop, usage=_write_usage(delta.usage or Usage()))
                return out + _write_event("message_stop")
            case neutral.ReplyError():
                return self._dialect.write_error_event(502, "upstream_error", delta.message)

    def _begin_message(self) -> bytes:
        if self._count >= 0:
            return b""
        usage = {"input_tokens": 0, "output_tokens": 0}
        begun: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        return _write_event("message_start", message={**self._head, **begun}) + _write_event("ping")

    def _open_block(self, what: str, block: Mapping[str, Any]) -> bytes:
        if self._open == what:
            return b""
        out = self._begin_message() + self._close_block()
        self._open = what
        self._count += 1
        return out + _write_event("content_block_start", index=self._count, content_block=block)

    def _close_block(self) -> bytes:
        return _write_event("content_block_stop", index=self._count) if self._open else b""

    def _write_more(self, kind: str, **fields: str) -> bytes:
        return _write_event("content_block_delta", index=self._count, delta={"type": kind, **fields})

    def write_whole(self, reply: NeutralReply) -> dict[str, Any]:
        """Return a reply in one piece."""
        content: list[dict[str, Any]] = []
        if reply.thoughts:
            content.append({"type": "thinking", "thinking": reply.thoughts, "signature": ""})
        if reply.text:
            content.append({"type": "text", "text": reply.text})
        content += [_write_block(call) for call in reply.calls]
        stop = {"stop_reason": _STOP_REASONS[reply.stop], "stop_sequence": None}
        return {**self._head, "content": content, **stop, "usage": _write_usage(reply.usage)}


def _write_usage(usage: Usage) -> dict[str, int]:
    # This dialect counts cached tokens apart from the rest of the input.
    cached = usage.cached or 0
    written = usage.cache_write or 0
    return {
        "input_tokens": max(0, (usage.input or 0) - cached - written),
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": written,
        "output_tokens": usage.output or 0,
    }


def _write_event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\ndata: ".encode() + dump_json({"type": kind, **fields}) + b"\n\n"
