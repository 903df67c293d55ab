"""Strict parser of a proxy request's head: nothing behind the proxy can read it otherwise."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from chargehand.network.allow_list import normalise_host, parse_port, split_port
from chargehand.network.contract import EgressRefusal

_METHOD = re.compile(rb"[A-Z]{1,16}")
_TARGET = re.compile(rb"[!-~]{1,16384}")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer upgrade "
    b"transfer-encoding http2-settings proxy-authentication-info".split()
)
_UNANSWERED = frozenset({"TRACE", "TRACK"})
_MOST_FIELDS = 200
_HTTP = 80
Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """A request to the proxy: where it goes and what is to be sent there.

    `target` is in origin form, `headers` are those that go on; `length` is the body's, `None` where it comes in
    chunks. `expects` says that the client waits for a 100 before it sends a body.
    """

    method: str
    host: str
    port: int
    target: bytes = b""
    headers: Headers = ()
    length: int | None = 0
    has_length: bool = False
    expects: bool = False

    @property
    def tunnel(self) -> bool:
        """Whether a CONNECT is asked for."""
        return self.method == "CONNECT"


def read_head(data: bytes) -> RequestHead:
    """Return the request of a head that ends in an empty line; raises `EgressRefusal`."""
    first, *lines = data.removesuffix(b"\r\n\r\n").split(b"\r\n")
    method, target, version = _request_line(first)
    fields = _fields(lines)
    if method == "CONNECT":
        return _connect(target, fields)
    if version != b"HTTP/1.1":
        raise EgressRefusal(505, "requests are HTTP/1.1")
    if method in _UNANSWERED:
        raise EgressRefusal(405, f"{method} is not passed on")
    return _absolute(method, target, fields)


def kept_headers(fields: Headers) -> list[tuple[bytes, bytes]]:
    """Return the headers that are not for the next hop alone, `Connection` and what it names left out."""
    named = {part.strip().lower() for name, value in fields if name == b"connection" for part in value.split(b",")}
    return [(name, value) for name, value in fields if name not in _HOP_BY_HOP | named]


def _request_line(line: bytes) -> tuple[str, bytes, bytes]:
    words = line.split(b" ")
    if len(words) != 3 or words[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise _bad("the request line is not that of HTTP/1.1")
    method, target, version = words
    if not _METHOD.fullmatch(method) or not _TARGET.fullmatch(target):
        raise _bad("the request line is not that of HTTP/1.1")
    return method.decode(), target, version


def _fields(lines: Sequence[bytes]) -> Headers:
    if len(lines) > _MOST_FIELDS:
        raise EgressRefusal(431, f"more than {_MOST_FIELDS} header lines")
    fields = []
    for line in lines:
        if line[:1] in (b" ", b"\t"):
            raise _bad("a header line is folded")
        match = _FIELD.fullmatch(line)
        if match is None:
            raise _bad("a header line is malformed")
        fields.append((match[1].lower(), match[2]))
    return fields


def _connect(target: bytes, fields: Headers) -> RequestHead:
    text = target.decode("ascii")
    host, port = _authority(text, default=None)
    hosts = _all(fields, b"host")
    # Clients of HTTP/1.0, Python's own among them, send none; the target says it all.
    if len(hosts) > 1 or (hosts and not _same(hosts[0], host, port, default=port)):
        raise _bad("Host is not the host of the request")
    return RequestHead(method="CONNECT", host=host, port=port)


def _absolute(method: str, target: bytes, fields: Headers) -> RequestHead:
    text = target.decode("ascii")
    if not text.lower().startswith("http://"):
        raise _bad("a proxy is asked for http://HOST/PATH, or to CONNECT to HOST:PORT")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise _bad("the address is malformed") from None
    if "@" in parts.netloc or "#" in text or "\\" in text:
        raise _bad("the address is malformed")
    host, port = _authority(parts.netloc, default=_HTTP)
    hosts = _all(fields, b"host")
    if len(hosts) != 1 or not _same(hosts[0], host, port, default=_HTTP):
        raise _bad("Host is not the host of the request")
    rest = text[len("http://") + len(parts.netloc) :]
    origin = rest if rest.startswith("/") else f"/{rest}"
    length = _length(fields)
    kept = [(name, value) for name, value in kept_headers(fields) if name not in (b"host", b"content-length")]
    return RequestHead(
        method=method,
        host=host,
        port=port,
        target=origin.encode(),
        headers=[(b"host", _shown(host, port)), *((n, v) for n, v in kept if n != b"expect")],
        length=length,
        has_length=bool(_all(fields, b"content-length")),
        expects=_expects(_all(fields, b"expect"), length),
    )


def _shown(host: str, port: int) -> bytes:
    name = f"[{host}]" if ":" in host else host
    return (name if port == _HTTP else f"{name}:{port}").encode()


def _expects(values: Sequence[bytes], length: int | None) -> bool:
    if any(value.lower() != b"100-continue" for value in values):
        raise EgressRefusal(417, "only 100-continue can be expected")
    return bool(values) and length != 0


def _length(fields: Headers) -> int | None:
    lengths, codings = _all(fields, b"content-length"), _all(fields, b"transfer-encoding")
    if codings:
        if lengths or len(codings) > 1 or codings[0].lower() != b"chunked":
            raise _bad("the length of the body is not clear")
        return None
    if len(lengths) > 1 or (lengths and not _LENGTH.fullmatch(lengths[0])):
        raise _bad("the length of the body is not clear")
    return int(lengths[0]) if lengths else 0


def _authority(text: str, *, default: int | None) -> tuple[str, int]:
    try:
        host, port = split_port(text)
        if port is None and default is None:
            raise ValueError("no port")
        return normalise_host(host), default if port is None and default else parse_port(port or "")
    except ValueError:
        raise _bad("the address names no host and port") from None


def _same(value: bytes, host: str, port: int, *, default: int) -> bool:
    try:
        return _authority(value.decode("ascii"), default=default) == (host, port)
    except (UnicodeDecodeError, EgressRefusal):
        return False


def _all(fields: Headers, wanted: bytes) -> list[bytes]:
    return [value for name, value in fields if name == wanted]


def _bad(message: str) -> EgressRefusal:
    return EgressRefusal(400, message)
