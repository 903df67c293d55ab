"""A client connection of the egress proxy, with its byte counts, limits and time-outs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from chargehand.network.contract import EgressLimits, EgressRefusal, EgressRequest

CHUNK = 65_536
_LINGER_SECONDS = 1.0
_LINGER_BYTES = 1 << 20


@dataclass(slots=True)
class ByteMeter:
    """What is left of a sandbox's bytes, over all its requests."""

    bytes_out: int
    bytes_in: int

    def spend(self, *, out: int = 0, into: int = 0) -> None:
        """Take bytes; raises `EgressRefusal` where there are none left."""
        self.bytes_out -= out
        self.bytes_in -= into
        if self.bytes_out < 0 or self.bytes_in < 0:
            which = "out" if self.bytes_out < 0 else "in"
            raise EgressRefusal(
                403,
                f"this sandbox's limit of bytes {which} is used up",
                hint=f"a person can raise sandbox.network_mb_{which}",
            )


@dataclass(slots=True)
class RequestTrace:
    """What is noted of one request while it goes on."""

    method: str = ""
    host: str = ""
    port: int = 0
    status: int = 0
    entry: str = ""
    reason: str = ""
    address: str = ""
    bytes_out: int = 0
    bytes_in: int = 0
    allowed: bool = False
    asked: bool = False

    def record(self, seconds: float) -> EgressRequest:
        """Return what was noted as the record for the log."""
        return EgressRequest(
            method=self.method,
            host=self.host,
            port=self.port,
            status=self.status,
            allowed=self.allowed,
            entry=self.entry,
            reason=self.reason,
            address=self.address,
            bytes_out=self.bytes_out,
            bytes_in=self.bytes_in,
            seconds=seconds,
        )


@dataclass(slots=True, kw_only=True)
class ClientConnection:
    """A connection from inside."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    limits: EgressLimits
    meter: ByteMeter
    trace: RequestTrace = field(default_factory=RequestTrace)
    _timer: asyncio.Timeout | None = None

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Raise `TimeoutError` once nothing was counted for the idle time."""
        async with asyncio.timeout(self.limits.idle_seconds) as self._timer:
            yield

    def sent(self, size: int) -> None:
        """Count bytes on their way to the host; raises `EgressRefusal` at the limit."""
        self.meter.spend(out=size)
        self.trace.bytes_out += size
        self._alive()

    def got(self, size: int) -> None:
        """Count bytes that came from the host; raises `EgressRefusal` at the limit."""
        self.meter.spend(into=size)
        self.trace.bytes_in += size
        self._alive()

    def _alive(self) -> None:
        if self._timer is not None and not self._timer.expired():
            self._timer.reschedule(asyncio.get_running_loop().time() + self.limits.idle_seconds)

    async def refuse(self, refusal: EgressRefusal) -> None:
        """Answer with a refusal that a person can read, and end."""
        self.trace.status, self.trace.reason = refusal.status, refusal.message
        hint = f"\n{refusal.hint}" if refusal.hint else ""
        body = f"chargehand: {refusal.message}{hint}\n".encode()
        # Most programs show of a refused CONNECT nothing but this line.
        phrase = f"{HTTPStatus(refusal.status).phrase}: {refusal.message}"
        head = (
            f"HTTP/1.1 {refusal.status} {phrase}\r\ncontent-type: text/plain; charset=utf-8\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.writer.write(head.encode("ascii", "replace") + (b"" if self.trace.method == "HEAD" else body))
        await self.linger()

    async def linger(self) -> None:
        """Read what the client still sends: closing over unread bytes would take the answer from it."""
        left = _LINGER_BYTES
        with contextlib.suppress(OSError):  # TimeoutError is one
            async with asyncio.timeout(_LINGER_SECONDS):
                await self.writer.drain()
                self.writer.write_eof()
                while left > 0 and (data := await self.reader.read(CHUNK)):
                    left -= len(data)

    def cut(self, reason: str) -> None:
        """Break the connection off: once an answer was begun, only that tells that it is not whole."""
        self.trace.reason = self.trace.reason or reason
        self.writer.transport.abort()

    async def close(self) -> None:
        """Close the connection once what was written is out, or after a second."""
        self.writer.close()
        try:
            async with asyncio.timeout(_LINGER_SECONDS):
                await self.writer.wait_closed()
        except OSError:
            self.writer.transport.abort()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Callable[[int], None]) -> None:
    """Pass bytes on to their end, each piece counted before it goes."""
    while data := await reader.read(CHUNK):
        count(len(data))
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def both(up: Coroutine[Any, Any, None], down: Coroutine[Any, Any, None]) -> None:
    """Run both directions until `down` ends, or `up` fails: the host's end is the end."""
    sending, getting = asyncio.ensure_future(up), asyncio.ensure_future(down)
    try:
        await asyncio.wait({sending, getting}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()
        await getting
    finally:
        for task in (sending, getting):
            task.cancel()
        await asyncio.gather(sending, getting, return_exceptions=True)
