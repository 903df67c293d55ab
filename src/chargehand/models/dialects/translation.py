"""Translates calls for an upstream that speaks another dialect, and its replies back."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from chargehand.core.errors import UpstreamError
from chargehand.models._json import as_mapping, dump_json, parse_json
from chargehand.models.contract import DerivedChunks, Dialect, ModelCall, ModelUpstream, ReplyUsage, UpstreamReply
from chargehand.models.conversation import (
    NeutralRequest,
    ReasoningRequest,
    ReplyDelta,
    ReplyEnd,
    ReplyError,
    ToolCallDelta,
    ToolCallStart,
    UntranslatableError,
    fold_reply,
)
from chargehand.models.dialects.base import UNKNOWN_USAGE, DialectTable, ModelDialect, StreamMeter
from chargehand.models.dialects.left_out import LEFT_OUT, join_left_out
from chargehand.models.event_stream import EVENT_STREAM, EventSplitter, event_data


class TranslatingUpstream:
    """Translates calls into the dialect `to` of `inner`, and its replies back into the dialect of the call.

    If `to` cannot express an essential part of a request, `send` raises `UpstreamError` (`uncarried`); other parts
    that are not sent are named in the reply's header `x-chargehand-left-out`. `reasoning`: the model can reason.
    """

    def __init__(
        self, inner: ModelUpstream, to: Dialect, dialects: DialectTable, *, reasoning: bool = True
    ) -> None:
        self._inner = inner
        self._dialects = dialects
        self._to = dialects[to]
        self._reasoning = reasoning

    async def send(self, call: ModelCall) -> UpstreamReply:
        """Send one call; raises `UpstreamError` as the inner upstream does."""
        model = str(call.body.get("model", ""))
        client = self._dialects[call.dialect]
        try:
            asked = client.read_request(call.body)
            wanted = asked.reasoning
            if not self._reasoning:
                asked = replace(asked, reasoning=ReasoningRequest())
            body, left_out = self._to.write_request(asked, model)
        except UntranslatableError as error:
            raise UpstreamError(str(error), code="uncarried") from None
        # The client's headers name versions and features of its own dialect, which mean nothing in another.
        body = self._to.prepare(body, model, asked.limit)
        reply = await self._inner.send(replace(call, dialect=self._to.name, body=body, headers={}))
        headers = reply.lower_headers
        if not self._reasoning and wanted.amount and wanted.word != "none":
            left_out = (*left_out, wanted.amount)
        spelled = tuple(client.spelling.get(name, name) for name in left_out)
        if names := join_left_out((*asked.left_out, *spelled)):
            headers[LEFT_OUT] = ", ".join(names)
        translated = _TranslatedReply(reply, call, client=client, provider=self._to, asked=asked)
        if not reply.is_success:
            kept = {**headers, "content-type": "application/json"}
            return UpstreamReply(status=reply.status, headers=kept, chunks=translated)
        headers["content-type"] = EVENT_STREAM if call.stream else "application/json"
        return UpstreamReply(
            status=reply.status,
            headers=headers,
            chunks=translated,
            meter=lambda: translated.metered,
            fault=lambda: translated.fault,
            left_out=lambda: translated.left_out,
        )

    async def close(self) -> None:
        """Close the inner upstream."""
        await self._inner.close()


class _TranslatedReply(DerivedChunks):
    """The pieces of a reply in the client's dialect; usage is metered in the provider's."""

    def __init__(
        self,
        reply: UpstreamReply,
        call: ModelCall,
        *,
        client: ModelDialect,
        provider: ModelDialect,
        asked: NeutralRequest,
    ) -> None:
        self.metered: ReplyUsage = UNKNOWN_USAGE
        self.fault = ""
        super().__init__(self._translate(), reply.chunks)
        self._reply = reply
        self._stream = call.stream
        self._client = client
        self._provider = provider
        self._reader = provider.reply_reader(call.id)
        self._writer = client.reply_writer(str(call.body.get("model", "")), call.id)
        self._sorter = _CallSorter()
        self._unwrapper = _CustomToolUnwrapper(asked.custom)
        self._calls = list[ReplyDelta]()

    @property
    def left_out(self) -> tuple[str, ...]:
        """The parts of the provider's reply that are missing from these pieces."""
        return tuple(f"reply.{name}" for name in sorted(self._reader.left_out))

    async def _translate(self) -> AsyncGenerator[bytes, None]:
        status = self._reply.status
        if not self._reply.is_success:
            message = read_error_message(await self._reply.read_all())
            message = message or f"the provider answered with HTTP {status}"
            yield self._client.write_error(status, "upstream_error", message)
            return
        streamed = self._reply.lower_headers.get("content-type", "").lower().startswith(EVENT_STREAM)
        try:
            if streamed and self._stream:
                async for delta in self._stream_deltas():
                    if out := self._writer.write_delta(delta):
                        yield out
                return
            # Some providers stream unasked, or do not stream when asked: the client gets the form that it asked
            # for.
            body = await self._reply.read_all()
            if streamed:
                split = EventSplitter()
                meter = self._provider.stream_meter({})
                events = [*split.feed(body), split.rest()]
                deltas = [delta for event in events for delta in self._read_event(event, meter)]
                deltas += self._take(self._reader.finish())
            else:
                content = parse_reply(body)
                self.metered = self._provider.read_usage(content)
                deltas = list(self._take(self._reader.read_whole(content)))
            if self._stream:
                for delta in deltas:
                    yield self._writer.write_delta(delta)
                return
            whole = fold_reply(deltas)
            if whole.broken or not whole.ended:
                raise _unreadable_reply(whole.broken or "the model's reply does not say how it ended")
            yield dump_json(self._writer.write_whole(whole))
        except (UntranslatableError, TypeError, AttributeError, KeyError) as error:
            # The provider's reply does not have its dialect's shape; property tests check our own readers.
            raise _unreadable_reply(f"the model's reply cannot be read: {error}") from None

    async def _stream_deltas(self) -> AsyncIterator[ReplyDelta]:
        split = EventSplitter()
        meter = self._provider.stream_meter({})
        async for chunk in self._reply.chunks:
            for event in split.feed(chunk):
                for delta in self._read_event(event, meter):
                    yield delta
        for delta in (*self._read_event(split.rest(), meter), *self._take(self._reader.finish())):
            yield delta

    def _read_event(self, event: bytes, meter: StreamMeter) -> Iterator[ReplyDelta]:
        content = read_event_data(event)
        meter.take(content)
        self.metered = meter.metered
        return self._take(self._reader.read_event(content))

    def _take(self, deltas: list[ReplyDelta]) -> Iterator[ReplyDelta]:
        """Yield the deltas to send; at the end, find out whether the model wrote malformed calls."""
        ordered = self._sorter.sort(deltas) if self._provider.mixes_calls else deltas
        for delta in self._unwrapper.unwrap(ordered):
            if isinstance(delta, ToolCallStart | ToolCallDelta):
                self._calls.append(delta)
            elif isinstance(delta, ReplyEnd):
                bad = (call.id for call in fold_reply(self._calls).calls if call.malformed)
                told = (f"the arguments of tool call {own!r:.80} are not a JSON object" for own in bad)
                self.fault = "; ".join([*([delta.fault] if delta.fault else []), *told])
            yield delta


