"""A CONNECT: bytes both ways, once the server that TLS asks for is the one that was allowed."""

from __future__ import annotations

from http import HTTPStatus

from chargehand.sandbox._egress_contract import EgressRefusal
from chargehand.sandbox._egress_dial import Far
from chargehand.sandbox._egress_head import Head
from chargehand.sandbox._egress_hello import (
    HANDSHAKE,
    LARGEST_HELLO,
    REFUSED,
    BadHelloError,
    hello_of,
    server_name,
)
from chargehand.sandbox._egress_line import CHUNK, Line, both, pump
from chargehand.sandbox._egress_rules import literal, normal_host

_TLS_PORT = 443
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


async def tunnel(line: Line, head: Head, far: Far) -> None:
    """Join the client and the host until the host ends; raises `EgressRefusal`, `OSError`."""
    line.trace.status = HTTPStatus.OK
    line.writer.write(_ESTABLISHED)
    await both(_up(line, head, far), pump(far.reader, line.writer, line.got))


async def _up(line: Line, head: Head, far: Far) -> None:
    first = await _opening(line, head)
    if first:
        line.sent(len(first))
        far.writer.write(first)
        await pump(line.reader, far.writer, line.sent)
    else:
        far.writer.write_eof()


async def _opening(line: Line, head: Head) -> bytes:
    """Return the first bytes of a tunnel, those of TLS only with the right server name."""
    data = b""
    try:
        while piece := await line.reader.read(CHUNK):
            data += piece
            if head.port != _TLS_PORT and data[0] != HANDSHAKE:
                return data
            hello = hello_of(data)
            if hello is not None:
                _check_name(head, server_name(hello))
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


def _check_name(head: Head, name: str | None) -> None:
    if name is None:
        if literal(head.host) is None:
            raise BadHelloError("TLS names no server")
        return
    try:
        same = normal_host(name) == head.host
    except ValueError:
        same = False
    if not same:
        raise BadHelloError(f"TLS asks for {name[:80]!r}")
