"""What passes between the mirror's HTTP side and its registries: requests, replies, refusals, limits."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

from chargehand.core.errors import RefusedError

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
    "other",
]
FILE_MEDIA = "application/octet-stream"


class MirrorRefusal(RefusedError):
    """The mirror answers with an HTTP error; the message is shown inside the sandbox, so it carries no secret."""

    default_code = "registry_refused"

    def __init__(self, status: int, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorLimits:
    """What one mirror lets its clients use; sizes in bytes, times in seconds."""

    connections: int = 128
    head_bytes: int = 16_384
    head_seconds: float = 15.0
    write_seconds: float = 60.0
    page_bytes: int = 128 * 1024 * 1024
    cache_bytes: int = 64 * 1024 * 1024
    total_bytes: int = 20 * 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorRequest:
    """One request as it ended: `hosts` are the upstreams asked (no credentials), `status` 0 if none was sent."""

    method: str
    kind: RequestKind
    project: str
    hosts: tuple[str, ...]
    status: int
    bytes_sent: int
    problem: str = ""


@dataclass(slots=True)
class Trace:
    """What is noted while one request is answered, for its log record."""

    method: str = ""
    kind: RequestKind = "other"
    project: str = ""
    hosts: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    status: int = 0
    bytes_sent: int = 0

    def asked(self, host: str) -> None:
        """Note an upstream that was contacted."""
        if host not in self.hosts:
            self.hosts.append(host)

    def record(self) -> MirrorRequest:
        """Return what was noted as the record for the log."""
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
    """Close a reply that holds nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer: a whole body or a stream of pieces. `length` in bytes, None where it is not known before."""

    status: int = 200
    media: str = "text/plain; charset=utf-8"
    body: bytes | AsyncGenerator[bytes, None] = b""
    length: int | None = None
    encoding: str = ""
    reason: str = ""
    close: Callable[[], Awaitable[None]] = nothing_to_close
