"""Records of the gateway: calls, upstreams, prices, usage, and its refusal codes.

Nothing heavy is imported here, so every package can import these records for its annotations.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, Protocol

from msgspec import Struct, field

from chargehand.core.errors import UpstreamError
from chargehand.core.ports import Spent

# OpenAI chat completions, Anthropic messages, OpenAI responses, or Gemini's own dialect.
# A registered name (`models.registries`).
Dialect = str
# The kind of call: a reply, a count of the tokens in a request, or embeddings.
Operation = Literal["reply", "count", "embed"]
# Why a reply ends: it is complete, it calls tools, it reached its output limit, or the model declined.
StopReason = Literal["end", "tools", "length", "refusal"]
CallStatus = Literal["ok", "failed", "cut", "refused", "replayed"]
# The largest reply held whole in memory; far more than any model writes in one reply.
REPLY_BYTES = 64 * 1_048_576


class ModelCall(Struct, frozen=True, kw_only=True):
    """One call as sent to an upstream: its body with the upstream's model name and a capped output limit.

    `turn` counts the calls of the attempt from 1, separately for each operation. `seconds` bounds the wait for
    each piece of the reply. Gemini's body also holds `model` and `stream`, which are part of the path on the wire.
    `path` replaces the dialect's own path on the provider's host. `bare` is how many of the calls counted before
    this one offered no tool.
    """

    id: str
    dialect: Dialect
    body: Mapping[str, Any]
    attempt: str
    turn: int
    seconds: float = 600.0
    headers: Mapping[str, str] = field(default_factory=dict)
    operation: Operation = "reply"
    path: str = ""
    bare: int = 0

    @property
    def stream(self) -> bool:
        """Whether the reply is streamed as server-sent events."""
        return self.body.get("stream") is True


class Usage(Struct, frozen=True, kw_only=True):
    """The tokens of one call as its provider reports them; `input` includes cache reads and writes.

    `cost_usd` is the cost that the provider itself reports, `None` if it reports no cost.
    """

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    cache_write: int | None = None
    cost_usd: float | None = None


class ReplyUsage(Struct, frozen=True, kw_only=True):
    """The tokens of one reply; `hour_writes` of `usage.cache_write` stay cached for an hour, which costs more.

    `hour_writes` is `None` if the provider does not report how long cached tokens are kept.
    """

    usage: Usage
    hour_writes: int | None = None


class UpstreamReply(Struct, frozen=True, kw_only=True):
    """An upstream's reply; `chunks` is its body as it arrives, to be closed (`aclose`) if not read to the end.

    The three callables may be called once the body has ended. `meter` returns the usage that the provider
    reported, if the body itself no longer contains all of it. `fault` returns the model's mistake in a reply that
    is kept all the same; empty if there is no mistake. `left_out` names parts of the provider's reply that are
    missing from the body.
    """

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]
    meter: Callable[[], ReplyUsage] | None = None
    fault: Callable[[], str] | None = None
    left_out: Callable[[], tuple[str, ...]] | None = None

    @property
    def lower_headers(self) -> dict[str, str]:
        """The headers with their names in lower case."""
        return {name.lower(): value for name, value in self.headers.items()}

    @property
    def is_success(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300

    @contextlib.asynccontextmanager
    async def closing(self) -> AsyncGenerator[None, None]:
        """Close the rest of the body after the block."""
        try:
            yield
        finally:
            await close_chunks(self.chunks)

    async def read_all(self, most: int = REPLY_BYTES) -> bytes:
        """Return the whole body and close it.

        Raises `UpstreamError`: `upstream_malformed` if the body is larger than `most` bytes, or the error of the
        read.
        """
        body = bytearray()
        async with self.closing():
            async for chunk in self.chunks:
                body += chunk
                if len(body) > most:
                    raise UpstreamError(f"the reply is larger than {most} B", code="upstream_malformed")
        return bytes(body)


async def close_chunks(chunks: AsyncIterator[bytes]) -> None:
    """Close the body of a reply if it can be closed."""
    # An iterator need not have a close method.
    close: Callable[[], Awaitable[None]] | None = getattr(chunks, "aclose", None)
    if close is not None:
        await close()


class DerivedChunks:
    """Pieces derived from those of a `source`; closing it closes both.

    A generator alone would not close a source that it never started to read.
    """

    def __init__(self, pieces: AsyncIterator[bytes], source: AsyncIterator[bytes]) -> None:
        self._pieces = pieces
        self._source = source

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._pieces)

    async def aclose(self) -> None:
        """Close the pieces and their source."""
        for chunks in (self._pieces, self._source):
            await close_chunks(chunks)


def reply_from_pieces(
    status: int,
    pieces: Iterable[bytes],
    *,
    content_type: str = "application/json",
    headers: Mapping[str, str] | None = None,
    meter: Callable[[], ReplyUsage] | None = None,
) -> UpstreamReply:
    """Return existing pieces as an upstream's reply."""

    async def chunks() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    known = {"content-type": content_type, **(headers or {})}
    return UpstreamReply(status=status, headers=known, chunks=chunks(), meter=meter)


