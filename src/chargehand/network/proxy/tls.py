"""Reads the server name from a TLS ClientHello (RFC 8446, 4.1.2; RFC 6066, 3)."""

from __future__ import annotations

HANDSHAKE = 22
# A fatal TLS alert, access_denied: the answer to a client whose server name is refused.
ACCESS_DENIED = bytes((21, 3, 1, 0, 2, 2, 49))
_CLIENT_HELLO = 1
_SERVER_NAME = 0
_HOST_NAME = 0
# RFC 8446, 5.1: a record holds at most 2^14 bytes of plain text.
_RECORD_HEAD = 5
_LARGEST_RECORD = 16_384
LARGEST_HELLO = 65_536


class BadHelloError(ValueError):
    """The data is not a ClientHello that can be checked."""


class _Cursor:
    """Reads lengths and pieces of a message; raises `BadHelloError` at its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, size: int) -> bytes:
        piece = self._data[self._at : self._at + size]
        if len(piece) < size:
            raise BadHelloError("it ends too early")
        self._at += size
        return piece

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> bytes:
        return self.take(self.number(size))


def read_client_hello(data: bytes) -> bytes | None:
    """Return the body of the ClientHello at the start of `data`, `None` while more is needed.

    `data` are TLS records; a hello may be spread over several. Raises `BadHelloError`.
    """
    message = b""
    at = 0
    # Each record is checked as soon as it arrives: do not wait for more bytes of data that is not TLS.
    while len(message) < 4 or len(message) < 4 + int.from_bytes(message[1:4], "big"):
        head = data[at : at + _RECORD_HEAD]
        if head[:1] and (head[0] != HANDSHAKE or head[1:2] not in (b"", b"\x03")):
            raise BadHelloError("it is not TLS")
        if len(head) < _RECORD_HEAD:
            return None
        length = int.from_bytes(head[3:5], "big")
        if not 0 < length <= _LARGEST_RECORD:
            raise BadHelloError("a record of that length does not exist")
        if len(data) < at + _RECORD_HEAD + length:
            return None
        at += _RECORD_HEAD + length
        message += data[at - length : at]
        if message[0] != _CLIENT_HELLO or len(message) > LARGEST_HELLO:
            raise BadHelloError("it does not begin with a ClientHello")
    return message[4 : 4 + int.from_bytes(message[1:4], "big")]


def read_server_name(hello: bytes) -> str | None:
    """Return the single host name in a ClientHello, `None` if it has no name; raises `BadHelloError`."""
    cursor = _Cursor(hello)
    cursor.take(2 + 32)  # version, random
    cursor.vector(1)  # session id
    cursor.vector(2)  # cipher suites
    cursor.vector(1)  # compression methods
    if not cursor:
        return None
    extensions = _Cursor(cursor.vector(2))
    if cursor:
        raise BadHelloError("something follows the extensions")
    found: list[bytes] = []
    while extensions:
        kind = extensions.number(2)
        body = _Cursor(extensions.vector(2))
        if kind != _SERVER_NAME:
            continue
        # RFC 6066 has a list here, in which every client sends one host name. With two, servers differ in their
        # choice.
        names = _Cursor(body.vector(2))
        name_type = names.number(1)
        name = names.vector(2)
        if names or body or name_type != _HOST_NAME:
            raise BadHelloError("it names more than one server")
        found.append(name)
    if len(found) > 1:
        raise BadHelloError("it names its server twice")
    return found[0].decode("latin-1") if found else None
