"""What the gateway passes on and to whom: calls, upstreams, prices, usage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Dialect = Literal["openai", "anthropic"]
"""OpenAI chat completions, or Anthropic messages."""
PATHS: Mapping[Dialect, str] = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}
CallStatus = Literal["ok", "failed", "cut", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call as it goes to an upstream: its body with the upstream's model name and a capped output limit.

    `turn` counts the calls of the attempt from 1; `seconds` bounds the wait for each piece of the reply.
    """

    id: str
    dialect: Dialect
    body: Mapping[str, Any]
    attempt: str
    turn: int
    seconds: float = 600.0
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def stream(self) -> bool:
        """Whether the reply is to come in pieces, as server-sent events."""
        return self.body.get("stream") is True


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamReply:
    """What an upstream answers; `chunks` is its body as it comes, to be closed (`aclose`) when left early."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]


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

    `price` is `None` where nobody knows it: such a model is served only where nothing limits the money.
    """

    name: str
    dialect: Dialect
    model: str
    upstream: Upstream
    price: Price | None
    max_output: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """How one call ended; `cost_usd` is `None` where it is not known, `booked_usd` what the limits count."""

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
