"""A provider reached over HTTP."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import msgspec

from chargehand.core import UpstreamError
from chargehand.models._contract import PATHS, Call, Dialect, Operation, UpstreamReply

if TYPE_CHECKING:
    import ssl

    import httpx

_ANTHROPIC_VERSION = "2023-06-01"
_VERSION = re.compile(r"[^/]/v\d\w*(/|$)")
"""A version in the path, as in `/v1`, `/api/v4` or `/v1beta/openai`: ours is not added then."""
_OWN_VERSION = re.compile(r"^/v1(beta)?(?=/)")
_SIDE_PATHS: Mapping[tuple[Dialect, Operation], str] = {
    ("openai", "embed"): "/v1/embeddings",
    ("anthropic", "count"): "/v1/messages/count_tokens",
    ("gemini", "count"): "/v1beta/models/{model}:countTokens",
}
_BUSY = 429
_CONNECT_SECONDS = 15.0
_CONNECTIONS = 512
_KEPT_CONNECTIONS = 32
"""httpx goes through all connections for each idle one whenever a call begins or ends."""
_COMMON = {"user-agent": "chargehand", "accept-encoding": "identity"}
"""Plain replies: a compressed stream comes in lumps."""
_IDLE_SECONDS = 60.0


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
        self._dialect: Dialect = dialect
        self._base_url = base_url
        self._headers = {**_own_headers(dialect, key), **(headers or {})}
        self._key = key
        self._connect_seconds = connect_seconds
        self._client: httpx.AsyncClient | None = None

    def __repr__(self) -> str:
        return f"HttpUpstream({self._base_url!r})"

    async def send(self, call: Call) -> UpstreamReply:
        """Send one call; raises `UpstreamError` where no head comes."""
        import httpx

        timeout = httpx.Timeout(call.seconds, connect=min(self._connect_seconds, call.seconds))
        try:
            client = self._opened()
            path, body = _placed(call)
            request = client.build_request(
                "POST",
                self._url(path),
                content=msgspec.json.encode(body),
                headers={**self._headers, **call.headers, "content-type": "application/json"},
                timeout=timeout,
            )
            response = await client.send(request, stream=True)
        except httpx.HTTPError as error:
            raise self._failed(error, begun=False) from None
        except (httpx.InvalidURL, ValueError, OSError, ImportError) as error:
            # A key or header that is no ASCII text; what is wrong is named, the value never.
            raise UpstreamError(
                f"cannot send to {self._base_url!r}: {type(error).__name__}",
                code="upstream_unreachable",
                hint="check base_url, key, proxy and certificate settings",
            ) from None
        chunks = _Chunks(response, self._failed)
        return UpstreamReply(status=response.status_code, headers=dict(response.headers), chunks=chunks)

    async def probe(self, seconds: float) -> bool:
        """Return whether the provider answers at all, by asking for its list of models, which costs nothing."""
        import httpx

        path = "/v1beta/models" if self._dialect == "gemini" else "/v1/models"
        try:
            reply = await self._opened().get(self._url(path), headers=self._headers, timeout=seconds)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, OSError, ImportError):
            return False
        return reply.status_code < 500 and reply.status_code != _BUSY

    def _url(self, path: str) -> str:
        return self._base + (_OWN_VERSION.sub("", path) if _VERSION.search(self._base) else path)

    async def close(self) -> None:
        """Close the pool. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            import httpx

            limits = httpx.Limits(
                max_connections=_CONNECTIONS,
                max_keepalive_connections=_KEPT_CONNECTIONS,
                keepalive_expiry=_IDLE_SECONDS,
            )
            self._client = httpx.AsyncClient(
                limits=limits,
                follow_redirects=False,
                trust_env=not _is_local(self._base_url),
                headers=_COMMON,
                verify=_certificates(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")),
            )
        return self._client

    def _failed(self, error: httpx.HTTPError, *, begun: bool) -> UpstreamError:
        import httpx

        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if self._key:
            what = what.replace(self._key, "[redacted]")
        hint = "check base_url, the network and proxy settings"
        unsent = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
        malformed = (httpx.UnsupportedProtocol, httpx.LocalProtocolError)
        if isinstance(error, unsent) or (not begun and isinstance(error, malformed)):
            return UpstreamError(
                f"cannot reach {self._base_url!r} ({what})", code="upstream_unreachable", hint=hint
            )
        if isinstance(error, httpx.TimeoutException):
            return UpstreamError(
                f"{self._base_url!r} sent nothing in time ({what})", code="upstream_timeout", hint=hint
            )
        return UpstreamError(f"{self._base_url!r} broke off its reply ({what})", code="upstream_cut", hint=hint)


class _Chunks:
    """The body of a response; unlike a generator's, its `aclose` works also where nothing was read yet."""

    def __init__(self, response: httpx.Response, failed: Callable[..., UpstreamError]) -> None:
        self._response = response
        self._failed = failed
        self._pieces = response.aiter_bytes()

    def __aiter__(self) -> _Chunks:
        return self

    async def __anext__(self) -> bytes:
        import httpx

        try:
            return await anext(self._pieces)
        except httpx.HTTPError as error:
            raise self._failed(error, begun=True) from None

    async def aclose(self) -> None:
        """Close the response; its connection is used again only where all of it was read."""
        await self._response.aclose()


@functools.cache
def _certificates(file: str | None, directory: str | None) -> ssl.SSLContext:
    """Load the authorities that are trusted, which takes 40 ms: once per process, not per attempt.

    The arguments are what httpx reads from the environment.
    """
    import httpx

    return httpx.create_ssl_context()


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
    return path.replace(":generateContent", ":streamGenerateContent?alt=sse") if call.stream else path, body
