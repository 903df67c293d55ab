"""Serialises scripted replies in each dialect, and reads them back from recorded bodies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from msgspec import Struct

from chargehand.models._json import as_mapping
from chargehand.models.contract import ModelCall, StopReason, UpstreamReply, Usage, reply_from_pieces
from chargehand.models.conversation import (
    NeutralReply,
    ReplyDelta,
    ReplyEnd,
    TextDelta,
    ToolCallDelta,
    ToolCallPart,
    fold_reply,
    reply_deltas,
)
from chargehand.models.dialects.base import EmbeddingVectors, ModelDialect, estimate_tokens
from chargehand.models.event_stream import EVENT_STREAM, EventSplitter, parse_events

# The header that forbids retries to official clients: by default they retry a 409.
NO_RETRY: Mapping[str, str] = {"x-should-retry": "false"}
_TEXT_PIECE = 24
_ARGUMENT_PIECE = 12
_BYTES_A_TOKEN = 4
_DIMENSIONS = 8


class ScriptedCall(Struct, frozen=True, kw_only=True):
    """A tool call of a scripted reply; arguments given as text are sent unchanged, valid JSON or not."""

    name: str
    arguments: Mapping[str, Any] | str
    id: str = ""

    @property
    def text(self) -> str:
        """The arguments as JSON text."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


class ScriptedReply(Struct, frozen=True, kw_only=True):
    """A scripted model's reply: text, tool calls, or both.

    `usage` is estimated from the bytes if not given, `stop` follows from the tool calls. `fault` is one entry of a
    fault specification without its turn; `delay` is in seconds before the head of the reply.
    """

    text: str = ""
    tools: tuple[ScriptedCall, ...] = ()
    usage: Usage | None = None
    stop: StopReason | None = None
    fault: str = ""
    delay: float = 0.0

    @property
    def why(self) -> StopReason:
        """Why the reply ends."""
        return self.stop or ("tools" if self.tools else "end")


def render(
    dialect: ModelDialect,
    reply: ScriptedReply,
    *,
    model: str,
    stream: bool,
    usage_chunk: bool = False,
    id: str = "scripted",
) -> Iterator[bytes]:
    """Yield the body of a reply; `usage_chunk`: the client asked for usage, if a stream reports it on request.

    `id` goes into the reply's id and the ids of tool calls without an id.
    """
    calls = tuple(
        ToolCallPart(id=call.id or f"call_{id}_{number}", name=call.name, arguments=call.text, unchecked=True)
        for number, call in enumerate(reply.tools, start=1)
    )
    usage = reply.usage or estimate_usage(reply)
    whole = NeutralReply(text=reply.text, calls=calls, stop=reply.why, usage=usage, ended=True)
    writer = dialect.reply_writer(model, id)
    if not stream:
        yield json.dumps(writer.write_whole(whole)).encode()
        return
    split = EventSplitter()  # one event at a time, as providers send them
    hidden = dialect.usage_on_request and not usage_chunk
    for delta in reply_deltas(whole):
        # In small pieces, as a model writes them: clients must cope with words and arguments cut anywhere.
        pieces: list[ReplyDelta] = [delta]
        match delta:
            case TextDelta(text=text):
                pieces = [TextDelta(text=text[at : at + _TEXT_PIECE]) for at in range(0, len(text), _TEXT_PIECE)]
            case ToolCallDelta(index=index, text=text):
                starts = range(0, len(text), _ARGUMENT_PIECE)
                pieces = [ToolCallDelta(index=index, text=text[at : at + _ARGUMENT_PIECE]) for at in starts]
            case ReplyEnd(stop=stop) if hidden:
                pieces = [ReplyEnd(stop=stop)]
        for piece in pieces:
            yield from split.feed(writer.write_delta(piece))


