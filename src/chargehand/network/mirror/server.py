"""A small, strict HTTP/1.1 server on a unix socket: GET and HEAD, no bodies, one request per connection."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from http import HTTPStatus
from pathlib import Path

import h11

from chargehand.network._unix_socket import bound_socket, cannot_listen
from chargehand.network.contract import MirrorLimits, MirrorRefusal, MirrorReply, MirrorRequest, MirrorTrace

Handler = Callable[[h11.Request, MirrorTrace], Awaitable[MirrorReply]]
_log = logging.getLogger(__name__)
_LINGER_SECONDS = 1.0
_LINGER_BYTES = 1_048_576
_METHODS = ("GET", "HEAD")
_METHOD_LENGTH = 16


class SocketServer:
    """Serves `handler` on `socket_path`; every request ends in one call of `log`, whatever happens to it."""

    def __init__(
        self,
        socket_path: Path,
        handler: Handler,
        *,
        limits: MirrorLimits,
        log: Callable[[MirrorRequest], None] | None,
    ) -> None:
        self._socket_path = socket_path
        self._handler = handler
        self._limits = limits
        self._log = log
        self._left = limits.total_bytes
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._too_many = f"more than {limits.connections} connections at once"

    async def start(self) -> None:
        """Listen; raises `InfrastructureError` where the socket cannot be made."""
        try:
            listener = bound_socket(self._socket_path)
        except OSError as error:
            raise cannot_listen(self._socket_path, error, code="registry_socket") from error
        self._server = await asyncio.start_unix_server(
            self._connected, sock=listener, limit=self._limits.head_bytes
        )

    async def close(self) -> None:
        """Stop listening, cut every connection, remove the socket. Idempotent."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self._socket_path.unlink(missing_ok=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or self._server is None:
            # Accepted while the mirror was being closed: nobody would cut this one later.
            writer.transport.abort()
            return
        if len(self._connections) >= 2 * self._limits.connections:
            # Answering each of a flood would take this process's files and memory.
            writer.transport.abort()
            self._noted(MirrorTrace(problems=[self._too_many]))
            return
        self._connections.add(task)
        connection = _Connection(reader, writer, limits=self._limits, spend=self._spend)
        try:
            await connection.run(self._handler, full=len(self._connections) > self._limits.connections)
        except asyncio.CancelledError:
            # Only `close` cancels, and the streams of Python 3.11 report a cancelled connection as an error.
            pass
        finally:
            self._connections.discard(task)
            self._noted(connection.trace)

    def _spend(self, amount: int) -> None:
        self._left -= amount
        if self._left < 0:
            raise MirrorRefusal(503, f"the mirror's limit of {self._limits.total_bytes} B is used up")

    def _noted(self, trace: MirrorTrace) -> None:
        if self._log is None:
            return
        try:
            self._log(trace.record())
        except Exception:  # a listener's failure is not the client's
            _log.exception("the log of a registry mirror failed")