class ModelUpstream(Protocol):
    """An upstream that answers calls: a provider, a script, a recording, or a wrapper around one of them."""

    async def send(self, call: ModelCall) -> UpstreamReply:
        """Send one call and return as soon as the head of its reply arrives.

        Raises `UpstreamError` if no head arrives; reading `chunks` raises it if the reply breaks off.
        """
        ...

    async def close(self) -> None:
        """Close connections and files. Idempotent."""
        ...


class PriceTier(Struct, frozen=True, kw_only=True):
    """USD per million tokens, for all tokens of a call whose whole input is more than `start` tokens.

    `cached` and `cache_write` are input read from and written to a provider's cache, `hour_write` input cached for
    an hour instead of minutes.
    """

    input: float
    output: float
    cached: float | None = None
    cache_write: float | None = None
    hour_write: float | None = None
    start: int = 0


class Price(Struct, frozen=True, kw_only=True):
    """USD per million tokens, as in `PriceTier`; the highest if prices depend on the length of the input.

    `tiers` then has the price for each length, ordered by `start`.
    """

    input: float
    output: float
    cached: float | None = None
    cache_write: float | None = None
    hour_write: float | None = None
    source: str = ""
    tiers: tuple[PriceTier, ...] = ()


class ServedModel(Struct, frozen=True, kw_only=True):
    """A model that a gateway serves: `name` is the client's name for it, `model` the upstream's.

    `price` is `None` if unknown: such a model is served only if no limit on money is set. Models with the same
    non-empty `provider` share its faults and quotas. `tools`, `images` and `files` say whether the model accepts
    them, `reasoning` whether it can be asked to reason. `ollama` marks a model of Ollama, which has its own
    endpoints. `fallback` lists the models that answer, in order, if this one cannot.
    """

    name: str
    dialect: Dialect
    model: str
    upstream: ModelUpstream
    price: Price | None
    max_output: int | None = None
    provider: str = ""
    # Unknown abilities are tried: a provider that refuses one answers with a 400 that says so.
    images: bool = True
    files: bool = True
    tools: bool = True
    reasoning: bool = True
    ollama: bool = False
    fallback: tuple[ServedModel, ...] = ()


class HttpLimits(Struct, frozen=True, kw_only=True):
    """Limits of one gateway: bytes of a head, of a body and of all bodies held at once, connections, seconds."""

    head_bytes: int = 65_536
    body_bytes: int = 32 * 1_048_576
    held_bytes: int = 512 * 1_048_576
    connections: int = 256
    idle_seconds: float = 600.0
    read_seconds: float = 60.0
    write_seconds: float = 300.0


class QuotaRest(Struct, frozen=True, kw_only=True):
    """A client was refused because no provider behind its model has quota before `until` (UTC).

    `model` is the client's name for it, `provider` the first one to have quota again.
    """

    model: str
    provider: str
    until: datetime


