"""Replies that nobody generated, as bodies of every dialect: in one piece or as server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from chargehand.models.contract import STOP_WORDS, Dialect, Stop, UpstreamReply, Usage
from chargehand.models.dialects.base import EVENT_STREAMSse as EVENT_STREAM
from chargehand.models.dialects.base import event_bytes, parse_events
from chargehand.models.dialects.conversation import CallPiece, Said, TextPiece, ToolUse, folded, pieces_of
from chargehand.models.dialects.table import CODECS, RULES

ONCE: Mapping[str, str] = {"x-should-retry": "false"}
"""What tells official clients not to try again: of themselves they do after 409."""
_TEXT_PIECE, _ARGUMENT_PIECE, _BYTES_A_TOKEN = 24, 12, 4
_ANTHROPIC_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedCall:
    """A tool call of a scripted reply; arguments given as text are sent as they are, valid JSON or not."""

    name: str
    arguments: Mapping[str, Any] | str
    id: str = ""

    @property
    def text(self) -> str:
        """The arguments as JSON text."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedReply:
    """What a scripted model says: text, tool calls, or both.

    `usage` is estimated from the bytes where it is not given, `stop` follows from the tool calls. `fault` is one
    entry of a fault specification without its turn; `delay` is in seconds before the head of the reply.
    """

    text: str = ""
    tools: tuple[ScriptedCall, ...] = ()
    usage: Usage | None = None
    stop: Stop | None = None
    fault: str = ""
    delay: float = 0.0

    @property
    def why(self) -> Stop:
        """Why the reply ends."""
        return self.stop or ("tools" if self.tools else "end")


def render(
    dialect: Dialect,
    reply: ScriptedReply,
    *,
    model: str,
    stream: bool,
    usage_chunk: bool = False,
    id: str = "scripted",
) -> Iterator[bytes]:
    """Yield the body of a reply; `usage_chunk` is OpenAI's `stream_options.include_usage`.

    `id` goes into the reply's id and the ids of tool calls that have none.
    """
    if dialect in ("responses", "gemini"):
        yield from _said(dialect, reply, model=model, stream=stream, id=id)
        return
    draw = _Drawing(reply=reply, model=model, id=id, usage=reply.usage or estimated(reply))
    if not stream:
        yield json.dumps(draw.openai() if dialect == "openai" else draw.anthropic()).encode()
    elif dialect == "openai":
        for chunk in draw.openai_chunks(usage_chunk=usage_chunk):
            yield event_bytes(json.dumps(chunk))
        yield event_bytes("[DONE]")
    else:
        for data in draw.anthropic_events():
            yield event_bytes(json.dumps(data), data["type"])


def _said(dialect: Dialect, reply: ScriptedReply, *, model: str, stream: bool, id: str) -> Iterator[bytes]:
    calls = tuple(
        ToolUse(id=call.id or f"call_{id}_{number}", name=call.name, arguments=call.text)
        for number, call in enumerate(reply.tools, start=1)
    )
    said = Said(text=reply.text, calls=calls, stop=reply.why, usage=reply.usage or estimated(reply), ended=True)
    writer = CODECS[dialect].writer(model, id)
    if not stream:
        yield json.dumps(writer.whole(said)).encode()
        return
    for piece in pieces_of(said):
        if isinstance(piece, TextPiece):
            yield from (writer.event(TextPiece(text=part)) for part in _pieces(piece.text, _TEXT_PIECE))
        elif isinstance(piece, CallPiece):
            parts = _pieces(piece.text, _ARGUMENT_PIECE)
            yield from (writer.event(CallPiece(index=piece.index, text=part)) for part in parts)
        else:
            yield writer.event(piece)


def render_for(dialect: Dialect, reply: ScriptedReply, body: Mapping[str, Any], *, id: str) -> UpstreamReply:
    """Return a reply to the call with that body, as its `model`, `stream` and `stream_options` ask for it."""
    stream, options = body.get("stream") is True, body.get("stream_options")
    pieces = render(
        dialect,
        reply,
        model=str(body.get("model", "")),
        stream=stream,
        usage_chunk=isinstance(options, Mapping) and options.get("include_usage") is True,
        id=id,
    )
    return reply_of(200, pieces, content_type=EVENT_STREAM if stream else "application/json")


