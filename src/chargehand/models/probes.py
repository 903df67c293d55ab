"""Small requests that find out what a model can do, and what their replies show of it."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from chargehand.core.errors import UpstreamError
from chargehand.core.ids import new_id
from chargehand.models.contract import Call, Dialect, Operation, ServedModel
from chargehand.models.dialects.base import EVENT_STREAM, EventSplitter, document, mapping
from chargehand.models.dialects.conversation import (
    Asked,
    Blob,
    Offer,
    Part,
    Said,
    Text,
    Turn,
    UncarriedError,
    folded,
)
from chargehand.models.dialects.embeddings import embedding_upstream
from chargehand.models.dialects.table import CODECS, RULES
from chargehand.models.dialects.translation import error_words
from chargehand.models.serving.streams import closing

Trial = Literal["streams", "images", "embeddings", "output_kept"]
TRIALS: tuple[Trial, ...] = ("streams", "images", "embeddings", "output_kept")
_SHORT, _TOKENS = 16, 64
_EDGE = 32
_REPLY_BYTES = 1 << 20
_REFUSALS = frozenset({400, 404, 405, 415, 422, 501})
"""What says that a model does not do this; keys, quotas and faults say nothing of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What came of a trial: `able` is `None` where it told nothing; `why` says so, or why not."""

    able: bool | None
    why: str = ""


async def try_out(served: ServedModel, trial: Trial, *, seconds: float) -> Tried:
    """Try one ability out with one small call, which costs what a few tokens cost; raises `UpstreamError`."""
    if trial == "embeddings":
        return await _embedded(served, seconds)
    asked = _asked(trial)
    body = CODECS[served.dialect].body(asked, served.model)
    status, kind, content = await _sent(served, body, "reply", seconds)
    if status != 200:
        return _refused(status, content)
    if trial == "streams":
        whole = kind.startswith(EVENT_STREAM) and _is_whole(served.dialect, content)
        return Tried(able=whole, why="" if whole else "what came is no stream that ends")
    said = _said(served.dialect, content)
    if said is None:
        return Tried(able=None, why="the reply cannot be read")
    return _saw(said) if trial == "images" else _kept(said)


def _asked(trial: Trial) -> Asked:
    if trial == "images":
        picture = Blob(media_type="image/png", data=base64.b64encode(red_square()).decode())
        parts: tuple[Part, ...] = (picture, Text(text="Which colour is this? Answer with one word."))
        return Asked(turns=(Turn(role="user", parts=parts),), limit=_TOKENS)
    if trial == "output_kept":
        words = "Count from 1 to 200, all numbers, one on each line."
        return Asked(turns=(Turn(role="user", parts=(Text(text=words),)),), limit=_SHORT)
    words = "Answer with the word ready."
    return Asked(turns=(Turn(role="user", parts=(Text(text=words),)),), limit=_TOKENS, stream=True)


def red_square() -> bytes:
    """Return a small red picture, as PNG."""
    rows = (b"\0" + b"\xff\0\0" * _EDGE) * _EDGE
    head = struct.pack(">IIBBBBB", _EDGE, _EDGE, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


async def _sent(
    served: ServedModel, body: Mapping[str, Any], operation: Operation, seconds: float
) -> tuple[int, str, bytes]:
    upstream = embedding_upstream(served, "openai") if operation == "embed" else served.upstream
    dialect: Dialect = "openai" if operation == "embed" else served.dialect
    call = Call(
        id=new_id("call"),
        dialect=dialect,
        body=body,
        attempt="probe",
        turn=1,
        seconds=seconds,
        operation=operation,
    )
    reply = await upstream.send(call)
    content = bytearray()
    async with closing(reply.chunks):
        async for chunk in reply.chunks:
            content += chunk
            if len(content) > _REPLY_BYTES:
                raise UpstreamError("the reply to a small request is very large", code="upstream_malformed")
    headers = {name.lower(): value for name, value in reply.headers.items()}
    return reply.status, headers.get("content-type", "").lower(), bytes(content)


async def _embedded(served: ServedModel, seconds: float) -> Tried:
    if served.dialect == "anthropic":
        return Tried(able=False, why="Anthropic's messages have no embeddings")
    status, _, content = await _sent(served, {"model": served.model, "input": ["ready"]}, "embed", seconds)
    if status != 200:
        return _refused(status, content)
    try:
        rows = mapping(document(content)).get("data")
    except ValueError:
        rows = None
    made = isinstance(rows, list) and len(rows) == 1 and bool(mapping(rows[0]).get("embedding"))
    return Tried(able=True) if made else Tried(able=None, why="what came holds no embedding")


def _refused(status: int, content: bytes) -> Tried:
    words = error_words(content)
    said = f"HTTP {status}: {words}" if words else f"HTTP {status}"
    return Tried(able=False if status in _REFUSALS else None, why=said)


def _is_whole(dialect: Dialect, content: bytes) -> bool:
    split, tally = EventSplitter(), RULES[dialect].tally({})
    for event in [*split.feed(content), split.rest()]:
        if event:
            tally.see(event)
    return tally.finished and not tally.failed


def _said(dialect: Dialect, content: bytes) -> Said | None:
    try:
        said = folded(CODECS[dialect].reader("probe").whole(mapping(document(content))))
    except (UncarriedError, ValueError, TypeError, AttributeError, KeyError):
        # A reply of another shape than its dialect's.
        return None
    return said if said.ended and not said.broken else None


def _saw(said: Said) -> Tried:
    if "red" in said.text.lower():
        return Tried(able=True)
    # Some servers leave pictures out and say nothing of it, and small models see badly: both look like this.
    return Tried(able=None, why=f"it did not name the colour of a picture, but said {said.text[:60]!r}")


def _kept(said: Said) -> Tried:
    written = said.usage.output
    if written is not None and written > 2 * _SHORT:
        return Tried(able=False, why=f"it wrote {written} tokens where {_SHORT} were allowed")
    if said.stop == "length":
        return Tried(able=True)
    return Tried(able=None, why="it ended before it reached the limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallAnswer:
    """What came of a small request; `called`: a tool, `cut`: the output limit ended it."""

    message: bool
    called: bool
    cut: bool


def small_request(dialect: Dialect, model: str, *, words: str, tool: str | None, limit: int) -> dict[str, Any]:
    """Return the body of a request with these words, one tool that takes nothing, and `limit` tokens of output."""
    offers = () if tool is None else (Offer(name=tool, description="Says that you can be worked with."),)
    turn = Turn(role="user", parts=(Text(text=words),))
    return CODECS[dialect].body(Asked(turns=(turn,), tools=offers, limit=limit), model)


def small_answer(dialect: Dialect, document: Mapping[str, Any]) -> SmallAnswer:
    """Return what a reply in one piece holds."""
    try:
        said = folded(CODECS[dialect].reader("probe").whole(document))
    except UncarriedError:
        said = folded(())
    known = said.ended and bool({"candidates", "output", "choices", "content"} & set(document))
    return SmallAnswer(message=known and not said.broken, called=bool(said.calls), cut=said.stop == "length")
