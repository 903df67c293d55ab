"""What the gateway passes on and to whom: calls, upstreams, prices, usage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

Dialect = Literal["openai", "anthropic", "responses", "gemini"]
"""OpenAI chat completions, Anthropic messages, OpenAI responses, or Gemini's own."""
Operation = Literal["reply", "count", "embed"]
"""What is asked of a model: a reply, the tokens of a request, or embeddings."""
PATHS: Mapping[Dialect, str] = {
    "openai": "/v1/chat/completions",
    "anthropic": "/v1/messages",
    "responses": "/v1/responses",
    "gemini": "/v1beta/models/{model}:generateContent",
}
"""Where each dialect's replies are asked for; Gemini's streams are at `:streamGenerateContent?alt=sse`."""
Stop = Literal["end", "tools", "length", "refusal"]
"""Why a reply ends: it is complete, it calls tools, it reached its output limit, or the model declined."""
STOP_WORDS: Mapping[Dialect, Mapping[Stop, str]] = {
    "openai": {"end": "stop", "tools": "tool_calls", "length": "length", "refusal": "content_filter"},
    "anthropic": {"end": "end_turn", "tools": "tool_use", "length": "max_tokens", "refusal": "refusal"},
}
CallStatus = Literal["ok", "failed", "cut", "refused", "replayed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call as it goes to an upstream: its body with the upstream's model name and a capped output limit.

    `turn` counts the calls of the attempt from 1, for each operation by itself; `seconds` bounds the wait for each
    piece of the reply. Gemini's body holds `model` and `stream` too, which on the wire stand in the path. `path`
    is where it goes on the provider's host instead of the dialect's own place. `bare` is how many of the calls
    counted before it offered no tool.
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
        """Whether the reply is to come in pieces, as server-sent events."""
        return self.body.get("stream") is True


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamReply:
    """What an upstream answers; `chunks` is its body as it comes, to be closed (`aclose`) when left early.

    `meter` tells, once the body ended, what was used, where the body itself no longer says all of it.
    """

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]
    meter: Meter | None = None


class Meter(Protocol):
    """Knows what a reply used by its own provider's word."""

    def used(self) -> tuple[Usage, int]:
        """Return the usage, and how many of the tokens written to a cache are kept for an hour."""
        ...


class Upstream(Protocol):
    """Whoever answers calls: a provider, a script, a recording, or one of them with something around it."""

    async def send(self, call: Call) -> UpstreamReply:
        """Send one call and return as soon as the head of its reply is there.

        Raises `UpstreamError` where none comes; reading `chunks` raises it where the reply breaks off.
        """
        ...

    async def close(self) -> None:
        """Let go of connections and files. Idempotent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """USD per million tokens; `cached` and `cache_write` are input read from and written to a provider's cache."""

    input: float
    output: float
    cached: float | None = None
    cache_write: float | None = None
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The tokens of one call as its provider reports them; input includes what was cached or written to a cache.

    `cost_usd` is what the provider itself says the call cost, where it does.
    """

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    cache_write: int | None = None
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that a gateway serves: `name` is how clients call it, `model` how its upstream does.

    `price` is `None` where nobody knows it: such a model is served only where nothing limits the money. `provider`
    names whose faults and quotas it shares, empty: nobody's. `tools`, `images` and `files`: whether it takes them.
    `ollama`: it is one of Ollama's, which has interfaces of its own. `fallback` is who answers, in order, where
    this one cannot.
    """

    name: str
    dialect: Dialect
    model: str
    upstream: Upstream
    price: Price | None
    max_output: int | None = None
    provider: str = ""
    images: bool = True
    files: bool = True
    tools: bool = True
    ollama: bool = False
    fallback: tuple[ServedModel, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRest:
    """A client was refused because nobody behind its model has quota before `until` (UTC).

    `model` is how the client calls it, `provider` whoever has quota again first.
    """

    model: str
    provider: str
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """How one call ended; `cost_usd` is `None` where it is not known, `booked_usd` what the limits count.

    `reported_usd` is the cost by the provider's own word, `computed_usd` that by its tokens and our price, each
    `None` where it is not known; the provider's word is the one that counts. What is `replayed` has its reply from
    an earlier life of the attempt, for nothing: `call` was paid for then. `provider` is the address that was
    asked, empty for a script; `first_seconds` the time until the client got the first piece of a stream, or the
    head of a reply in one piece. `skipped` says which models before this one do not take the request, and why;
    `converted` what of the request was put into another form for this one; `bare` that it offered no tool.
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
    provider: str = ""
    operation: Operation = "reply"
    first_seconds: float | None = None
    skipped: tuple[str, ...] = ()
    converted: tuple[str, ...] = ()
    bare: bool = False


STATUS = {
    "bad_request": 400,
    "uncarried": 400,
    "token_invalid": 401,
    "token_revoked": 401,
    "budget_exhausted": 402,
    "price_unknown": 402,
    "not_found": 404,
    "model_not_found": 404,
    "not_kept": 404,
    "method_not_allowed": 405,
    "too_large": 413,
    "unsupported_encoding": 415,
    "quota_exhausted": 429,
    "upstream_unreachable": 502,
    "upstream_cut": 502,
    "upstream_malformed": 502,
    "upstream_resting": 503,
    "upstream_timeout": 504,
}
CODES = {status: code for code, status in reversed(STATUS.items())}


class GatewayFault(Exception):
    """A stable code and a sentence for the client; `wait` is in how many seconds asking again makes sense."""

    def __init__(self, code: str, message: str, *, wait: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.wait = wait

    @property
    def status(self) -> int:
        """The HTTP status that says it, where no head went out yet."""
        return STATUS.get(self.code, 500)


class LostReply(GatewayFault):
    """A reply that the provider may charge for and nobody has: worth another call, with money of its own."""


class NextModel(GatewayFault):
    """A model gave no reply, and another one is asked: its own error has been settled."""
