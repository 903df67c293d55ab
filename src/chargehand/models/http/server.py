"""A small, strict HTTP/1.1 server on asyncio streams: bodies up to a limit, keep-alive, streamed replies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

import h11
from msgspec import Struct

from chargehand.models.contract import HttpLimits
from chargehand.network.unix_socket import close_writer, end_writing, start_serving

# Our own instead of a framework's: it ends a running stream in an error event, notices that a client left while
# the provider is silent, and leaves no call unsettled when it closes (decision 0010).
_log = logging.getLogger(__name__)
_PIECE = 65_536
_LINGER_SECONDS = 1.0
# Connections over the limit that still get a refusal.
_REFUSED_AT_ONCE = 16
_BODILESS = frozenset({204, 304})


class HttpRequest(Struct, frozen=True, kw_only=True):
    """One received request; header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


class ClientGoneError(ConnectionError):
    """The client closed its connection, or does not read."""


class HttpAnswer:
    """The reply channel to the client: one whole reply, or a head, pieces and an end.

    Writing raises `ClientGoneError` if the client left or does not read for `write_seconds`. `bodiless` marks the
    reply to a HEAD request, whose body is not sent.
    """

    def __init__(
        self,
        http: h11.Connection,
        writer: asyncio.StreamWriter,
        *,
        limits: HttpLimits,
        bodiless: bool = False,
    ) -> None:
        self._http = http
        self._bodiless = bodiless
        self._writer = writer
        self._limits = limits
        self._waiting = bytearray()
        self._chunked = False
        self.begun = False

    async def send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send a whole reply."""
        await self.begin(status, {**headers, "content-length": str(len(body))})
        await self.write(body)
        await self.end()

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head; without a `content-length` the body is sent in chunks."""
        self.begun = True
        fields = list(headers.items())
        sized = "content-length" in headers or status in _BODILESS
        # HTTP/1.0 has no chunks: the end of the connection ends the body.
        self._chunked = not sized and self._http.their_http_version == b"1.1"
        await self._write(self._http.send(h11.Response(status_code=status, headers=fields)))

    async def write(self, piece: bytes) -> None:
        """Send a piece of the body and wait until the client keeps up."""
        if not piece or self._bodiless:
            return
        if self._chunked:  # like h11, at a tenth of the cost: a stream is thousands of these
            await self._write(b"%x\r\n%b\r\n" % (len(piece), piece))
        else:
            await self._write(self._http.send(h11.Data(data=piece)))

    async def end(self) -> None:
        """Mark the body as complete."""
        await self._write(self._http.send(h11.EndOfMessage()))
        self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write(bytes(self._waiting))
            self._waiting.clear()

    async def _write(self, data: bytes | None) -> None:
        if not data:
            return
        if not self._waiting:
            # Sent as soon as the handler waits: pieces that arrive together are sent together.
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting += data
        if len(self._waiting) >= _PIECE:
            self._flush()
        transport = self._writer.transport
        if not transport.is_closing() and transport.get_write_buffer_size() == 0:
            return
        try:
            async with asyncio.timeout(self._limits.write_seconds):
                await self._writer.drain()
        except OSError as error:
            # `TimeoutError` is an `OSError` too.
            raise ClientGoneError(f"the client is gone or does not read: {error!r}") from None


# Answers one request; cancelled when its client leaves or the server closes.
Handler = Callable[[HttpRequest, HttpAnswer], Awaitable[None]]
# Makes the JSON body of a refusal from path, status and sentence.
RefusalWriter = Callable[[str, int, str], bytes]


class _RequestReader(asyncio.StreamReader):
    """The bytes that a client sends; reports once when the client leaves, even during no read."""

    def __init__(self) -> None:
        super().__init__()
        self._ended = False
        self._gone: Callable[[], object] | None = None

    def feed_eof(self) -> None:
        super().feed_eof()
        self._end()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self._end()

    def when_gone(self, call: Callable[[], object] | None) -> None:
        """Replace the callback for when the client leaves; call it at once if the client already left."""
        self._gone = call
        if self._ended:
            self._end()

    def _end(self) -> None:
        self._ended = True
        gone = self._gone
        self._gone = None
        if gone is not None:
            gone()


class HttpServer:
    """Serves `handler` on every connection of its protocols.

    `write_refusal` makes the body of a refusal that happens before a request is complete.
    """

    def __init__(self, handler: Handler, write_refusal: RefusalWriter, *, limits: HttpLimits) -> None:
        self.handler = handler
        self.write_refusal = write_refusal
        self.limits = limits
        self.held = 0
        self._closed = False
        self._connections: set[asyncio.Task[None]] = set()

    def protocol(self) -> asyncio.BaseProtocol:
        """Return a protocol that serves one connection until either side ends it; for asyncio servers."""
        reader = _RequestReader()

        def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self._closed or len(self._connections) >= self.limits.connections + _REFUSED_AT_ONCE:
                # Accepted while the server was being closed: no later code would cut this one. Or one of too many:
                # each connection that gets a reason holds a file descriptor meanwhile.
                writer.transport.abort()
                return
            full = len(self._connections) >= self.limits.connections
            task = start_serving(_ServedConnection(self, reader, writer).run(full=full), writer)
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

        return asyncio.StreamReaderProtocol(reader, accept)

    async def close(self) -> None:
        """Cut every connection and wait until their handlers have ended. Idempotent."""
        self._closed = True
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)


