"""One proxied request: CONNECT tunnels and plain HTTP, from the request's head to its log record."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import h11
from msgspec import Struct

from chargehand.network.allow_list import normalise_host, parse_address
from chargehand.network.contract import EgressRefusal, RequestPacer
from chargehand.network.proxy.connection import CHUNK, ClientConnection, copy_stream, run_both_ways
from chargehand.network.proxy.dial import Dialer, UpstreamConnection
from chargehand.network.proxy.head import RequestHead, read_head, without_hop_by_hop
from chargehand.network.proxy.tls import (
    ACCESS_DENIED,
    HANDSHAKE,
    LARGEST_HELLO,
    BadHelloError,
    read_client_hello,
    read_server_name,
)

_HEAD_BYTES = 65_536
_TLS_PORT = 443
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


class ProxiedRequest(Struct, frozen=True, kw_only=True):
    """Answers the single request of a connection; `full` means that too many are open already."""

    client: ClientConnection
    dialer: Dialer
    pacer: RequestPacer
    full: bool = False

    async def run(self) -> None:
        """Answer and close; errors are recorded in the client's trace. Raises only for cancellation."""
        client = self.client
        try:
            head = await self._read_head()
            if head is None:
                return
            if self.full:
                raise EgressRefusal(503, f"more than {client.limits.connections} connections at once")
            # Spending zero refuses if earlier requests have passed the limit.
            client.meter.spend()
            await self.pacer.wait_turn(patience=client.limits.head_seconds)
            # The rule comes before the look-up: a host that is not allowed must leave no trace in DNS.
            rule = self.dialer.find_rule(head.host, head.port)
            client.trace.entry = str(rule)
            destination = await self.dialer.resolve(rule, head.host, head.port)
            client.trace.allowed = True
            upstream = await self.dialer.connect(destination)
            client.trace.address = str(upstream.address)
            try:
                async with client.idle_timeout():
                    await (tunnel if head.tunnel else forward)(client, head, upstream)
            finally:
                # Not closed: that would wait for an upstream that does not read.
                upstream.writer.transport.abort()
        except asyncio.CancelledError:
            client.abort("the sandbox's network was closed")
            raise
        except EgressRefusal as refusal:
            # After a status is sent, a second one would be read as the body.
            if client.trace.status:
                client.abort(refusal.message)
            else:
                await client.refuse(refusal)
        except TimeoutError:
            client.abort(f"nothing was sent for {client.limits.idle_seconds:g} s")
        except OSError as error:
            client.abort(error.strerror or "the connection broke")
        finally:
            await client.close()

    async def _read_head(self) -> RequestHead | None:
        """Return the request, `None` if the client left without one."""
        client = self.client
        try:
            async with asyncio.timeout(client.limits.head_seconds):
                data = await client.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if not error.partial:
                return None
            client.trace.began = True
            raise EgressRefusal(400, "the request is incomplete") from None
        except asyncio.LimitOverrunError:
            client.trace.began = True
            raise EgressRefusal(431, f"the head is longer than {client.limits.head_bytes} bytes") from None
        except TimeoutError:
            client.trace.began = True
            raise EgressRefusal(408, "the request did not come in time") from None
        client.trace.began = True
        head = read_head(data)
        client.trace.method = head.method
        client.trace.host = head.host
        client.trace.port = head.port
        return head


async def tunnel(client: ClientConnection, head: RequestHead, upstream: UpstreamConnection) -> None:
    """Join the client and the upstream until the upstream ends; raises `EgressRefusal`, `OSError`."""

    async def send() -> None:
        opening = await _read_opening(client, head)
        if opening:
            client.count(out=len(opening))
            upstream.writer.write(opening)
            await copy_stream(client.reader, upstream.writer, count=lambda size: client.count(out=size))
        else:
            upstream.writer.write_eof()

    # A client sends its ClientHello only after this line, so the server name can be checked only then.
    client.trace.status = HTTPStatus.OK
    client.writer.write(_ESTABLISHED)
    down = copy_stream(upstream.reader, client.writer, count=lambda size: client.count(into=size))
    await run_both_ways(send(), down)


async def _read_opening(client: ClientConnection, head: RequestHead) -> bytes:
    """Return the first bytes of a tunnel; for TLS only with the right server name.

    Port 443 must use TLS. On other ports only data that looks like TLS is checked: they carry other protocols too.
    """
    data = b""
    try:
        while piece := await client.reader.read(CHUNK):
            data += piece
            if head.port != _TLS_PORT and data[0] != HANDSHAKE:
                return data
            hello = read_client_hello(data)
            if hello is not None:
                _check_server_name(head, read_server_name(hello))
                return data
            if len(data) > LARGEST_HELLO + CHUNK:
                raise BadHelloError("its ClientHello has no end")
    except BadHelloError as error:
        client.trace.allowed = False
        client.trace.reason = f"a tunnel to {head.host}:{head.port}: {error}"
        client.writer.write(ACCESS_DENIED)
        await client.end_writing()
        raise EgressRefusal(403, client.trace.reason) from None
    if data:
        raise EgressRefusal(403, "the client closed the connection within its ClientHello")
    return b""


