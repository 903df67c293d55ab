"""The dialect interface: everything that a model API defines, so that no other code compares dialect names.

A new dialect is one module with a subclass of `ModelDialect`, one line in `table.py`, and its name in
`contract.Dialect`.
"""

from __future__ import annotations

import base64
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

from msgspec import Struct

from chargehand.core.errors import UpstreamError
from chargehand.models._json import as_mapping, as_mappings, dump_json, parse_json
from chargehand.models.contract import Dialect, GatewayFault, ModelCall, Operation, ReplyUsage, Usage
from chargehand.models.conversation import (
    FilePart,
    NeutralRequest,
    ReplyReader,
    ReplyWriter,
    UntranslatableError,
    fold_reply,
    read_data_url,
)
from chargehand.models.dialects.shapes import Shape, find_misfit
from chargehand.models.event_stream import event_data

_BYTES_A_TOKEN = 4
UNKNOWN_USAGE = ReplyUsage(usage=Usage())


class StreamMeter(ABC):
    """The state of one streamed reply so far.

    `deltas` counts pieces of output, at least one token each; `finished`: the model said that it is done; `ended`:
    the last event arrived; `failed` is an error that the provider reported inside the stream; `metered` is the
    usage reported so far; `malformed` explains why an event does not fit the dialect.
    """

    # The types of an event's fields; an event that differs sets `malformed`.
    shape: ClassVar[Shape] = {}

    def __init__(self) -> None:
        self.malformed = ""
        self.metered = UNKNOWN_USAGE
        self.deltas = 0
        self.finished = False
        self.ended = False
        self.failed = ""

    def see(self, event: bytes) -> bool:
        """Take in one event; return whether to send it to the client."""
        data = event_data(event)
        if not data or data.startswith(b"[DONE]"):
            self.ended = self.ended or (bool(data) and self.ends_with_done)
            return True
        try:
            content = parse_json(data)
            self.malformed = find_misfit(content, self.shape)
        except ValueError:
            self.malformed = "an event of the stream is not JSON"
        if self.malformed:
            self.deltas += 1  # at least one token was paid for
            return False
        return self.take(as_mapping(content))

    # Whether `data: [DONE]` ends a stream.
    ends_with_done: ClassVar[bool] = False

    @abstractmethod
    def take(self, content: Mapping[str, Any]) -> bool:
        """Take in the decoded data of one event; return whether to send it to the client."""


class RequestRoute(Struct, frozen=True, kw_only=True):
    """The meaning of a path; `named` holds model and stream, which Gemini puts into the path."""

    dialect: Dialect
    operation: Operation
    named: Mapping[str, Any]


class WireRequest(NamedTuple):
    """A request to send to a provider, and the names of the requested features that it lacks."""

    body: dict[str, Any]
    left_out: tuple[str, ...] = ()


class WireHeaders(NamedTuple):
    """Headers to send with a request in its own dialect, and the names of the features in them.

    `left_out` names the features that the client asked for and the headers lack.
    """

    kept: dict[str, str]
    features: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


class RequestFormat(ABC):
    """The format of one kind of request: its limits, usage, errors and streams."""

    name: ClassVar[Dialect]
    # The types of a whole reply's fields, and the fields of which it has at least one.
    shape: ClassVar[Shape] = {}
    required: ClassVar[tuple[str, ...]] = ()

    def find_fault(self, document: object) -> str:
        """Explain why a whole reply does not fit the dialect; "" if it does."""
        if not isinstance(document, dict):
            return "the provider's reply is not an object"
        if error := document.get("error"):
            return f"the provider's reply is an error: {as_mapping(error).get('message') or error}"
        if self.required and all(document.get(name) is None for name in self.required):
            return f"the provider's reply has no {' or '.join(self.required)}"
        return find_misfit(document, self.shape)

    @abstractmethod
    def write_error(self, status: int, code: str, message: str) -> bytes:
        """Return the body of an error reply; `code` is our stable one."""

    @abstractmethod
    def write_error_event(self, status: int, code: str, message: str) -> bytes:
        """Return the event that breaks off a stream."""

    @abstractmethod
    def output_limit(self, body: Mapping[str, Any]) -> int | None:
        """Return the highest number of output tokens that the client asks for, or `None` if not given."""

    def count_choices(self, body: Mapping[str, Any]) -> int:
        """Return the number of requested replies, each of that length; raises `GatewayFault`."""
        return 1

    @abstractmethod
    def prepare(self, body: Mapping[str, Any], model: str, limit: int | None) -> dict[str, Any]:
        """Return the body for the upstream: its model name, the output limit in tokens, usage requested."""

    @abstractmethod
    def read_usage(self, document: Mapping[str, Any]) -> ReplyUsage:
        """Return the usage that a whole reply reports."""

    @abstractmethod
    def stream_meter(self, body: Mapping[str, Any]) -> StreamMeter:
        """Return the meter of one stream, for the client's own body."""

    @abstractmethod
    def has_output(self, document: Mapping[str, Any]) -> bool:
        """Return whether a whole reply holds output of the model: text, reasoning or tool calls."""


