"""A small, strict HTTP/1.1 server on a unix socket: GET and HEAD, no bodies, one request per connection."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path

import h11

from chargehand.network.contract import MirrorLimits, MirrorRefusal, MirrorReply, MirrorRequest, MirrorTrace
from chargehand.network.unix_socket import UnixServer, close_writer, end_writing

Handler = Callable[[h11.Request, MirrorTrace], Awaitable[MirrorReply]]
_METHODS = ("GET", "HEAD")
_METHOD_LENGTH = 16
_REASON_LENGTH = 200
_log = logging.getLogger(__name__)


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
        self._handler = handler
        self._limits = limits
        self._log = log
        self._bytes_left = limits.total_bytes
        self._server = UnixServer(
            socket_path,
            self._serve,
            connections=limits.connections,
            most=2 * limits.connections,
            read_limit=limits.head_bytes,
            on_drop=lambda: self._log_request(MirrorTrace(problems=[_too_many(limits)])),
        )

    async def start(self) -> None:
        """Listen; raises `InfrastructureError` (`registry_socket`) if the socket cannot be created."""
        await self._server.start(error_code="registry_socket")

    async def close(self) -> None:
        """Stop listening, cut every connection, remove the socket. Idempotent."""
        await self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, full: bool) -> None:
        connection = _RequestConnection(reader, writer, limits=self._limits, spend=self._spend)
        try:
            await connection.run(self._handler, full=full)
        finally:
            self._log_request(connection.trace)

    def _spend(self, amount: int) -> None:
        self._bytes_left -= amount
        if self._bytes_left < 0:
            raise MirrorRefusal(503, f"the mirror's limit of {self._limits.total_bytes} B is used up")

    def _log_request(self, trace: MirrorTrace) -> None:
        if self._log is None:
            return
        try:
            self._log(trace.record())
        except Exception:  # a listener's failure is not the client's
            _log.exception("the log of a registry mirror failed")


class _RequestConnection:
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
        """Answer one request; raises only for cancellation."""
        try:
            reply = await self._find_reply(handler, full=full)
            if reply is not None:
                try:
                    await self._send(reply)
                finally:
                    await reply.close()
                await end_writing(self._reader, self._writer)
        except asyncio.CancelledError:
            self._abort("the mirror was closed")
            raise
        except MirrorRefusal as refusal:
            self._abort(refusal.message)
        except TimeoutError:
            self._abort("the client did not read in time")
        except OSError:
            self._abort("the client closed the connection")
        except h11.ProtocolError:
            # h11 compares the body with the length in its head, and both come from the upstream.
            self._abort("the upstream's answer was not as long as announced")
        except Exception:  # the boundary of one connection: the mirror continues
            _log.exception("a request to the registry mirror failed")
            self._abort("internal error")
        finally:
            await close_writer(self._writer, seconds=self._limits.write_seconds)

    def _abort(self, problem: str) -> None:
        """Abort the connection: after the head is sent, only that shows that the body is incomplete."""
        self.trace.problems.append(problem)
        self._writer.transport.abort()

    async def _find_reply(self, handler: Handler, *, full: bool) -> MirrorReply | None:
        """Return the reply, which may be a refusal; `None` if no request came."""
        try:
            if full:
                raise MirrorRefusal(503, _too_many(self._limits))
            request = await self._read_request()
            if request is None:
                return None
            # Spending zero refuses if earlier requests have passed the limit.
            self._spend(0)
            return await handler(request, self.trace)
        except MirrorRefusal as error:
            refusal = error
        except Exception:  # same boundary, while an answer is still possible
            _log.exception("a request to the registry mirror failed")
            refusal = MirrorRefusal(500, "internal error of the mirror")
        self.trace.problems.append(refusal.message)
        text = f"{refusal.message} ({refusal.hint})" if refusal.hint else refusal.message
        return MirrorReply(status=refusal.status, reason=refusal.message, body=f"{text}\n".encode())

    async def _read_request(self) -> h11.Request | None:
        try:
            async with asyncio.timeout(self._limits.head_seconds):
                while (event := self._http.next_event()) is h11.NEED_DATA:
                    self._http.receive_data(await self._reader.read(self._limits.head_bytes))
        except TimeoutError:
            raise MirrorRefusal(408, "the request did not come in time") from None
        except h11.RemoteProtocolError as error:
            raise MirrorRefusal(error.error_status_hint, "the request is not valid HTTP/1.1") from None
        if not isinstance(event, h11.Request):
            return None
        # Recorded before the check, so that a refused request is in the log, but with bounded length.
        self.trace.method = event.method[:_METHOD_LENGTH].decode("ascii")
        if event.method.decode("ascii") not in _METHODS:
            raise MirrorRefusal(405, "this mirror answers only GET and HEAD")
        headers = dict(event.headers)
        if b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0":
            raise MirrorRefusal(400, "this mirror accepts no request body")
        return event

    async def _send(self, reply: MirrorReply) -> None:
        length = len(reply.body) if isinstance(reply.body, bytes) else reply.length
        headers = [("content-type", reply.media), ("connection", "close")]
        headers += [("content-length", str(length))] if length is not None else []
        headers += [("content-encoding", reply.encoding)] if reply.encoding else []
        headers += [("allow", ", ".join(_METHODS))] if reply.status == HTTPStatus.METHOD_NOT_ALLOWED else []
        # pip shows only the reason phrase of an error.
        phrase = reply.reason or HTTPStatus(reply.status).phrase
        reason = "".join(char if " " <= char <= "~" else "?" for char in phrase)[:_REASON_LENGTH].encode("ascii")
        await self._write(h11.Response(status_code=reply.status, reason=reason, headers=headers))
        self.trace.status = reply.status
        if self.trace.method != "HEAD":
            async with contextlib.aclosing(reply.pieces()) as pieces:
                async for piece in pieces:
                    # A refusal is sent completely, even if it reports the limit itself.
                    if reply.status == HTTPStatus.OK:
                        self._spend(len(piece))
                    await self._write(h11.Data(data=piece))
                    self.trace.bytes_sent += len(piece)
        await self._write(h11.EndOfMessage())

    async def _write(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> None:
        data = self._http.send(event)
        if data:
            self._writer.write(data)
            # A client that does not read would hold an upstream's connection and one of our places.
            async with asyncio.timeout(self._limits.write_seconds):
                await self._writer.drain()


def _too_many(limits: MirrorLimits) -> str:
    return f"more than {limits.connections} connections at once"