def estimated(reply: ScriptedReply, body: Mapping[str, Any] | None = None) -> Usage:
    """Return a usage of one token for four bytes, at least one."""
    said = reply.text + "".join(call.name + call.text for call in reply.tools)
    asked = json.dumps(body) if body is not None else ""
    return Usage(input=_tokens(asked), output=_tokens(said))


def _tokens(text: str) -> int:
    return max(1, len(text.encode(errors="surrogatepass")) // _BYTES_A_TOKEN)


def error_body(dialect: Dialect, status: int, kind: str, message: str) -> bytes:
    """Return an error in the shape of the dialect; `kind` is its stable code."""
    if dialect in ("responses", "gemini"):
        return RULES[dialect].error(status, kind, message)
    if dialect == "openai":
        error = {"message": message, "type": kind, "param": None, "code": kind}
        return json.dumps({"error": error}).encode()
    default = "api_error" if status >= 500 else "invalid_request_error"
    error = {"type": _ANTHROPIC_ERRORS.get(status, default), "message": f"{message} ({kind})"}
    return json.dumps({"type": "error", "error": error}).encode()


def error_reply(
    dialect: Dialect, status: int, kind: str, message: str, *, headers: Mapping[str, str] | None = None
) -> UpstreamReply:
    """Return an error as an upstream answers it."""
    return reply_of(status, [error_body(dialect, status, kind, message)], headers=headers)


def reply_of(
    status: int,
    pieces: Iterable[bytes],
    *,
    content_type: str = "application/json",
    headers: Mapping[str, str] | None = None,
) -> UpstreamReply:
    """Return pieces that are already there as an upstream's reply."""
    return UpstreamReply(
        status=status, headers={"content-type": content_type, **(headers or {})}, chunks=_one_by_one(pieces)
    )


async def _one_by_one(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawing:
    """One reply while it is written out."""

    reply: ScriptedReply
    model: str
    id: str
    usage: Usage

    def _calls(self) -> Iterator[tuple[int, str, ScriptedCall]]:
        for number, call in enumerate(self.reply.tools):
            yield number, call.id or f"call_{self.id}_{number + 1}", call

    def _openai_usage(self) -> dict[str, Any]:
        read, written = self.usage.input or 0, self.usage.output or 0
        usage: dict[str, Any] = {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        }
        if self.usage.cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.usage.cached}
        return usage

    def _openai_head(self, kind: str) -> dict[str, Any]:
        return {"id": f"chatcmpl-{self.id}", "object": kind, "created": 0, "model": self.model}

    def openai(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.reply.text or None, "refusal": None}
        if self.reply.tools:
            message["tool_calls"] = [
                {"id": own, "type": "function", "function": {"name": call.name, "arguments": call.text}}
                for _, own, call in self._calls()
            ]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._stop("openai")}
        return {**self._openai_head("chat.completion"), "choices": [choice], "usage": self._openai_usage()}

    def openai_chunks(self, *, usage_chunk: bool) -> Iterator[dict[str, Any]]:
        head = self._openai_head("chat.completion.chunk")
        for delta in self._openai_deltas():
            yield {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]}
        last = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": self._stop("openai")}
        yield {**head, "choices": [last]}
        if usage_chunk:
            yield {**head, "choices": [], "usage": self._openai_usage()}

    def _openai_deltas(self) -> Iterator[dict[str, Any]]:
        yield {"role": "assistant", "content": ""}
        for piece in _pieces(self.reply.text, _TEXT_PIECE):
            yield {"content": piece}
        for number, own, call in self._calls():
            function = {"name": call.name, "arguments": ""}
            yield {"tool_calls": [{"index": number, "id": own, "type": "function", "function": function}]}
            for piece in _pieces(call.text, _ARGUMENT_PIECE):
                yield {"tool_calls": [{"index": number, "function": {"arguments": piece}}]}

    def _anthropic_head(self) -> dict[str, Any]:
        return {"id": f"msg_{self.id}", "type": "message", "role": "assistant", "model": self.model}

    def _anthropic_usage(self) -> dict[str, Any]:
        # This dialect counts what is cached apart from the rest of the input.
        cached, written = self.usage.cached or 0, self.usage.cache_write or 0
        return {
            "input_tokens": max(0, (self.usage.input or 0) - cached - written),
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": written,
            "output_tokens": self.usage.output or 0,
        }

    def anthropic(self) -> dict[str, Any]:
        content: list[dict[str, Any]] = [{"type": "text", "text": self.reply.text}] if self.reply.text else []
        for _, own, call in self._calls():
            content.append({"type": "tool_use", "id": own, "name": call.name, "input": _as_object(call)})
        stop = {"stop_reason": self._stop("anthropic"), "stop_sequence": None}
        return {**self._anthropic_head(), "content": content, **stop, "usage": self._anthropic_usage()}

    def anthropic_events(self) -> Iterator[dict[str, Any]]:
        usage = self._anthropic_usage()
        begun: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
        yield {
            "type": "message_start",
            "message": {**self._anthropic_head(), **begun, "usage": {**usage, "output_tokens": 1}},
        }
        yield {"type": "ping"}
        for index, (block, kind, name, pieces) in enumerate(self._anthropic_blocks()):
            yield {"type": "content_block_start", "index": index, "content_block": block}
            for piece in pieces:
                yield {"type": "content_block_delta", "index": index, "delta": {"type": kind, name: piece}}
            yield {"type": "content_block_stop", "index": index}
        stop = {"stop_reason": self._stop("anthropic"), "stop_sequence": None}
        yield {"type": "message_delta", "delta": stop, "usage": {"output_tokens": usage["output_tokens"]}}
        yield {"type": "message_stop"}

    def _anthropic_blocks(self) -> Iterator[tuple[dict[str, Any], str, str, Iterator[str]]]:
        if self.reply.text:
            yield {"type": "text", "text": ""}, "text_delta", "text", _pieces(self.reply.text, _TEXT_PIECE)
        for _, own, call in self._calls():
            block = {"type": "tool_use", "id": own, "name": call.name, "input": {}}
            yield block, "input_json_delta", "partial_json", _pieces(call.text, _ARGUMENT_PIECE)

    def _stop(self, dialect: Dialect) -> str:
        return STOP_WORDS[dialect][self.reply.why]