class CallRecord(Struct, frozen=True, kw_only=True):
    """How one call ended; `cost_usd` is `None` if unknown, `booked_usd` is the amount counted against limits.

    `reported_usd` is the cost that the provider reports and `computed_usd` the cost by tokens and our price, each
    `None` if unknown; the reported cost takes precedence. A `replayed` call got its reply from an earlier life of
    the attempt, for free: `call` was paid for then. `provider` is the address that was asked, empty for a script.
    `first_seconds` is the time until the client got the first piece of a stream, or the head of a whole reply.
    `hour_writes` of the tokens written to the cache are kept for an hour, `None` if unknown.

    `skipped` lists the models before this one that cannot take the request, with the reason; `converted` the parts
    of the request that were converted for this model; `left_out` the fields that were not sent to this model, once
    per attempt. `bare` marks a call that offered no tool. `retried` lists the answers after which the call was
    sent again, as a status or `unreachable`, in order. The `reason` of an `ok` call is the model's mistake.
    """

    call: str
    attempt: str
    turn: int
    model: str
    upstream: str
    status: CallStatus
    http_status: int
    seconds: float
    usage: Usage
    cost_usd: float | None
    booked_usd: float
    reason: str = ""
    reported_usd: float | None = None
    computed_usd: float | None = None
    hour_writes: int | None = None
    provider: str = ""
    operation: Operation = "reply"
    first_seconds: float | None = None
    skipped: tuple[str, ...] = ()
    converted: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    bare: bool = False
    retried: tuple[str, ...] = ()


class ToolService(Protocol):
    """Answers the messages of the Model Context Protocol that clients of a gateway send to `/mcp`."""

    async def answer(self, message: Mapping[str, Any], /) -> Mapping[str, Any] | None:
        """Return the reply to one JSON-RPC message, `None` if it takes none."""
        ...


class CallListeners(Struct, frozen=True, kw_only=True):
    """Callbacks for the calls of a gateway.

    Every call that is admitted, or refused for money, ends in one `on_call`; `on_alert` reports a limit that is
    nearly used up. Both run in a thread, never two at once, and may block as the ledger may. With `on_loop` they
    and the ledger run on the event loop, which saves each call the way to the thread and back; they must not block
    for long then. `on_quota` is called on the event loop before a client is refused for lack of quota, `on_fault`
    there with the reason why a client waits or is refused because a provider failed.
    """

    on_call: Callable[[CallRecord], None]
    on_alert: Callable[[Spent], None] = lambda _: None
    on_quota: Callable[[QuotaRest], None] = lambda _: None
    on_fault: Callable[[str], None] = lambda _: None
    on_loop: bool = False


# The stable codes with which the gateway refuses or cuts off, and the HTTP status of each.
FAULT_STATUS: dict[str, int] = {
    "bad_request": 400,
    "uncarried": 400,
    "token_invalid": 401,
    "token_revoked": 401,
    # Not 429: the official clients do not retry a 402.
    "budget_exhausted": 402,
    "price_unknown": 402,
    "not_found": 404,
    "model_not_found": 404,
    "not_kept": 404,
    "method_not_allowed": 405,
    "too_large": 413,
    "unsupported_encoding": 415,
    "quota_exhausted": 429,
    # A 429, which clients retry by themselves: it passes once calls under way are answered.
    "budget_reserved": 429,
    "upstream_unreachable": 502,
    "upstream_cut": 502,
    "upstream_malformed": 502,
    "upstream_page": 502,
    "upstream_untrusted": 502,
    "reply_unreadable": 502,
    "upstream_resting": 503,
    "upstream_timeout": 504,
}


class GatewayFault(Exception):
    """A refusal by the gateway itself: a stable code and a sentence for the client.

    `wait` is the number of seconds after which a retry makes sense, `None` if unknown.
    """

    def __init__(self, code: str, message: str, *, wait: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.wait = wait

    @property
    def status(self) -> int:
        """The HTTP status of the refusal, if no head was sent yet."""
        return FAULT_STATUS.get(self.code, 500)


class LostReply(GatewayFault):
    """Reply lost after the request was sent; the provider may charge for it. Retry under a new reservation."""


class NextModel(GatewayFault):
    """A model gave no reply and its call is settled; the next model of the chain is to be asked."""
