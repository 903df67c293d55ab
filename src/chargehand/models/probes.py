"""Small requests that find out whether a model answers and what it can do."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from chargehand.core.ids import new_id
from chargehand.models._json import as_mapping, parse_json
from chargehand.models.contract import Dialect, ModelCall, Operation, ServedModel
from chargehand.models.conversation import (
    ConversationPart,
    ConversationTurn,
    FilePart,
    NeutralReply,
    NeutralRequest,
    OfferedTool,
    TextPart,
    UntranslatableError,
    fold_reply,
)
from chargehand.models.dialects.embeddings import embeddings_upstream, explain_refusal
from chargehand.models.dialects.translation import read_error_message
from chargehand.models.event_stream import EVENT_STREAM, EventSplitter
from chargehand.models.registries import DIALECTS

Trial = Literal["streams", "images", "embeddings", "output_kept"]
TRIALS: tuple[Trial, ...] = ("streams", "images", "embeddings", "output_kept")
_SHORT = 16
_TOKENS = 64
_EDGE = 32
_REPLY_BYTES = 1 << 20
# Statuses which say that a model lacks an ability; keys, quotas and faults say nothing about it.
_REFUSALS = frozenset({400, 404, 405, 415, 422, 501})


class SmallAnswer(Struct, frozen=True, kw_only=True):
    """The result of a small request; `called`: it called a tool, `cut`: the output limit ended it."""

    message: bool
    called: bool
    cut: bool


def small_request(dialect: Dialect, model: str, *, words: str, tool: str | None, limit: int) -> dict[str, Any]:
    """Return the body of a request with this text, one tool without arguments, and `limit` output tokens."""
    offers = () if tool is None else (OfferedTool(name=tool, description="Says that you can be worked with."),)
    turn = ConversationTurn(role="user", parts=(TextPart(text=words),))
    return DIALECTS[dialect].write_request(NeutralRequest(turns=(turn,), tools=offers, limit=limit), model).body


def small_answer(dialect: Dialect, document: Mapping[str, Any]) -> SmallAnswer:
    """Summarise a reply in one piece."""
    try:
        said = fold_reply(DIALECTS[dialect].reply_reader("probe").read_whole(document))
    except UntranslatableError:
        said = fold_reply(())
    known = said.ended and bool({"candidates", "output", "choices", "content"} & set(document))
    return SmallAnswer(message=known and not said.broken, called=bool(said.calls), cut=said.stop == "length")


def list_request(dialect: Dialect, key: str | None) -> tuple[str, dict[str, str], str]:
    """Return how to ask a provider for its models: path with its version, headers, the field of a name."""
    spoken = DIALECTS[dialect]
    return spoken.list_path, spoken.provider_headers(key), spoken.list_field


class TrialResult(Struct, frozen=True, kw_only=True):
    """The result of a trial: `able` is `None` if it was inconclusive; `why` explains every result but success."""

    able: bool | None
    why: str = ""


async def try_out(served: ServedModel, trial: Trial, *, seconds: float) -> TrialResult:
    """Try one ability with one small call, at the cost of a few tokens; raises `UpstreamError`."""
    if trial == "embeddings":
        return await _try_embeddings(served, seconds)
    dialect = DIALECTS[served.dialect]
    words = "Answer with the word ready."
    parts = list[ConversationPart]()
    if trial == "images":
        words = "Which colour is this? Answer with one word."
        parts = [FilePart(media_type="image/png", data=base64.b64encode(red_square()).decode())]
    elif trial == "output_kept":
        words = "Count from 1 to 200, all numbers, one on each line."
    turn = ConversationTurn(role="user", parts=(*parts, TextPart(text=words)))
    limit = _SHORT if trial == "output_kept" else _TOKENS
    body = dialect.write_request(
        NeutralRequest(turns=(turn,), limit=limit, stream=trial == "streams"), served.model
    ).body
    status, kind, content = await _send(served, body, "reply", seconds)
    if status != 200:
        return _read_refusal(status, content)
    if trial == "streams":
        split = EventSplitter()
        meter = dialect.stream_meter({})
        for event in filter(None, [*split.feed(content), split.rest()]):
            meter.see(event)
        whole = kind.startswith(EVENT_STREAM) and meter.finished and not meter.failed
        return TrialResult(able=whole, why="" if whole else "the reply is not a stream that ends")
    try:
        said = fold_reply(dialect.reply_reader("probe").read_whole(as_mapping(parse_json(content))))
    except (UntranslatableError, ValueError, TypeError, AttributeError, KeyError):
        said = fold_reply(())  # a reply that does not have its dialect's shape
    if said.broken or not said.ended:
        return TrialResult(able=None, why="the reply cannot be read")
    return _judge(trial, said)


def red_square() -> bytes:
    """Return a small red picture, as PNG."""
    rows = (b"\0" + b"\xff\0\0" * _EDGE) * _EDGE
    head = struct.pack(">IIBBBBB", _EDGE, _EDGE, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


async def _send(
    served: ServedModel, body: Mapping[str, Any], operation: Operation, seconds: float
) -> tuple[int, str, bytes]:
    """Return status, content type and body of the reply."""
    upstream = embeddings_upstream(served, "openai", DIALECTS) if operation == "embed" else served.upstream
    call = ModelCall(
        id=new_id("call"),
        dialect="openai" if operation == "embed" else served.dialect,
        body=body,
        attempt="probe",
        turn=1,
        seconds=seconds,
        operation=operation,
    )
    reply = await upstream.send(call)
    content = await reply.read_all(_REPLY_BYTES)
    return reply.status, reply.lower_headers.get("content-type", "").lower(), content


async def _try_embeddings(served: ServedModel, seconds: float) -> TrialResult:
    body = {"model": served.model, "input": ["ready"]}
    refusal = explain_refusal(served, "openai", body, DIALECTS)
    if refusal:
        return TrialResult(able=False, why=refusal)
    status, _, content = await _send(served, body, "embed", seconds)
    if status != 200:
        return _read_refusal(status, content)
    try:
        rows = as_mapping(parse_json(content)).get("data")
    except ValueError:
        rows = None
    made = isinstance(rows, list) and len(rows) == 1 and bool(as_mapping(rows[0]).get("embedding"))
    return TrialResult(able=True) if made else TrialResult(able=None, why="the reply has no embedding")


def _read_refusal(status: int, content: bytes) -> TrialResult:
    message = read_error_message(content)
    why = f"HTTP {status}: {message}" if message else f"HTTP {status}"
    return TrialResult(able=False if status in _REFUSALS else None, why=why)


def _judge(trial: Trial, said: NeutralReply) -> TrialResult:
    """Evaluate the reply to the picture or to the small output limit."""
    if trial == "images":
        if "red" in said.text.lower():
            return TrialResult(able=True)
        # Some servers drop pictures silently, and small models see badly: both look like this.
        why = f"it did not name the colour of a picture, but said {said.text[:60]!r}"
        return TrialResult(able=None, why=why)
    written = said.usage.output
    if written is not None and written > 2 * _SHORT:
        return TrialResult(able=False, why=f"it wrote {written} tokens, but {_SHORT} were allowed")
    if said.stop == "length":
        return TrialResult(able=True)
    return TrialResult(able=None, why="it ended before it reached the limit")
