"""Replies of HTTP/1.1 as bytes: their head, and the framings that mark the end of a body (RFC 9112)."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Literal, Protocol

from msgspec import Struct

from chargehand.core.text import late_pattern

_STATUS = late_pattern(rb"HTTP/1\.([01]) ([1-9]\d\d)(?: [^\x00\n\v\f\r]*)?")
_VALUE = late_pattern(rb"[^\x00\n\v\f\r]*")
_NAME = late_pattern(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_SIZE = late_pattern(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\x00\r\n]*)?")
_END = late_pattern(rb"\n\r?\n")
_HEAD_BYTES = 65_536
# The limit for a chunk's size with its extensions, and for all trailers together.
_LINE_BYTES = 4_096
_BODILESS = frozenset({204, 304})
HttpErrorCode = Literal[
    "upstream_unreachable", "upstream_untrusted", "upstream_timeout", "upstream_cut", "upstream_malformed"
]


class HttpError(Exception):
    """A call got no complete reply; `code` is that of the `UpstreamError` it becomes."""

    def __init__(self, code: HttpErrorCode, what: str) -> None:
        super().__init__(what)
        self.code = code


class HttpHead(Struct, frozen=True, kw_only=True):
    """A parsed head; `reusable`: the connection may be kept, as far as the head says."""

    status: int
    headers: Mapping[str, str]
    reusable: bool


class BodyFraming(Protocol):
    """Finds the end of a body. `done` after the end; `excess`: more bytes followed it."""

    done: bool
    excess: bool

    def feed(self, data: bytes) -> bytes:
        """Return the part of `data` that belongs to the body; raises `HttpError` if it is malformed."""
        ...

    def end(self) -> None:
        """Note that the other side closed; raises `HttpError` if the body is incomplete."""
        ...


def take_head(buffer: bytearray) -> bytes | None:
    """Remove the first complete head from `buffer` and return it; raises `HttpError` if it is too large."""
    found = _END.search(buffer)
    if (found.end() if found else len(buffer)) > _HEAD_BYTES:
        raise _malformed_reply(f"its head is larger than {_HEAD_BYTES} B")
    if found is None:
        return None
    head = bytes(buffer[: found.end()])
    del buffer[: found.end()]
    return head


def parse_head(raw: bytes) -> HttpHead:
    """Parse a head; raises `HttpError` if it is malformed."""
    first, *lines = (line.removesuffix(b"\r") for line in raw.rstrip(b"\r\n").split(b"\n"))
    status = _STATUS.fullmatch(first)
    if status is None:
        raise _malformed_reply(f"it does not begin as HTTP/1.1 but as {first[:40]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        key, text = _parse_header(line)
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    kept = {word.strip().lower() for word in headers.get("connection", "").split(",")}
    both = "transfer-encoding" in headers and "content-length" in headers
    reusable = "close" not in kept and not both and (status[1] == b"1" or "keep-alive" in kept)
    return HttpHead(status=int(status[2]), headers=headers, reusable=reusable)


def _parse_header(line: bytes) -> tuple[str, str]:
    name, colon, value = line.partition(b":")
    if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
        raise _malformed_reply("it has a line that is not a header")
    return name.decode("ascii").lower(), value.strip(b" \t").decode("latin-1")


def find_framing(head: HttpHead, *, method: str) -> BodyFraming:
    """Return the framing of the body after `head`; raises `HttpError` if unsupported or contradictory."""
    encoding = head.headers.get("transfer-encoding")
    length = head.headers.get("content-length")
    if encoding is not None and encoding.lower() != "chunked":
        raise _malformed_reply(f"its transfer-encoding is {encoding!r:.60}")
    size = None
    if length is not None:
        # A repeated equal length counts once (RFC 9110, 8.6). `int` would also accept signs and underscores.
        first, *others = {each.strip() for each in length.split(",")}
        if others or not (first.isascii() and first.isdigit()) or len(first) > 15:
            raise _malformed_reply(f"its content-length is {length!r:.60}")
        size = int(first)
    if method == "HEAD" or head.status in _BODILESS:
        return CountedBody(0)
    # With both, the chunks count (RFC 9112, 6.3), and the connection is not reused.
    if encoding is not None:
        return ChunkedBody()
    return UnboundedBody() if size is None else CountedBody(size)


class CountedBody:
    """A body of known length."""

    def __init__(self, size: int) -> None:
        self._left = size
        self.done = size == 0
        self.excess = False

    def feed(self, data: bytes) -> bytes:
        """Return as much of `data` as belongs to the body."""
        self.excess = self.excess or len(data) > self._left
        own = data[: self._left]
        self._left -= len(own)
        self.done = self._left == 0
        return own

    def end(self) -> None:
        """Raise if bytes are missing."""
        if not self.done:
            raise HttpError("upstream_cut", f"it closed with {self._left} B missing")


class UnboundedBody:
    """A body that ends with its connection."""

    def __init__(self) -> None:
        self.done = False
        self.excess = True

    def feed(self, data: bytes) -> bytes:
        """Return all of it."""
        return data

    def end(self) -> None:
        """Mark the body as complete."""
        self.done = True


class ChunkedBody:
    """A body in chunks; trailers are read and dropped."""

    def __init__(self) -> None:
        self._rest = b""
        self._left = 0
        self._behind = False
        self._trailing = 0
        self.done = False
        self.excess = False

    def feed(self, data: bytes) -> bytes:
        """Return the content of all chunks, and parts of chunks, in `data` as one piece."""
        data = self._rest + data if self._rest else data
        self._rest = b""
        found = list[bytes]()
        place = 0
        while not self.done:
            if self._left:
                piece = data[place : place + self._left]
                found.append(piece)
                place += len(piece)
                self._left -= len(piece)
                if self._left:
                    break
                self._behind = True
            end = data.find(b"\r\n", place)
            if end < 0:
                self._rest = data[place:]
                self._check_line(len(self._rest))
                break
            line = data[place:end]
            if self._behind:
                if line:
                    raise _malformed_reply("a chunk is longer than its declared size")
                self._behind = False
            elif self._trailing:
                self._trailing += len(line) + 2
                self._check_line(self._trailing)
                self.done = not line
                if line:
                    _parse_header(line)
            else:
                size = _SIZE.fullmatch(line)
                if size is None:
                    raise _malformed_reply(f"{line[:40]!r} is not the size of a chunk")
                self._left = int(size[1], 16)
                self._trailing = int(self._left == 0)
            place = end + 2
        self.excess = self.done and place < len(data)
        return found[0] if len(found) == 1 else b"".join(found)

    def end(self) -> None:
        """Raise if the last chunk is missing."""
        if not self.done:
            raise HttpError("upstream_cut", "it closed before its last chunk")

    def _check_line(self, size: int) -> None:
        if self._behind and size > 1:
            raise _malformed_reply("a chunk is longer than its declared size")
        if size > _LINE_BYTES:
            raise _malformed_reply(f"a line between its chunks is larger than {_LINE_BYTES} B")


class Decompressor:
    """Decompresses a body that was compressed without being asked for."""

    def __init__(self, encoding: str) -> None:
        encoding = encoding.strip().lower()
        if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise _malformed_reply(f"its content-encoding is {encoding!r:.60}")
        self._inflate = zlib.decompressobj(wbits=47) if encoding not in ("", "identity") else None

    def decompress(self, piece: bytes) -> bytes:
        """Return the piece decompressed; raises `HttpError`."""
        if self._inflate is None:
            return piece
        try:
            return self._inflate.decompress(piece)
        except zlib.error as error:
            raise _malformed_reply(f"it does not uncompress: {error}") from None


def write_request(method: str, target: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """Return a complete request; raises `ValueError` for characters that are not allowed."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if any(not line.isprintable() for line in lines) or " " in target:
        raise ValueError("a line of the request would have invalid characters")
    if body or method == "POST":
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "\r\n"]).encode("ascii") + body


def _malformed_reply(what: str) -> HttpError:
    return HttpError("upstream_malformed", what)