def _check_server_name(head: RequestHead, name: str | None) -> None:
    """Compare the server name in TLS with the host of the CONNECT: hosts at one address differ in nothing else.

    A client that connects to an address sends no name (RFC 6066 forbids addresses in it).
    """
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


async def forward(client: ClientConnection, head: RequestHead, upstream: UpstreamConnection) -> None:
    """Send a plain request upstream and return the response; raises `EgressRefusal`, `OSError`."""
    exchange = _PlainExchange(client, head, upstream)
    try:
        await run_both_ways(exchange.send_request(), exchange.return_response())
    except h11.ProtocolError:
        if exchange.answer_expected:
            raise EgressRefusal(502, "the host's answer is not valid HTTP/1.1") from None
        raise EgressRefusal(400, "the body of the request is not valid HTTP/1.1") from None


class _PlainExchange:
    """One request and its response, with new framing between two connections of HTTP/1.1.

    Bytes are never forwarded as received: request smuggling exploits two parsers that differ over the end of a
    message.
    """

    def __init__(self, client: ClientConnection, head: RequestHead, upstream: UpstreamConnection) -> None:
        self._client = client
        self._head = head
        self._upstream = upstream
        self.answer_expected = False
        """Whether the request is sent or an answer began: from then on a malformed message is the upstream's."""
        self._framing: list[tuple[bytes, bytes]] = []
        if head.length is None:
            self._framing = [(b"transfer-encoding", b"chunked")]
        elif head.length or head.has_length:
            self._framing = [(b"content-length", str(head.length).encode())]
        self._server_side = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES)
        self._client_side = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)
        # The head was already parsed, more strictly than by h11: it gets only the method and the framing.
        framing = b"".join(name + b": " + value + b"\r\n" for name, value in self._framing)
        self._server_side.receive_data(
            head.method.encode() + b" / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + framing + b"\r\n"
        )
        self._server_side.next_event()

    async def send_request(self) -> None:
        """Send the request upstream, forwarding its body as it comes."""
        head = self._head
        headers = [*head.headers, *self._framing, (b"connection", b"close")]
        await self._write_upstream(h11.Request(method=head.method, target=head.target, headers=headers))
        # `Expect` is not forwarded, so the proxy itself tells the client to send its body.
        if head.expects:
            await self._write_client(h11.InformationalResponse(status_code=HTTPStatus.CONTINUE, headers=[]))
        while True:
            event = self._server_side.next_event()
            if event is h11.NEED_DATA:
                self._server_side.receive_data(await self._client.reader.read(CHUNK))
            elif isinstance(event, h11.Data):
                await self._write_upstream(h11.Data(data=event.data))
            else:
                break
        await self._write_upstream(h11.EndOfMessage())
        self.answer_expected = True

    async def return_response(self) -> None:
        """Forward the response to the client, up to and including its end."""
        while True:
            event = self._client_side.next_event()
            if event is h11.NEED_DATA:
                data = await self._upstream.reader.read(CHUNK)
                self._client.count(into=len(data))
                self.answer_expected = True
                self._client_side.receive_data(data)
            elif isinstance(event, h11.Response):
                headers = [(name.lower(), value) for name, value in event.headers.raw_items()]
                chunked = any(name == b"transfer-encoding" for name, _ in headers)
                # With both the chunks count (RFC 9112, 6.3); a forwarded length would contradict them.
                passed = [
                    (name, value)
                    for name, value in without_hop_by_hop(headers)
                    if not (chunked and name == b"content-length")
                ]
                self._client.trace.status = event.status_code
                await self._write_client(
                    h11.Response(
                        status_code=event.status_code,
                        reason=event.reason,
                        headers=[*passed, (b"connection", b"close")],
                    )
                )
            elif isinstance(event, h11.Data):
                await self._write_client(h11.Data(data=event.data))
            elif isinstance(event, h11.EndOfMessage):
                await self._write_client(h11.EndOfMessage())
                return
            elif not isinstance(event, h11.InformationalResponse):
                raise EgressRefusal(502, "the host's answer is incomplete")

    async def _write_upstream(self, event: h11.Request | h11.Data | h11.EndOfMessage) -> None:
        data = self._client_side.send(event)
        if data:
            self._client.count(out=len(data))
            self._upstream.writer.write(data)
            await self._upstream.writer.drain()

    async def _write_client(
        self, event: h11.InformationalResponse | h11.Response | h11.Data | h11.EndOfMessage
    ) -> None:
        data = self._server_side.send(event)
        if data:
            self._client.writer.write(data)
            await self._client.writer.drain()
