"""The contract of the egress proxy and the registry mirror: limits, records of requests, refusals."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Literal

from msgspec import Struct, field

from chargehand.core.errors import RefusedError
from chargehand.network.allow_list import Address

Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]
"""Returns the addresses of a name; raises `OSError` if it has no address."""
RequestKind = Literal[
    "pypi-index",
    "pypi-file",
    "npm-index",
    "npm-file",
    "cargo-config",
    "cargo-index",
    "cargo-file",
    "go-page",
    "go-file",
    "go-sums",
    "maven-file",
    "other",
]
FILE_MEDIA = "application/octet-stream"


class EgressLimits(Struct, frozen=True, kw_only=True):
    """Network limits of one sandbox; sizes in bytes, times in seconds.

    `bytes_out` and `bytes_in` count bytes sent to hosts and received from them, over all requests;
    `requests_per_second` paces requests after a burst of as many, `connections` may be open at once.
    """

    bytes_out: int = 256 << 20
    bytes_in: int = 2048 << 20
    requests_per_second: int = 50
    connections: int = 64
    idle_seconds: float = 120.0
    connect_seconds: float = 20.0
    head_seconds: float = 20.0
    head_bytes: int = 32_768


class EgressRequest(Struct, frozen=True, kw_only=True):
    """The log record of one request through the proxy, never with a path, a query, a header or a body.

    `status` is the answer to the sandbox, 0 for no answer; `entry` is the rule that matches its host, or "";
    `reason` is the reason for a refusal or cut. `address` is the address connected to, or "". Bytes are those of
    the connection to the host.
    """

    method: str
    host: str
    port: int
    status: int
    allowed: bool
    entry: str = ""
    reason: str = ""
    address: str = ""
    bytes_out: int = 0
    bytes_in: int = 0
    seconds: float = 0.0


class EgressRefusal(RefusedError):
    """The proxy answers with an HTTP error; message and hint are shown inside the sandbox, so hold no secret."""

    default_code = "network_refused"

    def __init__(self, status: int, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status


class RequestPacer:
    """Lets a burst of `rate` through at once, then `rate` per second; early requests wait in order."""

    def __init__(self, rate: int, now: Callable[[], float]) -> None:
        self._interval = 1 / rate
        self._now = now
        # A second in the past: the first burst is available from the start.
        self._next = now() - 1.0

    async def wait_turn(self, *, patience: float) -> None:
        """Wait until the request may proceed; raises `EgressRefusal` if that takes over `patience` seconds."""
        now = self._now()
        # Unused turns of at most one second accumulate: that is the burst.
        turn = max(self._next + self._interval, now - 1.0 + self._interval)
        if turn - now > patience:
            raise EgressRefusal(429, "too many requests at once", hint="send fewer requests, or retry later")
        self._next = turn
        if turn > now:
            await asyncio.sleep(turn - now)


def egress_environment(port: int) -> Mapping[str, str]:
    """Return the variables that direct programs inside to a proxy on 127.0.0.1.

    In both cases, since curl reads `http_proxy` in lower case only and others the upper one; requests to the
    sandbox itself (the gateway, a test's server) bypass the proxy.
    """
    proxy = f"http://127.0.0.1:{port}"
    exempt = "localhost,127.0.0.1,::1"
    named = {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "ALL_PROXY": proxy, "NO_PROXY": exempt}
    return {**named, **{name.lower(): value for name, value in named.items()}, "NODE_USE_ENV_PROXY": "1"}


class MirrorRefusal(RefusedError):
    """The mirror answers with an HTTP error; the message is shown inside the sandbox, so it carries no secret."""

    default_code = "registry_refused"

    def __init__(self, status: int, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status


class MirrorLimits(Struct, frozen=True, kw_only=True):
    """Limits of one mirror for its clients; sizes in bytes, times in seconds."""

    connections: int = 128
    head_bytes: int = 16_384
    head_seconds: float = 15.0
    write_seconds: float = 60.0
    page_bytes: int = 128 * 1024 * 1024
    cache_bytes: int = 64 * 1024 * 1024
    total_bytes: int = 20 * 1024 * 1024 * 1024


class MirrorRequest(Struct, frozen=True, kw_only=True):
    """The log record of a request: `hosts` are the upstreams used (no credentials), `status` 0 for no reply."""

    method: str
    kind: RequestKind
    project: str
    hosts: tuple[str, ...]
    status: int
    bytes_sent: int
    problem: str = ""


class MirrorTrace(Struct):
    """The log record of one request to the mirror in progress."""

    method: str = ""
    kind: RequestKind = "other"
    project: str = ""
    hosts: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    status: int = 0
    bytes_sent: int = 0

    def add_host(self, host: str) -> None:
        """Record an upstream that was used."""
        if host not in self.hosts:
            self.hosts.append(host)

    def record(self) -> MirrorRequest:
        """Return the finished record."""
        return MirrorRequest(
            method=self.method,
            kind=self.kind,
            project=self.project,
            hosts=tuple(self.hosts),
            status=self.status,
            bytes_sent=self.bytes_sent,
            problem="; ".join(dict.fromkeys(self.problems)),
        )


async def nothing_to_close() -> None:
    """Close a reply without resources."""


class MirrorReply(Struct, frozen=True, kw_only=True):
    """A complete body or a stream of pieces; `length` in bytes, None if unknown beforehand.

    `reason` replaces the usual reason phrase, `encoding` is the content coding of the body. The sender awaits
    `close` afterwards, even after a failure.
    """

    status: int = 200
    media: str = "text/plain; charset=utf-8"
    body: bytes | AsyncGenerator[bytes, None] = b""
    length: int | None = None
    encoding: str = ""
    reason: str = ""
    close: Callable[[], Awaitable[None]] = nothing_to_close

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the body; a stream is closed at the end, however far it was read."""
        if isinstance(self.body, bytes):
            yield self.body
            return
        async with contextlib.aclosing(self.body) as stream:
            async for piece in stream:
                yield piece