class ModelDialect(RequestFormat):
    """One dialect: its paths and headers, the parts of a request that are served, and its readers and writers."""

    # The endpoints of the gateway and of providers: path without its version, and operation.
    endpoints: ClassVar[Mapping[str, Operation]]
    # The path for replies, with its version; shown to clients that use another path.
    reply_path: ClassVar[str]
    # The path where a provider lists its models; free, so it also serves to test whether the provider answers.
    list_path: ClassVar[str] = "/v1/models"
    # The field of a model's name in that list.
    list_field: ClassVar[str] = "id"
    # The header that holds the key; `authorization` takes it as a bearer token.
    key_header: ClassVar[str] = "authorization"
    # The field of a token count in its document.
    count_field: ClassVar[str] = "input_tokens"
    # Whether a stream reports its usage only to clients that ask for it.
    usage_on_request: ClassVar[bool] = False
    # The header of an error reply that says when the account may ask again, regardless of the window used up.
    reset_header: ClassVar[str] = ""
    # Headers of the account's single windows: when each starts again, and how much of it is left.
    reset_windows: ClassVar[tuple[tuple[str, str], ...]] = ()
    # Prefixes of headers that ask for features or choose an account, and the exceptions among them.
    feature_headers: ClassVar[tuple[str, ...]] = ()
    plain_headers: ClassVar[frozenset[str]] = frozenset()
    # Whether pieces of several tool calls may alternate, each with the number of its call.
    mixes_calls: ClassVar[bool] = False
    # The format of this dialect's embeddings, `None` if its models make no embeddings.
    embeddings: EmbeddingsFormat | None = None
    # This dialect's names for fields that have other names in the neutral form.
    spelling: ClassVar[Mapping[str, str]] = {}

    def find_route(self, place: str) -> RequestRoute | None:
        """Return the route of a path without version and query, or `None` if it is not this dialect's."""
        operation = self.endpoints.get(place)
        return None if operation is None else RequestRoute(dialect=self.name, operation=operation, named={})

    def claims_path(self, path: str, place: str) -> bool:
        """Return whether errors at a path without endpoint use this dialect; `place` has no version."""
        return False

    def write_model_list(self, names: Iterable[str]) -> bytes:
        """Return the list of served models, in a form for clients of both OpenAI and Anthropic."""
        entries = [
            {
                "id": name,
                "object": "model",
                "created": 0,
                "owned_by": "chargehand",
                "type": "model",
                "display_name": name,
                "created_at": "1970-01-01T00:00:00Z",
            }
            for name in names
        ]
        ends = {"first_id": entries[0]["id"], "last_id": entries[-1]["id"]} if entries else {}
        return dump_json({"object": "list", "data": entries, "has_more": False, **ends})

    def write_error_event(self, status: int, code: str, message: str) -> bytes:
        """Return a data event with the error."""
        return b"data: " + self.write_error(status, code, message) + b"\n\n"

    def write_count(self, count: int) -> bytes:
        """Return a count of tokens."""
        return dump_json({self.count_field: count})

    @abstractmethod
    def screen(self, body: Mapping[str, Any]) -> WireRequest:
        """Return a request without fields that cost more than tokens or reach systems other than the models.

        Unknown fields are left out (`models`, `plugins`, `api_base`, `speed`, `mcp_servers`, `container` …).
        Raises `GatewayFault` for tools that the provider would run: they have their own prices and reach the
        network.
        """

    def screen_headers(self, headers: Mapping[str, str]) -> WireHeaders:
        """Return the client's headers (names in lower case) to send to the provider, and those left out."""
        asked = (name for name in headers if name.startswith(self.feature_headers))
        return WireHeaders({}, left_out=tuple(name for name in asked if name not in self.plain_headers))

    @abstractmethod
    def read_part(self, part: Mapping[str, Any]) -> FilePart | None:
        """Return the picture or file in a content part, or `None` for other parts."""

    def text_part(self, text: str) -> Mapping[str, Any]:
        """Return a content part of plain text."""
        return {"type": "text", "text": text}

    @abstractmethod
    def read_request(self, body: Mapping[str, Any]) -> NeutralRequest:
        """Read a request; raises `UntranslatableError` for parts that no other dialect can express."""

    @abstractmethod
    def write_request(self, request: NeutralRequest, model: str) -> WireRequest:
        """Write a request, and name the parts that this dialect or this model cannot express.

        Raises `UntranslatableError` if such a part is essential.
        """

    @abstractmethod
    def reply_reader(self, seed: str) -> ReplyReader:
        """Return the reader of one reply; `seed` goes into ids that the provider leaves out."""

    @abstractmethod
    def reply_writer(self, model: str, id: str) -> ReplyWriter:
        """Return the writer of one reply."""

    def has_output(self, document: Mapping[str, Any]) -> bool:
        """Return whether a reply has text, reasoning or calls; an unreadable reply counts as having some."""
        try:
            said = fold_reply(self.reply_reader("").read_whole(document))
        except (UntranslatableError, ValueError, TypeError, AttributeError, KeyError):
            return True
        return bool(said.text or said.thoughts or said.calls)

    def require_embeddings(self) -> EmbeddingsFormat:
        """Return the dialect's embeddings format; only for dialects with an endpoint for embeddings."""
        assert self.embeddings is not None
        return self.embeddings

    def provider_headers(self, key: str | None) -> dict[str, str]:
        """Return the headers of every request to a provider."""
        if not key:
            return {}
        return {self.key_header: f"Bearer {key}" if self.key_header == "authorization" else key}

    def locate(self, call: ModelCall) -> tuple[str, Mapping[str, Any]]:
        """Return path, with its version, and body of a call for a provider."""
        path = next((path for path, operation in self.endpoints.items() if operation == call.operation), "")
        return f"/v1{path}" if path else self.reply_path, call.body