class _RefusalError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class _ServedConnection:
    """One connection, with its requests in sequence."""

    def __init__(self, server: HttpServer, reader: _RequestReader, writer: asyncio.StreamWriter) -> None:
        self._server = server
        self._limits = server.limits
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.head_bytes)
        self._path = "/"
        self._held = 0

    async def run(self, *, full: bool) -> None:
        try:
            try:
                if full:
                    raise _RefusalError(503, f"more than {self._limits.connections} connections at once")
                while (request := await self._read_request()) is not None and await self._answer(request):
                    self._release()
                    if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                        return
                    self._http.start_next_cycle()
            except _RefusalError as refusal:
                # The connection ends once the rest of the client's data is read.
                if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                    body = self._server.write_refusal(self._path, refusal.status, refusal.message)
                    answer = HttpAnswer(self._http, self._writer, limits=self._limits)
                    headers = {"content-type": "application/json", "connection": "close"}
                    await answer.send(refusal.status, headers, body)
                    await end_writing(self._reader, self._writer, most=self._limits.body_bytes)
        except (OSError, h11.LocalProtocolError):
            self._writer.transport.abort()
        except asyncio.CancelledError:
            self._writer.transport.abort()
            raise
        finally:
            self._release()
            await close_writer(self._writer, seconds=_LINGER_SECONDS)

    def _release(self) -> None:
        self._server.held -= self._held
        self._held = 0

    async def _answer(self, request: HttpRequest) -> bool:
        """Run the handler, and cancel it when the client leaves; return whether the connection can continue."""
        answer = HttpAnswer(self._http, self._writer, limits=self._limits, bodiless=request.method == "HEAD")
        handling = asyncio.ensure_future(self._server.handler(request, answer))
        self._reader.when_gone(handling.cancel)
        try:
            await asyncio.wait((handling,))
        finally:
            self._reader.when_gone(None)
            if not handling.done():
                handling.cancel()
                # Shielded: closing the server must not abandon a handler that is still ending its call.
                await asyncio.shield(asyncio.gather(handling, return_exceptions=True))
        if handling.cancelled():
            return False
        error = handling.exception()
        if error is None:
            return True
        if not isinstance(error, ClientGoneError):
            _log.error("a request to the model gateway failed", exc_info=error)
            if not answer.begun:
                raise _RefusalError(500, "internal error of the gateway")
        self._writer.transport.abort()
        return False

    async def _read_request(self) -> HttpRequest | None:
        self._path = "/"
        try:
            head = await self._read_event(self._limits.idle_seconds)
            if not isinstance(head, h11.Request):
                return None
            self._path = head.target.decode("ascii", "replace").partition("?")[0]
            headers = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
            method = head.method.decode("ascii", "replace")
            # Refused by its head: a client that waits for a 100 has sent nothing of the body yet.
            if int(headers.get("content-length", "0")) > self._limits.body_bytes:
                raise self._too_large()
            if self._http.they_are_waiting_for_100_continue:
                self._writer.write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
            body = await self._read_body()
        except TimeoutError:
            if self._http.their_state is h11.IDLE:
                return None  # kept open and not used: nothing went wrong
            raise _RefusalError(408, "the request did not come in time") from None
        except h11.RemoteProtocolError as error:
            raise _RefusalError(error.error_status_hint, "the request is not valid HTTP/1.1") from None
        return HttpRequest(method=method, path=self._path, headers=headers, body=body)

    def _too_large(self) -> _RefusalError:
        return _RefusalError(413, f"the request body is larger than {self._limits.body_bytes} B")

    async def _read_body(self) -> bytes:
        pieces = []
        while isinstance(event := await self._read_event(self._limits.read_seconds), h11.Data):
            pieces.append(bytes(event.data))
            # Counted as they arrive: a body in chunks does not announce its length.
            self._held += len(event.data)
            self._server.held += len(event.data)
            if self._held > self._limits.body_bytes:
                raise self._too_large()
            if self._server.held > self._limits.held_bytes:
                raise _RefusalError(503, "too many large requests at once")
        if not isinstance(event, h11.EndOfMessage):
            raise ConnectionResetError("the client disconnected")
        return b"".join(pieces)

    async def _read_event(self, seconds: float) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            async with asyncio.timeout(seconds):
                self._http.receive_data(await self._reader.read(_PIECE))
        return event
