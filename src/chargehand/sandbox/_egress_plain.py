"""A plain HTTP request on its way to a host and the answer on its way back, framed anew on both sides."""

from __future__ import annotations

from http import HTTPStatus

import h11

from chargehand.sandbox._egress_contract import EgressRefusal
from chargehand.sandbox._egress_dial import Far
from chargehand.sandbox._egress_head import Head, kept_headers
from chargehand.sandbox._egress_line import CHUNK, Line, both

_HEAD_BYTES = 65_536


async def forward(line: Line, head: Head, far: Far) -> None:
    """Send the request, answer with what comes back; raises `EgressRefusal`, `OSError`."""
    exchange = _Plain(line, head, far)
    try:
        await both(exchange.send(), exchange.answer())
    except h11.ProtocolError:
        whose = "host's answer" if exchange.asked else "body of the request"
        raise EgressRefusal(502 if exchange.asked else 400, f"the {whose} is not HTTP/1.1") from None


class _Plain:
    """One request between two connections of HTTP/1.1."""

    def __init__(self, line: Line, head: Head, far: Far) -> None:
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