# All dialects. Code that needs several receives this table from its caller, and imports no dialect.
DialectTable = Mapping[Dialect, ModelDialect]


class EmbeddingTexts(Struct, frozen=True, kw_only=True):
    """Texts to embed; `packed`: as base64 of little-endian floats, `single`: Gemini's form for one text."""

    texts: tuple[str, ...]
    dimensions: int | None = None
    packed: bool = False
    single: bool = False
    left_out: tuple[str, ...] = ()


class EmbeddingVectors(Struct, frozen=True, kw_only=True):
    """The vectors in the order of their texts; `used` is the number of input tokens, `None` if unknown."""

    vectors: tuple[tuple[float, ...], ...]
    used: int | None


class EmbeddingsFormat(RequestFormat):
    """One dialect's format for embeddings, with the errors of the dialect. Embeddings cost input only."""

    def __init__(self, dialect: ModelDialect) -> None:
        self._dialect = dialect

    def write_error(self, status: int, code: str, message: str) -> bytes:
        """Return the dialect's error."""
        return self._dialect.write_error(status, code, message)

    def write_error_event(self, status: int, code: str, message: str) -> bytes:
        """Return the dialect's error event."""
        return self._dialect.write_error_event(status, code, message)

    def output_limit(self, body: Mapping[str, Any]) -> int | None:
        """Return 0: embeddings have no output tokens."""
        return 0

    def stream_meter(self, body: Mapping[str, Any]) -> StreamMeter:
        """Return the dialect's meter, for a provider that streams without being asked."""
        return self._dialect.stream_meter({})

    def has_output(self, document: Mapping[str, Any]) -> bool:
        """Return false: vectors are not output that a model wrote."""
        return False

    @abstractmethod
    def screen(self, body: Mapping[str, Any]) -> WireRequest:
        """Return a request without unknown fields; raises `GatewayFault`."""

    @abstractmethod
    def read_texts(self, body: Mapping[str, Any]) -> EmbeddingTexts:
        """Read a request; raises `UntranslatableError`."""

    @abstractmethod
    def write_texts(self, asked: EmbeddingTexts) -> dict[str, Any]:
        """Write a request without its model."""

    @abstractmethod
    def read_vectors(self, document: Mapping[str, Any]) -> EmbeddingVectors:
        """Read a reply; raises `UpstreamError` (`reply_unreadable`)."""

    @abstractmethod
    def write_vectors(self, made: EmbeddingVectors, asked: EmbeddingTexts, model: str) -> dict[str, Any]:
        """Write a reply."""


