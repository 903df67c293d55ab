"""A client connection of the egress proxy, with its byte counts, limits and time-outs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from http import HTTPStatus
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict

from chargehand.network.contract import EgressLimits, EgressRefusal, EgressRequest
from chargehand.network.unix_socket import close_writer, end_writing

CHUNK = 65_536
_CLOSE_SECONDS = 1.0


class ByteMeter(Struct):
    """The remaining bytes of a sandbox, over all its requests."""

    bytes_out: int
    bytes_in: int

    def spend(self, *, out: int = 0, into: int = 0) -> None:
        """Subtract bytes; raises `EgressRefusal` if the limit is passed."""
        self.bytes_out -= out
        self.bytes_in -= into
        if self.bytes_out < 0 or self.bytes_in < 0:
            which = "out" if self.bytes_out < 0 else "in"
            raise EgressRefusal(
                403,
                f"this sandbox has used up its limit of bytes {which}",
                hint=f"a person can raise sandbox.network_mb_{which}",
            )


class RequestTrace(Struct):
    """The log record of one request in progress; `began` is false until a client has sent any of it."""

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
    began: bool = False

    def record(self, seconds: float) -> EgressRequest:
        """Return the finished record of a request that took `seconds`."""
        known = asdict(self)
        del known["began"]
        return EgressRequest(**known, seconds=seconds)


class ClientConnection(Struct, kw_only=True):
    """A connection from inside the sandbox, its limits, and the trace of its single request."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    limits: EgressLimits
    meter: ByteMeter
    trace: RequestTrace = field(default_factory=RequestTrace)
    _timer: asyncio.Timeout | None = None

    @contextlib.asynccontextmanager
    async def idle_timeout(self) -> AsyncIterator[None]:
        """Raise `TimeoutError` once nothing was counted for the idle time."""
        async with asyncio.timeout(self.limits.idle_seconds) as self._timer:
            yield

    def count(self, *, out: int = 0, into: int = 0) -> None:
        """Count bytes sent to or received from the upstream; raises `EgressRefusal` at the limit."""
        self.meter.spend(out=out, into=into)
        self.trace.bytes_out += out
        self.trace.bytes_in += into
        # asyncio refuses to reschedule a timer that has fired, though its TimeoutError may not be raised yet.
        if self._timer is not None and not self._timer.expired():
            self._timer.reschedule(asyncio.get_running_loop().time() + self.limits.idle_seconds)

    async def refuse(self, refusal: EgressRefusal) -> None:
        """Answer with a readable refusal, and end the reply."""
        self.trace.status = refusal.status
        self.trace.reason = refusal.message
        hint = f"\n{refusal.hint}" if refusal.hint else ""
        body = f"chargehand: {refusal.message}{hint}\n".encode()
        # Most programs show only this line of a refused CONNECT.
        phrase = f"{HTTPStatus(refusal.status).phrase}: {refusal.message}"
        head = (
            f"HTTP/1.1 {refusal.status} {phrase}\r\ncontent-type: text/plain; charset=utf-8\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.writer.write(head.encode("ascii", "replace") + (b"" if self.trace.method == "HEAD" else body))
        await self.end_writing()

    async def end_writing(self) -> None:
        """End the reply and discard further data from the client, for at most a second."""
        await end_writing(self.reader, self.writer)

    def abort(self, reason: str) -> None:
        """Abort the connection: after the start of a reply, only that shows that it is incomplete."""
        self.trace.reason = self.trace.reason or reason
        self.writer.transport.abort()

    async def close(self) -> None:
        """Close the connection once written data is sent, or after a second."""
        await close_writer(self.writer, seconds=_CLOSE_SECONDS)


async def copy_stream(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, count: Callable[[int], None] = lambda _: None
) -> None:
    """Copy bytes up to and including their end, counting each piece before it is written."""
    while data := await reader.read(CHUNK):
        count(len(data))
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def run_both_ways(up: Coroutine[Any, Any, None], down: Coroutine[Any, Any, None]) -> None:
    """Run both directions until `down` ends, or `up` fails.

    A client may close its half and still wait for the reply, so only the end of `down` ends the request.
    """
    sending = asyncio.ensure_future(up)
    receiving = asyncio.ensure_future(down)
    try:
        await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()
        await receiving
    finally:
        for task in (sending, receiving):
            task.cancel()
        await asyncio.gather(sending, receiving, return_exceptions=True)