def _as_object(call: ScriptedCall) -> Any:
    if not isinstance(call.arguments, str):
        return call.arguments
    try:
        return json.loads(call.arguments)
    except ValueError:
        return call.arguments


def _pieces(text: str, size: int) -> Iterator[str]:
    return (text[start : start + size] for start in range(0, len(text), size))


def decode_body(dialect: Dialect, body: bytes, *, stream: bool) -> ScriptedReply:
    """Return what a body says; what it leaves out or has in another shape is left out.

    Raises `ValueError` where it is no JSON.
    """
    if stream:
        events = (event.data for event in parse_events(body))
        return decode_events(dialect, [json.loads(data) for data in events if data != "[DONE]"])
    return decode_document(dialect, json.loads(body))


def decode_document(dialect: Dialect, document: Any) -> ScriptedReply:
    """Return what a body in one piece says."""
    if dialect in ("responses", "gemini"):
        return _as_scripted(folded(CODECS[dialect].reader("").whole(_dict(document))))
    found = _Found(dialect=dialect)
    found.count(_dict(_dict(document).get("usage")))
    if dialect == "anthropic":
        for index, block in enumerate(_dicts(_dict(document).get("content"))):
            found.block(index, block)
        found.end(_dict(document).get("stop_reason"))
        return found.reply()
    for choice in _dicts(_dict(document).get("choices"))[:1]:
        message = _dict(choice.get("message"))
        found.openai_delta({**message, "tool_calls": _numbered(message.get("tool_calls"))})
        found.end(choice.get("finish_reason"))
    return found.reply()