def render_for(dialect: ModelDialect, reply: ScriptedReply, body: Mapping[str, Any], *, id: str) -> UpstreamReply:
    """Return a reply to a call with that body, following its `model`, `stream` and `stream_options`."""
    stream = body.get("stream") is True
    pieces = render(
        dialect,
        reply,
        model=str(body.get("model", "")),
        stream=stream,
        usage_chunk=as_mapping(body.get("stream_options")).get("include_usage") is True,
        id=id,
    )
    return reply_from_pieces(200, pieces, content_type=EVENT_STREAM if stream else "application/json")


def estimate_usage(reply: ScriptedReply, body: Mapping[str, Any] | None = None) -> Usage:
    """Estimate the usage as one token per four bytes, at least one."""
    said = reply.text + "".join(call.name + call.text for call in reply.tools)
    asked = "" if body is None else json.dumps(body)
    sizes = (len(text.encode(errors="surrogatepass")) for text in (asked, said))
    read, written = (max(1, size // _BYTES_A_TOKEN) for size in sizes)
    return Usage(input=read, output=written)


def error_reply(
    dialect: ModelDialect, status: int, kind: str, message: str, *, headers: Mapping[str, str] | None = None
) -> UpstreamReply:
    """Return an upstream's error reply; `kind` is its stable code."""
    return reply_from_pieces(status, [dialect.write_error(status, kind, message)], headers=headers)


def side_reply(dialect: ModelDialect, call: ModelCall) -> UpstreamReply:
    """Answer a count of tokens or embeddings without a provider: from the bytes, equal every time."""
    if call.operation == "count":
        count = estimate_tokens(call.body)
        return reply_from_pieces(200, [dialect.write_count(count)])
    form = dialect.require_embeddings()
    given = call.body.get("input")
    # A text always has the same vector, so that vector searches find the same in each run.
    if isinstance(given, list):  # of texts, or of token numbers, which a script can treat as texts
        given = [one if isinstance(one, str) else json.dumps(one) for one in given]
    asked = form.read_texts({**call.body, **({} if given is None else {"input": given})})
    digests = [hashlib.sha256(json.dumps(text).encode()).digest()[:_DIMENSIONS] for text in asked.texts]
    made = EmbeddingVectors(
        vectors=tuple(tuple(byte / 255 for byte in digest) for digest in digests),
        used=sum(estimate_tokens({"input": text}) for text in asked.texts),
    )
    document = form.write_vectors(made, asked, str(call.body.get("model", "")))
    return reply_from_pieces(200, [json.dumps(document).encode()])


def decode_body(dialect: ModelDialect, body: bytes, *, stream: bool) -> ScriptedReply:
    """Decode a body; missing and malformed parts are left out.

    Raises `ValueError` if the body is not JSON.
    """
    if stream:
        events = (event.data for event in parse_events(body))
        return decode_events(dialect, [json.loads(data) for data in events if data != "[DONE]"])
    return decode_document(dialect, json.loads(body))


def decode_document(dialect: ModelDialect, document: Any) -> ScriptedReply:
    """Decode a body in one piece."""
    return _to_scripted(dialect.reply_reader("").read_whole(as_mapping(document)))


def decode_events(dialect: ModelDialect, events: Iterable[Any]) -> ScriptedReply:
    """Decode the data of a stream's events."""
    reader = dialect.reply_reader("")
    deltas = [delta for data in events for delta in reader.read_event(as_mapping(data))]
    return _to_scripted([*deltas, *reader.finish()])


def _to_scripted(deltas: Iterable[ReplyDelta]) -> ScriptedReply:
    said = fold_reply(deltas)
    tools = []
    for call in said.calls:
        arguments: Mapping[str, Any] | str = call.arguments
        with suppress(ValueError):
            found = json.loads(call.arguments or "{}")
            arguments = found if isinstance(found, dict) else arguments
        tools.append(ScriptedCall(id=call.id, name=call.name, arguments=arguments))
    return ScriptedReply(
        text=said.text,
        tools=tuple(tools),
        usage=None if said.usage == Usage() else said.usage,
        stop=said.stop if said.ended else None,
    )
