"""Clients for one provider over HTTP/1.1: direct kept-alive connections, or httpx through a proxy."""

from __future__ import annotations

import asyncio
import select
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

from msgspec import Struct

from chargehand.models.http.framing import (
    BodyFraming,
    Decompressor,
    HttpError,
    HttpErrorCode,
    HttpHead,
    find_framing,
    parse_head,
    take_head,
    write_request,
)

if TYPE_CHECKING:
    import ssl

    import httpx

_IDLE_SECONDS = 60.0
# Idle connections to one provider.
_KEPT = 32
# The most unread bytes before reading pauses, so that the provider must wait.
_AHEAD_BYTES = 262_144
# How long one address of a host may take before the next is tried; the last one may use all the remaining time.
_ADDRESS_SECONDS = 1.0
_PROXIED_CONNECTIONS = 512


class HttpBody(Protocol):
    """The pieces of a body; closing it early drops the connection."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Return itself."""
        ...

    async def __anext__(self) -> bytes:
        """Return the next piece; raises `HttpError`."""
        ...

    async def aclose(self) -> None:
        """Close. Idempotent."""
        ...


class HttpReply(Struct, frozen=True, kw_only=True):
    """The head of a reply, names in lower case, and its body as it arrives, uncompressed."""

    status: int
    headers: Mapping[str, str]
    body: HttpBody


class HttpClient(Protocol):
    """A client for one provider; it keeps its connections."""

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, *, connect: float, seconds: float
    ) -> HttpReply:
        """Send one request and return once the head of its reply arrives; redirects are not followed.

        `seconds` bounds the wait for the head and for each later piece. Raises `HttpError`, and `ValueError` for a
        request that cannot be sent; reading the body raises `HttpError`.
        """
        ...

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        ...


class Origin(Struct, frozen=True, kw_only=True):
    """The target of connections; paths follow `prefix`, `certificates` is `None` without TLS."""

    host: str
    port: int
    authority: str
    prefix: str = ""
    certificates: Callable[[], ssl.SSLContext] | None = None


class _Connection(asyncio.Protocol):
    """One connection: the received bytes that were not taken yet, and whether more can come."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.ended = False
        self.idle_since = 0.0
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._waiter: asyncio.Future[None] | None = None
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if not self._paused and len(self.buffer) > _AHEAD_BYTES:
            self._paused = True
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self.ended = True  # the transport then closes itself
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        if not self.closed.done():
            self.closed.set_result(None)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def take_all(self) -> bytes:
        """Return all received bytes."""
        data = bytes(self.buffer)
        self.buffer.clear()
        return data

    async def wait_for_more(self, seconds: float) -> bool:
        """Wait until more arrives; return false if no more can. Raises `HttpError` on a timeout."""
        if self._paused:
            self._paused = False
            self.transport.resume_reading()
        if self.ended:
            return False
        waiter = self._waiter = self._loop.create_future()

        def expire() -> None:
            if not waiter.done():
                waiter.set_exception(TimeoutError())

        # `asyncio.timeout` costs as much as all other work on a piece.
        timer = self._loop.call_later(seconds, expire)
        try:
            await waiter
        except TimeoutError:
            raise HttpError("upstream_timeout", f"no data for {seconds:g} s") from None
        finally:
            timer.cancel()
            self._waiter = None
        return bool(self.buffer) or not self.ended

    @property
    def is_idle(self) -> bool:
        """Whether it is unchanged: open, and nothing arrived since, not even the other side's close."""
        if self.ended or self.buffer or self.transport.is_closing():
            return False
        # The loop may not have read a close yet that the kernel already has.
        watch = select.poll()
        watch.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not watch.poll(0)