def screen_fields(body: Mapping[str, Any], known: frozenset[str]) -> WireRequest:
    """Return the known fields of a request, and the names of its unknown fields that are set."""
    kept = {name: value for name, value in body.items() if name in known}
    if len(kept) == len(body):
        return WireRequest(kept)
    return WireRequest(kept, tuple(name for name in body if name not in kept and body[name] is not None))


def is_bare(body: Mapping[str, Any]) -> bool:
    """Return whether a request offers no tool, like those for a title, a summary or a check of the quota."""
    return not body.get("tools")


def estimate_tokens(body: Mapping[str, Any]) -> int:
    """Estimate the tokens of a request: one per four bytes, rounded up."""
    said = {name: value for name, value in body.items() if name not in ("model", "stream")}
    return -(-len(dump_json(said)) // _BYTES_A_TOKEN)


def file_at(url: object, kind: Literal["image", "file"], name: object = "") -> FilePart:
    """Return the file in a `data:` address; for other addresses, which only link to a file, without content."""
    media_type, data = (read_data_url(url) if isinstance(url, str) else None) or ("", "")
    return FilePart(kind=kind, media_type=media_type, data=data, name=str(name or ""))


def error_message(holder: Mapping[str, Any], default: str) -> str:
    """Return the message of an `error` inside a reply."""
    return str(as_mapping(holder.get("error")).get("message") or default)


def offered_tools(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the tools that a request offers, including those that its messages add later."""
    yield from as_mappings(body.get("tools"))
    for message in as_mappings(body.get("messages")):
        yield from (part for part in as_mappings(message.get("content")) if part.get("type") == "tool_addition")


def require_client_tools(tools: Iterable[Mapping[str, Any]], own: tuple[str, ...]) -> None:
    """Raise `GatewayFault` for a tool whose type has none of the prefixes `own`: the client does not run it."""
    for tool in tools:
        kind = tool.get("type") or "custom"
        if not isinstance(kind, str) or not kind.startswith(own):
            raise GatewayFault("bad_request", f"tool type {kind!r:.60} is not served: the provider would run it")


def read_cost(usage: Mapping[str, Any]) -> float | None:
    """Return the cost in USD that a provider reports with its usage, or `None` if missing or implausible."""
    cost = usage.get("cost")
    if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost < 1e6:
        return None
    return float(cost)


def read_range(value: object, name: str, most: int) -> int:
    """Return how many replies are asked for, 1 by default; raises `GatewayFault` if out of range."""
    if value is not None and (not isinstance(value, int) or not 1 <= value <= most):
        raise GatewayFault("bad_request", f"`{name}` must be a whole number from 1 to {most}")
    return 1 if value is None else int(value)


def read_vector(row: object) -> tuple[float, ...]:
    """Return the numbers of one vector; raises `UpstreamError` (`reply_unreadable`)."""
    if isinstance(row, str):  # some providers send base64 unasked
        try:
            packed = base64.b64decode(row, validate=True)
            return struct.unpack(f"<{len(packed) // 4}f", packed)
        except (ValueError, struct.error):
            message = "a vector of the reply is not base64 of floats"
            raise UpstreamError(message, code="reply_unreadable") from None
    if not isinstance(row, list) or not all(isinstance(one, int | float) for one in row):
        raise UpstreamError("a vector of the reply is not a list of numbers", code="reply_unreadable")
    return tuple(float(one) for one in row)
