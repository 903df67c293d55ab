"""A call in one dialect, answered by an upstream that speaks another."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from chargehand.core.errors import UpstreamError
from chargehand.models.contract import Call, Dialect, Upstream, UpstreamReply, Usage
from chargehand.models.dialects.base import EVENT_STREAM, EventSplitter, Metered, document, event_data, mapping
from chargehand.models.dialects.conversation import (
    Asked,
    Broken,
    CallBegun,
    CallPiece,
    Ended,
    Piece,
    Reader,
    UncarriedError,
    Writer,
    folded,
)
from chargehand.models.dialects.table import CODECS, RULES
from chargehand.models.serving.streams import LEFT_OUT

_BODY_BYTES = 64 * 1_048_576


def carried(dialect: Dialect, body: Mapping[str, Any], to: Dialect, model: str) -> Asked:
    """Return what a request asks; raises `UncarriedError` where `to` has no place for all of it."""
    asked = CODECS[dialect].asked(body)
    if dialect != to:
        CODECS[to].body(asked, model)
    return asked


class TranslatingUpstream:
    """Puts calls into the dialect `to` of `inner`, and its replies back into that of the call.

    What `to` has no place for raises `UpstreamError` (`uncarried`); what means nothing to another provider (hints,
    reasoning) is named in the reply's header `x-chargehand-left-out`.
    """

    def __init__(self, inner: Upstream, to: Dialect) -> None:
        self._inner = inner
        self._to = to

    async def send(self, call: Call) -> UpstreamReply:
        """Send one call; raises `UpstreamError` as the inner upstream does."""
        model = str(call.body.get("model", ""))
        try:
            asked = CODECS[call.dialect].asked(call.body)
            body = CODECS[self._to].body(asked, model)
        except UncarriedError as error:
            raise UpstreamError(str(error), code="uncarried") from None
        body = RULES[self._to].prepared(body, model, asked.limit)
        reply = await self._inner.send(replace(call, dialect=self._to, body=body, headers={}))
        headers = {name.lower(): value for name, value in reply.headers.items()}
        if asked.left_out:
            headers[LEFT_OUT] = ", ".join(name for name in asked.left_out if name.isascii() and name.isprintable())
        if not 200 <= reply.status < 300:
            kept = {**headers, "content-type": "application/json"}
            return UpstreamReply(status=reply.status, headers=kept, chunks=_Refusal(reply, call, self._to))
        headers["content-type"] = EVENT_STREAM if call.stream else "application/json"
        translated = Translation(reply, call, self._to, asked, model)
        return UpstreamReply(status=reply.status, headers=headers, chunks=translated, meter=translated)

    async def close(self) -> None:
        """Close the inner upstream."""
        await self._inner.close()


class _Closing:
    """The pieces of a reply made of another's; `aclose` reaches that one also where nothing was read."""

    def __init__(self, reply: UpstreamReply) -> None:
        self._reply = reply
        self._pieces = self._made()

    def _made(self) -> AsyncIterator[bytes]:
        raise NotImplementedError

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._pieces)

    async def aclose(self) -> None:
        """Close both."""
        for chunks in (self._pieces, self._reply.chunks):
            close = getattr(chunks, "aclose", None)
            if close is not None:
                await close()

    async def _whole(self) -> bytes:
        body = bytearray()
        async for chunk in self._reply.chunks:
            body += chunk
            if len(body) > _BODY_BYTES:
                raise _malformed(f"the reply is larger than {_BODY_BYTES} B")
        return bytes(body)


class _Refusal(_Closing):
    """An error of the provider in the client's dialect, with the provider's own words."""

    def __init__(self, reply: UpstreamReply, call: Call, dialect: Dialect) -> None:
        self._call = call
        self._dialect = dialect
        super().__init__(reply)

    async def _made(self) -> AsyncIterator[bytes]:
        status = self._reply.status
        message = error_words(await self._whole()) or f"the provider answered with HTTP {status}"
        yield RULES[self._call.dialect].error(status, "upstream_error", message)