class DirectClient:
    """An `HttpClient` on one event loop that keeps up to 32 idle connections for 60 s each."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._idle: deque[_Connection] = deque()
        self._open: set[_Connection] = set()
        self._ending: set[_Connection] = set()

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, *, connect: float, seconds: float
    ) -> HttpReply:
        """Send one request; see `HttpClient`. It never resends a request by itself."""
        given = {"host": self._origin.authority, **headers}
        data = write_request(method, self._origin.prefix + path, given, body)
        connection = self._take_idle() or await self._connect(connect)
        try:
            connection.transport.write(data)
            head = None
            while head is None or head.status < 200:  # earlier heads are interim replies
                while (raw := take_head(connection.buffer)) is None:
                    if not await connection.wait_for_more(seconds):
                        raise HttpError("upstream_cut", "it closed before its head was complete")
                head = parse_head(raw)
            framing = find_framing(head, method=method)
            reply = _DirectBody(self, connection, head, framing, seconds)
        except BaseException:
            self.drop(connection)
            raise
        return HttpReply(status=head.status, headers=head.headers, body=reply)

    def _take_idle(self) -> _Connection | None:
        oldest = asyncio.get_running_loop().time() - _IDLE_SECONDS
        while self._idle and self._idle[0].idle_since < oldest:
            self.drop(self._idle.popleft())
        # The youngest first: it is the least likely to have been closed by the other side.
        while self._idle:
            connection = self._idle.pop()
            if connection.is_idle:
                return connection
            self.drop(connection)
        return None

    async def _connect(self, seconds: float) -> _Connection:
        origin = self._origin
        loop = asyncio.get_running_loop()
        context = origin.certificates() if origin.certificates is not None else None
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(seconds):
                found = await loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
                addresses = list(dict.fromkeys((family, address[0]) for family, *_, address in found))
                # One after the other: asyncio's `happy_eyeballs_delay` leaks its socket when a call is cancelled.
                for family, address in addresses:
                    is_last = (family, address) == addresses[-1]
                    try:
                        async with asyncio.timeout(None if is_last else _ADDRESS_SECONDS):
                            _, connection = await loop.create_connection(
                                _Connection,
                                str(address),
                                origin.port,
                                family=family,
                                ssl=context,
                                server_hostname=origin.host if context is not None else None,
                            )
                        break
                    except OSError:
                        if is_last:
                            raise
        except OSError as error:
            what = f"{type(error).__name__}: {error}" if str(error) else f"no connection in {seconds:g} s"
            raise HttpError(_unsent_fault(what), what) from None
        assert connection is not None  # the last address was reached, or its error raised
        self._open.add(connection)
        return connection

    def keep(self, connection: _Connection) -> None:
        """Take back a connection whose reply is complete."""
        if len(self._idle) >= _KEPT or connection.ended or connection not in self._open:
            self.drop(connection)
            return
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)

    def drop(self, connection: _Connection) -> None:
        """Abort a connection."""
        self._open.discard(connection)
        connection.transport.abort()
        if not connection.closed.done():  # the loop closes the socket in a later turn
            self._ending.add(connection)
            connection.closed.add_done_callback(lambda _: self._ending.discard(connection))

    async def close(self) -> None:
        """Close all connections, including those in use."""
        self._idle.clear()
        for connection in list(self._open):
            self.drop(connection)
        if self._ending:
            await asyncio.wait([connection.closed for connection in self._ending])


class _DirectBody:
    """A body as it arrives: each piece is all received data, however many chunks it came in."""

    def __init__(
        self,
        client: DirectClient,
        connection: _Connection,
        head: HttpHead,
        framing: BodyFraming,
        seconds: float,
    ) -> None:
        self._client = client
        self._connection: _Connection | None = connection
        self._reusable = head.reusable
        self._framing = framing
        self._seconds = seconds
        self._decompressor = Decompressor(head.headers.get("content-encoding", ""))
        self._return_connection()

    def __aiter__(self) -> _DirectBody:
        return self

    async def __anext__(self) -> bytes:
        while (connection := self._connection) is not None:
            piece = b""
            try:
                if connection.buffer or await connection.wait_for_more(self._seconds):
                    piece = self._decompressor.decompress(self._framing.feed(connection.take_all()))
                else:
                    self._framing.end()
            except BaseException:
                await self.aclose()
                raise
            self._return_connection()
            if piece:
                return piece
        raise StopAsyncIteration

    def _return_connection(self) -> None:
        """Return the connection as soon as the body is complete, whether or not the caller reads on."""
        if self._framing.done and self._connection is not None:
            connection = self._connection
            self._connection = None
            # Bytes after a body belong to no request of ours: the next one would read them as its reply.
            if self._reusable and not self._framing.excess and not connection.buffer:
                self._client.keep(connection)
            else:
                self._client.drop(connection)

    async def aclose(self) -> None:
        """Close; the connection is reused only if the whole body was read."""
        connection = self._connection
        self._connection = None
        if connection is not None:
            self._client.drop(connection)


class ProxiedClient:
    """An `HttpClient` on top of httpx, which knows the environment's proxies; paths follow `base`."""

    def __init__(self, base: str, certificates: ssl.SSLContext, *, trust_env: bool) -> None:
        import httpx  # takes 60 ms, paid only if a proxy is used

        self._base = base
        self._httpx = httpx
        self._client = httpx.AsyncClient(
            limits=httpx.Limits(
                max_connections=_PROXIED_CONNECTIONS,
                # httpx goes through all connections for each idle one whenever a call begins or ends.
                max_keepalive_connections=_KEPT,
                keepalive_expiry=_IDLE_SECONDS,
            ),
            follow_redirects=False,
            trust_env=trust_env,
            verify=certificates,
        )

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, *, connect: float, seconds: float
    ) -> HttpReply:
        """Send one request; see `HttpClient`."""
        httpx = self._httpx
        timeout = httpx.Timeout(seconds, connect=connect)
        try:
            request = self._client.build_request(
                method, self._base + path, content=body, headers=dict(headers), timeout=timeout
            )
            response = await self._client.send(request, stream=True)
        except httpx.HTTPError as error:
            raise _convert_error(httpx, error, begun=False) from None
        except httpx.InvalidURL as error:
            raise ValueError(type(error).__name__) from None
        body_pieces = _ProxiedBody(httpx, response)
        return HttpReply(status=response.status_code, headers=dict(response.headers), body=body_pieces)

    async def close(self) -> None:
        """Close the pool. Idempotent."""
        await self._client.aclose()


class _ProxiedBody:
    """The body of a response; unlike a generator's, its `aclose` works even before the first read."""

    def __init__(self, httpx: Any, response: httpx.Response) -> None:
        self._httpx = httpx
        self._response = response
        self._pieces = response.aiter_bytes()

    def __aiter__(self) -> _ProxiedBody:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._pieces)
        except self._httpx.HTTPError as error:
            raise _convert_error(self._httpx, error, begun=True) from None

    async def aclose(self) -> None:
        """Close the response; its connection is reused only if the whole body was read."""
        await self._response.aclose()


def _unsent_fault(what: str) -> HttpErrorCode:
    """Return the code of a connection that failed before sending; the constant is OpenSSL's."""
    return "upstream_untrusted" if "CERTIFICATE_VERIFY_FAILED" in what else "upstream_unreachable"


def _convert_error(httpx: Any, error: Exception, *, begun: bool) -> HttpError:
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    # A request that was never sent can be resent for free; all others may have been charged for.
    unsent = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
    malformed = (httpx.UnsupportedProtocol, httpx.LocalProtocolError)
    if isinstance(error, unsent) or (not begun and isinstance(error, malformed)):
        return HttpError(_unsent_fault(what), what)
    if isinstance(error, httpx.TimeoutException):
        return HttpError("upstream_timeout", what)
    return HttpError("upstream_cut", what)
