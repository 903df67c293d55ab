"""A provider reached over HTTP."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit
from urllib.request import getproxies

import msgspec

from chargehand.core.errors import UpstreamError
from chargehand.models.contract import PATHS, Call, Dialect, Operation, UpstreamReply
from chargehand.models.http.client import DirectWire, Origin
from chargehand.models.http.framing import Wire, WireBody, WireCode, WireError, WireReply

if TYPE_CHECKING:
    import ssl

_ANTHROPIC_VERSION = "2023-06-01"
_VERSION = re.compile(r"[^/]/v\d\w*(/|$)")
"""A version in the path, as in `/v1`, `/api/v4` or `/v1beta/openai`: ours is not added then."""
_LAST_VERSION = re.compile(r"/v\d\w*$")
_OWN_VERSION = re.compile(r"^/v1(beta)?(?=/)")
_SIDE_PATHS: Mapping[tuple[Dialect, Operation], str] = {
    ("openai", "embed"): "/v1/embeddings",
    ("anthropic", "count"): "/v1/messages/count_tokens",
    ("gemini", "count"): "/v1beta/models/{model}:countTokens",
    ("gemini", "embed"): "/v1beta/models/{model}:batchEmbedContents",
}
_BUSY = 429
_CONNECT_SECONDS = 15.0
_COMMON = {"user-agent": "chargehand", "accept": "*/*", "accept-encoding": "identity"}
"""Plain replies: a compressed stream comes in lumps."""
_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[0-9A-Za-z._-]+|[0-9A-Fa-f:.]+")
"""Other names (international ones, zones) are left to httpx."""
_SENTENCES: Mapping[WireCode, str] = {
    "upstream_unreachable": "cannot reach {base} ({what})",
    "upstream_timeout": "{base} sent nothing in time ({what})",
    "upstream_cut": "{base} broke off its reply ({what})",
    "upstream_malformed": "the reply of {base} is not HTTP as it should be ({what})",
}


class HttpUpstream:
    """A provider at `base_url`, with or without `/v1` at its end; `key` never shows in errors or in `repr`.

    `headers` go with every call. Redirects are not followed; proxies and certificates come from the environment.
    The same instance may serve many gateways of one event loop.
    """

    def __init__(
        self,
        base_url: str,
        key: str | None,
        dialect: Dialect,
        *,
        headers: Mapping[str, str] | None = None,
        connect_seconds: float = _CONNECT_SECONDS,
    ) -> None:
        base = base_url.rstrip("/")
        self._base = base
        self._root = _LAST_VERSION.sub("", base)
        self._dialect: Dialect = dialect
        self._base_url = base_url
        self._headers = {**_own_headers(dialect, key), **(headers or {})}
        self._key = key
        self._connect_seconds = connect_seconds
        self._wires: dict[str, Wire] = {}

    def __repr__(self) -> str:
        return f"HttpUpstream({self._base_url!r})"

    async def send(self, call: Call) -> UpstreamReply:
        """Send one call; raises `UpstreamError` where no head comes."""
        path, body = _placed(call)
        headers = {**self._headers, **call.headers, "content-type": "application/json"}
        connect = min(self._connect_seconds, call.seconds)
        # A path of the provider's own lies beside the dialect's, not below its version.
        path, base = (call.path, self._root) if call.path else (self._path(path), self._base)
        reply = await self._asked("POST", path, headers, msgspec.json.encode(body), connect, call.seconds, base)
        return UpstreamReply(status=reply.status, headers=reply.headers, chunks=_Chunks(reply.body, self._failed))

    async def probe(self, seconds: float) -> bool:
        """Return whether the provider answers at all, by asking for its list of models, which costs nothing."""
        path = "/v1beta/models" if self._dialect == "gemini" else "/v1/models"
        try:
            reply = await self._asked("GET", self._path(path), self._headers, b"", seconds, seconds)
        except UpstreamError:
            return False
        await reply.body.aclose()
        return reply.status < 500 and reply.status != _BUSY

    async def _asked(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        connect: float,
        seconds: float,
        base: str | None = None,
    ) -> WireReply:
        given = {**_COMMON, **headers}
        try:
            wire = self._opened(self._base if base is None else base)
            return await wire.ask(method, path, given, body, connect=connect, seconds=seconds)
        except WireError as error:
            raise self._failed(error) from None
        except (ValueError, OSError, ImportError) as error:
            # A key or header that is no ASCII text; what is wrong is named, the value never.
            raise UpstreamError(
                f"cannot send to {self._base_url!r}: {type(error).__name__}",
                code="upstream_unreachable",
                hint="check base_url, key, proxy and certificate settings",
            ) from None

    def _path(self, path: str) -> str:
        return _OWN_VERSION.sub("", path) if _VERSION.search(self._base) else path

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        while self._wires:
            await self._wires.popitem()[1].close()

    def _opened(self, base: str) -> Wire:
        if base not in self._wires:
            self._wires[base] = _wire_to(base)
        return self._wires[base]

    def _failed(self, error: WireError) -> UpstreamError:
        what = str(error)
        if self._key:
            what = what.replace(self._key, "[redacted]")
        message = _SENTENCES[error.code].format(base=repr(self._base_url), what=what)
        return UpstreamError(message, code=error.code, hint="check base_url, the network and proxy settings")


class _Chunks:
    """The body of a reply, its faults in words of ours."""

    def __init__(self, body: WireBody, failed: Callable[[WireError], UpstreamError]) -> None:
        self._body = body
        self._failed = failed

    def __aiter__(self) -> _Chunks:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._body)
        except WireError as error:
            raise self._failed(error) from None

    async def aclose(self) -> None:
        """Close; the connection is used again only where all of it was read."""
        await self._body.aclose()


def _wire_to(base: str) -> Wire:
    """Return the way to `base`: our own, or httpx where a proxy may stand between or the address is unusual."""
    local = _is_local(base)
    origin = _origin(base) if local or not _proxies() else None
    if origin is not None:
        return DirectWire(origin)
    from chargehand.models.http.proxied import ProxiedWire

    return ProxiedWire(base, _trusted(), trust_env=not local)


def _proxies() -> bool:
    """Tell whether the environment names a proxy; which hosts go past it, httpx decides."""
    return bool({"http", "https", "all"} & getproxies().keys())


def _origin(base: str) -> Origin | None:
    parts = urlsplit(base)
    host, port = parts.hostname or "", parts.port
    unusual = parts.scheme not in _PORTS or not _HOST.fullmatch(host) or parts.query or parts.fragment
    if unusual or "@" in parts.netloc:
        return None
    usual = _PORTS[parts.scheme]
    shown = f"[{host}]" if ":" in host else host
    return Origin(
        host=host,
        port=port or usual,
        authority=shown if port in (None, usual) else f"{shown}:{port}",
        prefix=quote(parts.path, safe="/%:@!$&'()*+,;=~"),
        certificates=_trusted if parts.scheme == "https" else None,
    )


def _trusted() -> ssl.SSLContext:
    return _certificates(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@functools.cache
def _certificates(file: str | None, directory: str | None) -> ssl.SSLContext:
    """Load the authorities that are trusted, which takes 40 ms: once per process, not per attempt.

    The arguments are what httpx reads from the environment.
    """
    import httpx

    context = httpx.create_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def _own_headers(dialect: Dialect, key: str | None) -> dict[str, str]:
    if dialect == "anthropic":
        return {"anthropic-version": _ANTHROPIC_VERSION} | ({"x-api-key": key} if key else {})
    if dialect == "gemini":
        return {"x-goog-api-key": key} if key else {}
    return {"authorization": f"Bearer {key}"} if key else {}


def _placed(call: Call) -> tuple[str, Mapping[str, Any]]:
    """Return path and body of a call: of Gemini's, model and stream stand in the path."""
    path = PATHS[call.dialect]
    if call.operation != "reply":
        path = _SIDE_PATHS.get((call.dialect, call.operation), path)
    if call.dialect != "gemini":
        return path, call.body
    body = {name: value for name, value in call.body.items() if name not in ("model", "stream")}
    model = quote(str(call.body.get("model", "")), safe="")
    path = path.format(model=model)
    if call.operation == "embed" and "requests" not in body:
        path = path.replace(":batchEmbedContents", ":embedContent")
    return path.replace(":generateContent", ":streamGenerateContent?alt=sse") if call.stream else path, body