class _CallSorter:
    """Separates interleaved tool calls into a sequence, since not every dialect can interleave them.

    The first call passes as it arrives, the others once the reply ends: until then more of the first may come.
    """

    def __init__(self) -> None:
        self._first: int | None = None
        self._held: dict[int | None, list[ReplyDelta]] = {}

    def sort(self, deltas: list[ReplyDelta]) -> Iterator[ReplyDelta]:
        """Yield the deltas to send now."""
        for delta in deltas:
            if isinstance(delta, ReplyEnd | ReplyError):
                held = self._held
                self._held = {}
                yield from (one for several in held.values() for one in several)
                yield delta
                continue
            index = delta.index if isinstance(delta, ToolCallStart | ToolCallDelta) else None
            if self._first is None:
                self._first = index
            if index == self._first:
                yield delta
            else:
                self._held.setdefault(index, []).append(delta)


class _CustomToolUnwrapper:
    """Turns calls of functions that replace plain-text tools back into calls of the client's tools."""

    def __init__(self, custom: frozenset[str]) -> None:
        self._custom = custom
        self._held: dict[int, str] = {}

    def unwrap(self, deltas: Iterable[ReplyDelta]) -> Iterator[ReplyDelta]:
        """Yield the deltas to send now; the text of a wrapped call is known only when all of it arrived."""
        for delta in deltas:
            if isinstance(delta, ToolCallDelta) and delta.index in self._held:
                self._held[delta.index] += delta.text
                continue
            if isinstance(delta, ToolCallStart | ReplyEnd | ReplyError):
                held = self._held
                self._held = {}
                yield from (ToolCallDelta(index=index, text=_unwrap_input(text)) for index, text in held.items())
            if isinstance(delta, ToolCallStart) and delta.name in self._custom and not delta.custom:
                self._held[delta.index] = ""
                yield replace(delta, custom=True)
            else:
                yield delta


def _unwrap_input(text: str) -> str:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    given = found.get("input") if isinstance(found, dict) else None
    return given if isinstance(given, str) else text


def read_event_data(event: bytes) -> Mapping[str, Any]:
    """Return the decoded data of an event, empty if it has no data; raises `UpstreamError`."""
    data = event_data(event) if event else b""
    return {} if not data or data.startswith(b"[DONE]") else parse_reply(data)


def parse_reply(data: bytes) -> Mapping[str, Any]:
    """Return the object that a provider sent, an empty one for other JSON; raises `UpstreamError`."""
    try:
        return as_mapping(parse_json(data))
    except ValueError:
        raise UpstreamError("the provider's reply is not JSON", code="upstream_malformed") from None


def _unreadable_reply(message: str) -> UpstreamError:
    """Return the fault of an unreadable reply that is already paid for: a retry would pay again."""
    return UpstreamError(message, code="reply_unreadable")


def read_error_message(body: bytes) -> str:
    """Return the message in the body of an error reply of any dialect; empty if missing."""
    try:
        found = parse_json(body)
    except ValueError:
        return body[:500].decode("utf-8", "replace").strip()
    if isinstance(found, list) and found:
        found = found[0]
    error = as_mapping(found).get("error", as_mapping(found).get("message", ""))
    return str(as_mapping(error).get("message", "") if isinstance(error, dict) else error or "")
