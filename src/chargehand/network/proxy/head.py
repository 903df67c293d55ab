"""Strict parser of a proxy request's head: no server behind the proxy can interpret it differently."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from msgspec import Struct

from chargehand.network.allow_list import normalise_host, parse_port, split_port
from chargehand.network.contract import EgressRefusal

_METHOD = re.compile(rb"[A-Z]{1,16}")
_TARGET = re.compile(rb"[!-~]{1,16384}")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*")
# `int` accepts signs, underscores and blanks that other parsers do not; 18 digits fit into 64 bits.
_LENGTH = re.compile(rb"[0-9]{1,18}")
_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer upgrade "
    b"transfer-encoding http2-settings proxy-authentication-info".split()
)
_REFUSED_METHODS = frozenset({"TRACE", "TRACK"})
_MAX_FIELDS = 200
_HTTP_PORT = 80
Headers = Sequence[tuple[bytes, bytes]]


class RequestHead(Struct, frozen=True, kw_only=True):
    """A request to the proxy: its destination and the data to be sent there.

    `target` is in origin form, `headers` are those to forward; `length` is the body's, `None` if it is chunked.
    `expects` means that the client waits for a 100 before it sends a body.
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
        """Whether this is a CONNECT request."""
        return self.method == "CONNECT"


def read_head(data: bytes) -> RequestHead:
    """Return the request of a head that ends in an empty line; raises `EgressRefusal`."""
    request_line, *lines = data.removesuffix(b"\r\n\r\n").split(b"\r\n")
    words = request_line.split(b" ")
    if len(words) != 3 or words[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise EgressRefusal(400, "the request line is not that of HTTP/1.1")
    name, target, version = words
    if not _METHOD.fullmatch(name) or not _TARGET.fullmatch(target):
        raise EgressRefusal(400, "the request line is not that of HTTP/1.1")
    method = name.decode()
    if len(lines) > _MAX_FIELDS:
        raise EgressRefusal(431, f"more than {_MAX_FIELDS} header lines")
    fields = []
    for line in lines:
        # RFC 9112, 5.2: some parsers add a folded line to the one before, others treat it as a header.
        if line[:1] in (b" ", b"\t"):
            raise EgressRefusal(400, "a header line is folded")
        match = _FIELD.fullmatch(line)
        if match is None:
            raise EgressRefusal(400, "a header line is malformed")
        fields.append((match[1].lower(), match[2]))
    if method == "CONNECT":
        host, port = _read_authority(target.decode("ascii"), default_port=None)
        # Clients of HTTP/1.0, including Python's, send no Host; the target is complete.
        _check_host(_values(fields, b"host"), host, port, default_port=port, required=False)
        return RequestHead(method="CONNECT", host=host, port=port)
    if version != b"HTTP/1.1":
        raise EgressRefusal(505, "only requests of HTTP/1.1 are forwarded")
    if method in _REFUSED_METHODS:
        raise EgressRefusal(405, f"{method} is not forwarded")
    return _read_plain(method, target.decode("ascii"), fields)


def without_hop_by_hop(fields: Headers) -> list[tuple[bytes, bytes]]:
    """Return the headers without single-hop ones: `Connection`, the headers that it names, and known ones."""
    named = {part.strip().lower() for name, value in fields if name == b"connection" for part in value.split(b",")}
    return [(name, value) for name, value in fields if name not in _HOP_BY_HOP | named]


def _read_plain(method: str, target: str, fields: Headers) -> RequestHead:
    if not target.lower().startswith("http://"):
        raise EgressRefusal(400, "send http://HOST/PATH, or CONNECT HOST:PORT: this is a proxy")
    try:
        authority = urlsplit(target).netloc
    except ValueError:
        raise EgressRefusal(400, "the URL is malformed") from None
    # Clients disagree on the host of a URL with any of these three.
    if "@" in authority or "#" in target or "\\" in target:
        raise EgressRefusal(400, "the URL is malformed")
    host, port = _read_authority(authority, default_port=_HTTP_PORT)
    _check_host(_values(fields, b"host"), host, port, default_port=_HTTP_PORT, required=True)
    path = target[len("http://") + len(authority) :]
    lengths = _values(fields, b"content-length")
    codings = _values(fields, b"transfer-encoding")
    # With two length statements readers may use either.
    if codings:
        ambiguous = bool(lengths) or len(codings) > 1 or codings[0].lower() != b"chunked"
    else:
        ambiguous = len(lengths) > 1 or (bool(lengths) and not _LENGTH.fullmatch(lengths[0]))
    if ambiguous:
        raise EgressRefusal(400, "the length of the body is ambiguous")
    length = None if codings else int(lengths[0]) if lengths else 0
    expectations = _values(fields, b"expect")
    if any(value.lower() != b"100-continue" for value in expectations):
        raise EgressRefusal(417, "the only expectation served is 100-continue")
    name = f"[{host}]" if ":" in host else host
    own = (b"host", b"content-length", b"expect")
    return RequestHead(
        method=method,
        host=host,
        port=port,
        target=(path if path.startswith("/") else f"/{path}").encode(),
        # Host is rebuilt from the checked value, never forwarded as received.
        headers=[
            (b"host", (name if port == _HTTP_PORT else f"{name}:{port}").encode()),
            *(field for field in without_hop_by_hop(fields) if field[0] not in own),
        ],
        length=length,
        has_length=bool(lengths),
        expects=bool(expectations) and length != 0,
    )


def _read_authority(text: str, *, default_port: int | None) -> tuple[str, int]:
    try:
        host, port = split_port(text)
        if port is None and default_port is not None:
            return normalise_host(host), default_port
        return normalise_host(host), parse_port(port or "")
    except ValueError:
        raise EgressRefusal(400, "the request names no valid host and port") from None


def _check_host(values: Sequence[bytes], host: str, port: int, *, default_port: int, required: bool) -> None:
    """Compare `Host` with the target: a server behind the proxy may use either."""
    try:
        same = [_read_authority(value.decode("ascii"), default_port=default_port) for value in values]
    except (UnicodeDecodeError, EgressRefusal):
        same = []
    if (values or required) and same != [(host, port)]:
        raise EgressRefusal(400, "Host is not the host of the request")


def _values(fields: Headers, wanted: bytes) -> list[bytes]:
    return [value for name, value in fields if name == wanted]
