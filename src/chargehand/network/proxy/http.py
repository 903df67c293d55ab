"""One proxied request: CONNECT tunnels and plain HTTP, from the request's head to its log record."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus

import h11

from chargehand.network.allow_list import normalise_host, parse_address
from chargehand.network.contract import EgressRefusal, RequestPacer
from chargehand.network.proxy.connection import CHUNK, ClientConnection, both, pump
from chargehand.network.proxy.dial import Dialer, HostConnection
from chargehand.network.proxy.head import RequestHead, kept_headers, read_head
from chargehand.network.proxy.tls import (
    HANDSHAKE,
    LARGEST_HELLO,
    REFUSED,
    BadHelloError,
    read_client_hello,
    read_server_name,
)

_HEAD_BYTES = 65_536


async def forward(line: ClientConnection, head: RequestHead, far: HostConnection) -> None:
    """Send the request, answer with what comes back; raises `EgressRefusal`, `OSError`."""
    exchange = _PlainRequest(line, head, far)
    try:
        await both(exchange.send(), exchange.answer())
    except h11.ProtocolError:
        whose = "host's answer" if exchange.asked else "body of the request"
        raise EgressRefusal(502 if exchange.asked else 400, f"the {whose} is not HTTP/1.1") from None


class _PlainRequest:
    """One request between two connections of HTTP/1.1."""

    def __init__(self, line: ClientConnection, head: RequestHead, far: HostConnection) -> None:
        self._line, self._head, self._far = line, head, far
        self.asked = False
        self._client = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES)
        self._host = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)
        # The head was read already, more strictly than h11 would: it learns the method and the framing only.
        self._client.receive_data(
            f"{head.method} / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{self._framing()}\r\n".encode()
        )
        self._client.next_event()

    def _framing(self) -> str:
        length = self._head.length
        if length is None:
            return "transfer-encoding: chunked\r\n"
        return f"content-length: {length}\r\n" if length or self._head.has_length else ""

    async def send(self) -> None:
        """Send the request, its body as it comes."""
        framing = [line.split(": ", 1) for line in self._framing().splitlines()]
        headers = [*self._head.headers, *((n.encode(), v.encode()) for n, v in framing), (b"connection", b"close")]
        request = h11.Request(method=self._head.method, target=self._head.target, headers=headers)
        await self._out(self._host.send(request))
        if self._head.expects:
            await self._back(
                self._client.send(h11.InformationalResponse(status_code=HTTPStatus.CONTINUE, headers=[]))
            )
        while True:
            event = self._client.next_event()
            if event is h11.NEED_DATA:
                self._client.receive_data(await self._line.reader.read(CHUNK))
            elif isinstance(event, h11.Data):
                await self._out(self._host.send(h11.Data(data=event.data)))
            else:
                break
        await self._out(self._host.send(h11.EndOfMessage()))
        self.asked = True

    async def answer(self) -> None:
        """Pass the answer on to its end."""
        while True:
            event = self._host.next_event()
            if event is h11.NEED_DATA:
                data = await self._far.reader.read(CHUNK)
                self._line.got(len(data))
                self.asked = True
                self._host.receive_data(data)
            elif isinstance(event, h11.Response):
                await self._begin(event)
            elif isinstance(event, h11.Data):
                await self._back(self._client.send(h11.Data(data=event.data)))
            elif isinstance(event, h11.EndOfMessage):
                await self._back(self._client.send(h11.EndOfMessage()))
                return
            elif not isinstance(event, h11.InformationalResponse):
                raise EgressRefusal(502, "the host's answer is not whole")

    async def _begin(self, response: h11.Response) -> None:
        fields = response.headers.raw_items()
        plain = [(name.lower(), value) for name, value in fields]
        chunked = any(name == b"transfer-encoding" for name, _ in plain)
        headers = [
            (name, value) for name, value in kept_headers(plain) if not (chunked and name == b"content-length")
        ]
        self._line.trace.status = response.status_code
        await self._back(
            self._client.send(
                h11.Response(
                    status_code=response.status_code,
                    reason=response.reason,
                    headers=[*headers, (b"connection", b"close")],
                )
            )
        )

    async def _out(self, data: bytes | None) -> None:
        if data:
            self._line.sent(len(data))
            self._far.writer.write(data)
            await self._far.writer.drain()

    async def _back(self, data: bytes | None) -> None:
        if data:
            self._line.writer.write(data)
            await self._line.writer.drain()


_TLS_PORT = 443
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


async def tunnel(line: ClientConnection, head: RequestHead, far: HostConnection) -> None:
    """Join the client and the host until the host ends; raises `EgressRefusal`, `OSError`."""
    line.trace.status = HTTPStatus.OK
    line.writer.write(_ESTABLISHED)
    await both(_up(line, head, far), pump(far.reader, line.writer, line.got))


async def _up(line: ClientConnection, head: RequestHead, far: HostConnection) -> None:
    first = await _opening(line, head)
    if first:
        line.sent(len(first))
        far.writer.write(first)
        await pump(line.reader, far.writer, line.sent)
    else:
        far.writer.write_eof()


async def _opening(line: ClientConnection, head: RequestHead) -> bytes:
    """Return the first bytes of a tunnel, those of TLS only with the right server name."""
    data = b""
    try:
        while piece := await line.reader.read(CHUNK):
            data += piece
            if head.port != _TLS_PORT and data[0] != HANDSHAKE:
                return data
            hello = read_client_hello(data)
            if hello is not None:
                _check_name(head, read_server_name(hello))
                return data
            if len(data) > LARGEST_HELLO + CHUNK:
                raise BadHelloError("its ClientHello has no end")
    except BadHelloError as error:
        line.trace.allowed = False
        line.trace.reason = f"a tunnel to {head.host}:{head.port}: {error}"
        line.writer.write(REFUSED)
        await line.linger()
        raise EgressRefusal(403, line.trace.reason) from None
    if data:
        raise EgressRefusal(403, "the client went away within its ClientHello")
    return b""


def _check_name(head: RequestHead, name: str | None) -> None:
    if name is None:
        if parse_address(head.host) is None:
            raise BadHelloError("TLS names no server")
        return
    try:
        same = normalise_host(name) == head.host
    except ValueError:
        same = False
    if not same:
        raise BadHelloError(f"TLS asks for {name[:80]!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxiedRequest:
    """Answers the one request of a connection; `full` says that too many are open already."""

    line: ClientConnection
    dialler: Dialer
    pace: RequestPacer
    full: bool = False

    async def run(self) -> None:
        """Answer and close; what goes wrong is in the line's trace. Raises only for cancellation."""
        line = self.line
        try:
            await self._answer()
        except asyncio.CancelledError:
            line.cut("the sandbox's network was closed")
            raise
        except EgressRefusal as refusal:
            if line.trace.status:
                line.cut(refusal.message)
            else:
                await line.refuse(refusal)
        except TimeoutError:
            line.cut(f"nothing was sent for {line.limits.idle_seconds:g} s")
        except OSError as error:
            line.cut(error.strerror or "the connection broke")
        finally:
            await line.close()

    async def _answer(self) -> None:
        head = await self._head()
        if head is None:
            return
        far = await self._admitted(head)
        try:
            async with self.line.watched():
                await (tunnel(self.line, head, far) if head.tunnel else forward(self.line, head, far))
        finally:
            far.writer.transport.abort()

    async def _head(self) -> RequestHead | None:
        """Return the request, `None` where the client went away without one."""
        line = self.line
        try:
            async with asyncio.timeout(line.limits.head_seconds):
                data = await line.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if not error.partial:
                return None
            raise self._asked(EgressRefusal(400, "the request is not whole")) from None
        except asyncio.LimitOverrunError:
            message = f"the head is longer than {line.limits.head_bytes} bytes"
            raise self._asked(EgressRefusal(431, message)) from None
        except TimeoutError:
            raise self._asked(EgressRefusal(408, "the request did not come in time")) from None
        line.trace.asked = True
        head = read_head(data)
        line.trace.method, line.trace.host, line.trace.port = head.method, head.host, head.port
        return head

    def _asked(self, refusal: EgressRefusal) -> EgressRefusal:
        self.line.trace.asked = True
        return refusal

    async def _admitted(self, head: RequestHead) -> HostConnection:
        """Return the connection to the host; raises `EgressRefusal`."""
        line, dialler = self.line, self.dialler
        if self.full:
            raise EgressRefusal(503, f"more than {line.limits.connections} connections at once")
        line.meter.spend()
        await self.pace.turn(patience=line.limits.head_seconds)
        rule = dialler.rule(head.host, head.port)
        line.trace.entry = str(rule)
        way = await dialler.way(rule, head.host, head.port)
        line.trace.allowed = True
        far = await dialler.open(way, head.host)
        line.trace.address = str(far.address)
        return far