class _Connection:
    """One request and its reply on one connection."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        limits: MirrorLimits,
        spend: Callable[[int], None],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._limits = limits
        self._spend = spend
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        self.trace = MirrorTrace()

    async def run(self, handler: Handler, *, full: bool) -> None:
        """Answer one request; never raises but for cancellation."""
        try:
            await self._answer(handler, full=full)
        except asyncio.CancelledError:
            self._broken("the mirror was closed")
            raise
        except (OSError, TimeoutError, MirrorRefusal, h11.ProtocolError) as error:
            self._broken(error.message if isinstance(error, MirrorRefusal) else _cause(error))
        except Exception:  # the boundary of one connection: the mirror goes on
            _log.exception("a request to the registry mirror failed")
            self._broken("internal error")
        finally:
            await self._closed()

    def _broken(self, problem: str) -> None:
        """Cut the connection: once the head is sent, only that tells the client that the body is not whole."""
        self.trace.problems.append(problem)
        self._writer.transport.abort()

    async def _closed(self) -> None:
        self._writer.close()
        try:
            async with asyncio.timeout(self._limits.write_seconds):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self._writer.transport.abort()

    async def _answer(self, handler: Handler, *, full: bool) -> None:
        try:
            request = await self._request(full=full)
            if request is None:
                return
            self._spend(0)
            reply = await handler(request, self.trace)
        except MirrorRefusal as refusal:
            reply = self._refused(refusal)
        except Exception:  # same boundary, while an answer can still be given
            _log.exception("a request to the registry mirror failed")
            reply = self._refused(MirrorRefusal(500, "internal error of the mirror"))
        try:
            await self._send(reply)
        finally:
            await reply.close()
        await self._linger()

    def _refused(self, refusal: MirrorRefusal) -> MirrorReply:
        self.trace.problems.append(refusal.message)
        hint = f" ({refusal.hint})" if refusal.hint else ""
        text = refusal.message + hint
        return MirrorReply(status=refusal.status, reason=refusal.message, body=f"{text}\n".encode())

    async def _request(self, *, full: bool) -> h11.Request | None:
        if full:
            raise MirrorRefusal(503, f"more than {self._limits.connections} connections at once")
        try:
            async with asyncio.timeout(self._limits.head_seconds):
                request = await self._head()
        except TimeoutError:
            raise MirrorRefusal(408, "the request did not come in time") from None
        except h11.RemoteProtocolError as error:
            raise MirrorRefusal(error.error_status_hint, "the request is not valid HTTP/1.1") from None
        if request is not None:
            self.trace.method = request.method[:_METHOD_LENGTH].decode("ascii")
            _check_head(request)
        return request

    async def _head(self) -> h11.Request | None:
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                return event
            if event is not h11.NEED_DATA:
                return None
            self._http.receive_data(await self._reader.read(self._limits.head_bytes))

    async def _send(self, reply: MirrorReply) -> None:
        length = len(reply.body) if isinstance(reply.body, bytes) else reply.length
        await self._write(self._http.send(_response(reply, length)))
        self.trace.status = reply.status
        if self.trace.method != "HEAD":
            await self._send_body(reply)
        await self._write(self._http.send(h11.EndOfMessage()))

    async def _send_body(self, reply: MirrorReply) -> None:
        pieces = _once(reply.body) if isinstance(reply.body, bytes) else reply.body
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                # A refusal is sent whole, also where the limit is what it tells of.
                if reply.status == HTTPStatus.OK:
                    self._spend(len(piece))
                await self._write(self._http.send(h11.Data(data=piece)))
                self.trace.bytes_sent += len(piece)

    async def _write(self, data: bytes | None) -> None:
        if data:
            self._writer.write(data)
            async with asyncio.timeout(self._limits.write_seconds):
                await self._writer.drain()

    async def _linger(self) -> None:
        """Read what the client still sends: closing over unread bytes would take the reply from it."""
        left = _LINGER_BYTES
        with contextlib.suppress(OSError, TimeoutError):
            self._writer.write_eof()
            async with asyncio.timeout(_LINGER_SECONDS):
                while left > 0 and (data := await self._reader.read(self._limits.head_bytes)):
                    left -= len(data)


def _check_head(request: h11.Request) -> None:
    if request.method.decode("ascii") not in _METHODS:
        raise MirrorRefusal(405, "this mirror only answers GET and HEAD")
    names = dict(request.headers)
    if b"transfer-encoding" in names or names.get(b"content-length", b"0") != b"0":
        raise MirrorRefusal(400, "this mirror takes no request body")


def _response(reply: MirrorReply, length: int | None) -> h11.Response:
    headers = [("content-type", reply.media), ("connection", "close")]
    headers += [("content-length", str(length))] if length is not None else []
    headers += [("content-encoding", reply.encoding)] if reply.encoding else []
    headers += [("allow", ", ".join(_METHODS))] if reply.status == HTTPStatus.METHOD_NOT_ALLOWED else []
    return h11.Response(status_code=reply.status, reason=_reason(reply), headers=headers)


def _reason(reply: MirrorReply) -> bytes:
    """Return the reason phrase: pip shows it, and only it, of an error."""
    text = reply.reason or HTTPStatus(reply.status).phrase
    return "".join(char if " " <= char <= "~" else "?" for char in text)[:200].encode("ascii")


async def _once(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body


def _cause(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "the client did not read in time"
    return (
        "the client went away"
        if isinstance(error, OSError)
        else "the upstream's answer was not as long as it said"
    )
