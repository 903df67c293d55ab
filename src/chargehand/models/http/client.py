"""Connections to one provider without anything between: kept, and handed to one call after another."""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from chargehand.models.http.framing import (
    Frame,
    Head,
    Plain,
    WireError,
    WireReply,
    frame_of,
    parsed_head,
    request_bytes,
    split_head,
)

if TYPE_CHECKING:
    import ssl

_IDLE_SECONDS = 60.0
_KEPT = 32
_AHEAD_BYTES = 262_144
"""What may lie unread before the provider is told to wait."""
_EYEBALLS_SECONDS = 0.25
"""How long one address of a host may take before the next is tried beside it (RFC 8305)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where connections go; paths are put behind `prefix`, `certificates` is `None` without TLS."""

    host: str
    port: int
    authority: str
    prefix: str = ""
    certificates: Callable[[], ssl.SSLContext] | None = None


class _Line(asyncio.Protocol):
    """One connection: what came and was not taken yet, and whether more can come."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.ended = False
        self.idle_since = 0.0
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        self.buffer += data
        if not self._paused and len(self.buffer) > _AHEAD_BYTES:
            self._paused = True
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        """Called by the loop; the connection closes with it."""
        self.ended = True
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the loop."""
        self.ended = True
        if not self.closed.done():
            self.closed.set_result(None)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _late(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(TimeoutError())

    def taken(self) -> bytes:
        """Return all that came."""
        data = bytes(self.buffer)
        self.buffer.clear()
        return data

    async def more(self, seconds: float) -> bool:
        """Wait until more comes; false where none can. Raises `WireError` when it takes too long."""
        if self._paused:
            self._paused = False
            self.transport.resume_reading()
        if self.ended:
            return False
        self._waiter = self._loop.create_future()
        # `asyncio.timeout` costs as much as all the rest of a piece.
        timer = self._loop.call_later(seconds, self._late)
        try:
            await self._waiter
        except TimeoutError:
            raise WireError("upstream_timeout", f"nothing came for {seconds:g} s") from None
        finally:
            timer.cancel()
            self._waiter = None
        return bool(self.buffer) or not self.ended

    @property
    def quiet(self) -> bool:
        """Whether it is as it was left: open, and nothing came since, not even the other side's close."""
        if self.ended or self.buffer or self.transport.is_closing():
            return False
        watch = select.poll()
        watch.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not watch.poll(0)


class DirectWire:
    """Keeps up to 32 idle connections for 60 s each; the rules of `Wire`, on one event loop."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._idle: deque[_Line] = deque()
        self._open: set[_Line] = set()
        self._ending: set[_Line] = set()

    async def ask(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, *, connect: float, seconds: float
    ) -> WireReply:
        """Send one request; see `Wire`. One that was sent once is never sent again by itself."""
        given = {"host": self._origin.authority, **headers}
        data = request_bytes(method, self._origin.prefix + path, given, body)
        line = self._kept() or await self._connected(connect)
        try:
            line.transport.write(data)
            head = await self._head(line, seconds)
            frame = frame_of(head, method=method)
            reply = _Body(self, line, head, frame, seconds)
        except BaseException:
            self.drop(line)
            raise
        return WireReply(status=head.status, headers=head.headers, body=reply)

    async def _head(self, line: _Line, seconds: float) -> Head:
        while True:
            while (raw := split_head(line.buffer)) is None:
                if not await line.more(seconds):
                    raise WireError("upstream_cut", "it closed before its head was whole")
            head = parsed_head(raw)
            if head.status >= 200:
                return head

    def _kept(self) -> _Line | None:
        oldest = asyncio.get_running_loop().time() - _IDLE_SECONDS
        while self._idle and self._idle[0].idle_since < oldest:
            self.drop(self._idle.popleft())
        while self._idle:
            line = self._idle.pop()
            if line.quiet:
                return line
            self.drop(line)
        return None

    async def _connected(self, connect: float) -> _Line:
        origin, loop = self._origin, asyncio.get_running_loop()
        context = origin.certificates() if origin.certificates is not None else None
        name = origin.host if context is not None else None
        try:
            async with asyncio.timeout(connect):
                _, line = await loop.create_connection(
                    _Line,
                    origin.host,
                    origin.port,
                    ssl=context,
                    server_hostname=name,
                    happy_eyeballs_delay=_EYEBALLS_SECONDS,
                )
        except OSError as error:
            what = f"{type(error).__name__}: {error}" if str(error) else f"no connection in {connect:g} s"
            raise WireError("upstream_unreachable", what) from None
        self._open.add(line)
        return line

    def keep(self, line: _Line) -> None:
        """Take back a connection whose reply is whole."""
        if len(self._idle) >= _KEPT or line.ended or line not in self._open:
            self.drop(line)
            return
        line.idle_since = asyncio.get_running_loop().time()
        self._idle.append(line)

    def drop(self, line: _Line) -> None:
        """Give a connection up."""
        self._open.discard(line)
        line.transport.abort()
        if not line.closed.done():  # the loop closes the socket in a later turn
            self._ending.add(line)
            line.closed.add_done_callback(lambda _: self._ending.discard(line))

    async def close(self) -> None:
        """Close all connections, those in use too."""
        self._idle.clear()
        for line in list(self._open):
            self.drop(line)
        if self._ending:
            await asyncio.wait([line.closed for line in self._ending])


class _Body:
    """A body as it comes: each piece is all that is there, however many chunks it came in."""

    def __init__(self, wire: DirectWire, line: _Line, head: Head, frame: Frame, seconds: float) -> None:
        self._wire = wire
        self._line: _Line | None = line
        self._reusable = head.reusable
        self._frame = frame
        self._seconds = seconds
        self._plain = Plain(head.headers.get("content-encoding", ""))
        self._settle()

    def __aiter__(self) -> _Body:
        return self

    async def __anext__(self) -> bytes:
        while (line := self._line) is not None:
            try:
                piece = await self._piece(line)
            except BaseException:
                await self.aclose()
                raise
            self._settle()
            if piece:
                return piece
        raise StopAsyncIteration

    async def _piece(self, line: _Line) -> bytes:
        if not line.buffer and not await line.more(self._seconds):
            self._frame.end()
            return b""
        return self._plain.of(self._frame.feed(line.taken()))

    def _settle(self) -> None:
        """Give the connection back as soon as the body is whole, whether or not anybody asks for more."""
        if self._frame.done and self._line is not None:
            line, self._line = self._line, None
            if self._reusable and not self._frame.excess and not line.buffer:
                self._wire.keep(line)
            else:
                self._wire.drop(line)

    async def aclose(self) -> None:
        """Close; the connection is used again only where all of the body was read."""
        line, self._line = self._line, None
        if line is not None:
            self._wire.drop(line)