def decode_events(dialect: Dialect, events: Iterable[Any]) -> ScriptedReply:
    """Return what the data of a stream's events says."""
    if dialect in ("responses", "gemini"):
        reader = CODECS[dialect].reader("")
        pieces = [piece for data in events for piece in reader.event(_dict(data))]
        return _as_scripted(folded([*pieces, *reader.end()]))
    found = _Found(dialect=dialect)
    for data in map(_dict, events):
        if dialect == "anthropic":
            found.anthropic_event(data)
            continue
        found.count(_dict(data.get("usage")))
        for choice in _dicts(data.get("choices"))[:1]:
            found.openai_delta(_dict(choice.get("delta")))
            found.end(choice.get("finish_reason"))
    return found.reply()


def _as_scripted(said: Said) -> ScriptedReply:
    tools = (ScriptedCall(id=c.id, name=c.name, arguments=_arguments(c.arguments)) for c in said.calls)
    stop = said.stop if said.ended else None
    return ScriptedReply(text=said.text, tools=tuple(tools), usage=said.usage, stop=stop)


@dataclass(slots=True, kw_only=True)
class _Call:
    id: str = ""
    name: str = ""
    text: str = ""


@dataclass(slots=True, kw_only=True)
class _Found:
    dialect: Dialect
    text: str = ""
    calls: dict[int, _Call] = field(default_factory=dict)
    counts: dict[str, Any] = field(default_factory=dict)
    word: str = ""

    def openai_delta(self, delta: Mapping[str, Any]) -> None:
        self.text += _text(delta.get("content"))
        for part in _dicts(delta.get("tool_calls")):
            call = self.calls.setdefault(int(part.get("index", 0)), _Call())
            function = _dict(part.get("function"))
            call.id += _text(part.get("id"))
            call.name += _text(function.get("name"))
            call.text += _text(function.get("arguments"))

    def anthropic_event(self, data: Mapping[str, Any]) -> None:
        delta, index = _dict(data.get("delta")), data.get("index", 0)
        self.count(_dict(_dict(data.get("message")).get("usage")) | _dict(data.get("usage")))
        self.end(delta.get("stop_reason"))
        if data.get("type") == "content_block_start":
            self.block(index, {**_dict(data.get("content_block")), "input": None})
        self.text += _text(delta.get("text"))
        if index in self.calls:
            self.calls[index].text += _text(delta.get("partial_json"))

    def block(self, index: int, block: Mapping[str, Any]) -> None:
        self.text += _text(block.get("text"))
        if block.get("type") == "tool_use":
            given = block.get("input")
            text = "" if given is None else given if isinstance(given, str) else json.dumps(given)
            self.calls[index] = _Call(id=_text(block.get("id")), name=_text(block.get("name")), text=text)

    def count(self, usage: Mapping[str, Any]) -> None:
        self.counts |= {key: value for key, value in usage.items() if value is not None}

    def end(self, word: Any) -> None:
        self.word = _text(word) or self.word

    def reply(self) -> ScriptedReply:
        calls = (self.calls[index] for index in sorted(self.calls))
        stops = {word: stop for stop, word in STOP_WORDS[self.dialect].items()}
        return ScriptedReply(
            text=self.text,
            tools=tuple(ScriptedCall(id=c.id, name=c.name, arguments=_arguments(c.text)) for c in calls),
            usage=self._usage(),
            stop=stops.get(self.word),
        )

    def _usage(self) -> Usage | None:
        counts = self.counts
        if self.dialect == "openai":
            if "prompt_tokens" not in counts:
                return None
            cached = _dict(counts.get("prompt_tokens_details")).get("cached_tokens")
            return Usage(input=counts["prompt_tokens"], output=counts.get("completion_tokens"), cached=cached)
        if "input_tokens" not in counts:
            return None
        cached, written = counts.get("cache_read_input_tokens"), counts.get("cache_creation_input_tokens")
        read = counts["input_tokens"] + (cached or 0) + (written or 0)
        return Usage(input=read, output=counts.get("output_tokens"), cached=cached, cache_write=written)


def _arguments(text: str) -> Mapping[str, Any] | str:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return text
    return found if isinstance(found, dict) else text


def _numbered(calls: Any) -> list[dict[str, Any]]:
    return [{**call, "index": number} for number, call in enumerate(_dicts(calls))]


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