class Translation(_Closing):
    """A good reply, piece by piece in the client's dialect; it keeps count in the provider's."""

    def __init__(self, reply: UpstreamReply, call: Call, dialect: Dialect, asked: Asked, model: str) -> None:
        self._call = call
        self._rules = RULES[dialect]
        self._reader: Reader = CODECS[dialect].reader(call.id)
        self._writer: Writer = CODECS[call.dialect].writer(model, call.id)
        self._unwrap = Unwrapped(asked.custom)
        self._metered = Metered(usage=Usage())
        super().__init__(reply)

    def used(self) -> tuple[Usage, int]:
        """Return what the provider reported; an hour's share of the cache apart."""
        return self._metered.usage, self._metered.hour_writes

    async def _made(self) -> AsyncIterator[bytes]:
        kind = {name.lower(): value for name, value in self._reply.headers.items()}.get("content-type", "")
        streamed = kind.lower().startswith(EVENT_STREAM)
        try:
            if streamed and self._call.stream:
                async for out in self._events():
                    yield out
                return
            pieces = await self._read(streamed=streamed)
            if not self._call.stream:
                said = folded(pieces)
                if said.broken or not said.ended:
                    raise _malformed(said.broken or "the provider's reply does not say how it ended")
                yield msgspec.json.encode(self._writer.whole(said))
                return
            for piece in pieces:
                yield self._writer.event(piece)
        except (UncarriedError, TypeError, AttributeError, KeyError) as error:
            # A provider's reply of another shape than its dialect's; our own readers are held by property tests.
            raise _malformed(f"the provider's reply cannot be read: {error}") from None

    async def _read(self, *, streamed: bool) -> list[Piece]:
        body = await self._whole()
        if not streamed:
            content = mapping(_document(body))
            self._metered = self._rules.metered(content)
            return self._shown(self._reader.whole(content))
        split, tally = EventSplitter(), self._rules.tally({})
        found: list[Piece] = []
        for event in [*split.feed(body), split.rest()]:
            tally.see(event)
            found += self._shown(self._reader.event(_data(event)))
        self._metered = tally.metered()
        return found + self._shown(self._reader.end())

    async def _events(self) -> AsyncIterator[bytes]:
        split, tally = EventSplitter(), self._rules.tally({"stream_options": {"include_usage": True}})
        async for chunk in self._reply.chunks:
            for out in self._translated(split.feed(chunk), tally):
                yield out
        for out in self._translated([split.rest()], tally):
            yield out
        for piece in self._shown(self._reader.end()):
            yield self._writer.event(piece)

    def _translated(self, events: list[bytes], tally: Any) -> Iterator[bytes]:
        for event in events:
            tally.see(event)
            self._metered = tally.metered()
            for piece in self._shown(self._reader.event(_data(event))):
                out = self._writer.event(piece)
                if out:
                    yield out

    def _shown(self, pieces: list[Piece]) -> list[Piece]:
        return [shown for piece in pieces for shown in self._unwrap.of(piece)]


class Unwrapped:
    """Turns calls of functions that stand for plain-text tools back into what the client offered."""

    def __init__(self, custom: frozenset[str]) -> None:
        self._custom = custom
        self._held: dict[int, str] = {}

    def of(self, piece: Piece) -> list[Piece]:
        """Return what goes on now; the text of a wrapped call is known when all of it is there."""
        if isinstance(piece, CallBegun):
            before = self._released()
            if piece.name not in self._custom or piece.custom:
                return [*before, piece]
            self._held[piece.index] = ""
            return [*before, replace(piece, custom=True)]
        if isinstance(piece, CallPiece) and piece.index in self._held:
            self._held[piece.index] += piece.text
            return []
        return [*self._released(), piece] if isinstance(piece, Ended | Broken) else [piece]

    def _released(self) -> list[Piece]:
        held, self._held = self._held, {}
        return [CallPiece(index=index, text=_input(text)) for index, text in held.items()]


def _input(text: str) -> str:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    given = found.get("input") if isinstance(found, dict) else None
    return given if isinstance(given, str) else text


def _data(event: bytes) -> Mapping[str, Any]:
    data = event_data(event) if event else b""
    if not data or data.startswith(b"[DONE]"):
        return {}
    return mapping(_document(data))


def _document(data: bytes) -> Any:
    try:
        return document(data)
    except ValueError:
        raise _malformed("the provider's reply is not JSON") from None


def error_words(body: bytes) -> str:
    """Return what the body of an error reply says, empty where it says nothing."""
    try:
        found = document(body)
    except ValueError:
        return body[:500].decode("utf-8", "replace").strip()
    if isinstance(found, list) and found:
        found = found[0]
    error = mapping(found).get("error", mapping(found).get("message", ""))
    return str(mapping(error).get("message", "") if isinstance(error, dict) else error or "")


def _malformed(message: str) -> UpstreamError:
    return UpstreamError(message, code="upstream_malformed")
