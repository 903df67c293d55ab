"""A provider reached over HTTP."""

from __future__ import annotations

import asyncio
import functools
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit
from urllib.request import getproxies

import msgspec

from chargehand.core.errors import ChargehandError, UpstreamError
from chargehand.core.ports import LiveKey
from chargehand.models.contract import Dialect, ModelCall, UpstreamReply, close_chunks
from chargehand.models.http.client import DirectClient, HttpBody, HttpClient, HttpReply, Origin, ProxiedClient
from chargehand.models.http.framing import HttpError, HttpErrorCode
from chargehand.models.key_filter import FilteredChunks, KeyFilter
from chargehand.models.registries import DIALECTS

if TYPE_CHECKING:
    import ssl

# A version in the path, as in `/v1`, `/api/v4` or `/v1beta/openai`: ours is not added then.
_VERSION = re.compile(r"[^/]/v\d\w*(/|$)")
_LAST_VERSION = re.compile(r"/v\d\w*$")
_OWN_VERSION = re.compile(r"^/v1(beta)?(?=/)")
_BUSY = 429
_REJECTED = 401
_OWN_HEADERS = "x-chargehand-"
_CONNECT_SECONDS = 15.0
# Uncompressed replies: a compressed stream arrives in lumps.
_COMMON = {"user-agent": "chargehand", "accept": "*/*", "accept-encoding": "identity"}
_TYPES = frozenset(
    f"{kind}{charset}"
    for kind in ("application/json", "text/event-stream")
    for charset in ("", "; charset=utf-8", ";charset=utf-8")
)
_PORTS = {"http": 80, "https": 443}
# Other names (international ones, zones) are left to httpx.
_HOST = re.compile(r"[0-9A-Za-z._-]+|[0-9A-Fa-f:.]+")
_SENTENCES: Mapping[HttpErrorCode, str] = {
    "upstream_unreachable": "cannot reach {base} ({what})",
    "upstream_untrusted": "the certificate of {base} is not trusted: set SSL_CERT_FILE ({what})",
    "upstream_timeout": "{base} sent nothing in time ({what})",
    "upstream_cut": "{base} broke off its reply ({what})",
    "upstream_malformed": "the reply of {base} is not valid HTTP ({what})",
}


class _Keyed:
    """A key, with the headers that carry it and the filter that removes it from replies."""

    def __init__(self, key: str | None, headers: Mapping[str, str], name: str) -> None:
        self.key, self.headers = key, headers
        self.filter = KeyFilter(key, name)


class HttpUpstream:
    """A provider at `base_url`, with or without `/v1` at its end; `key` never shows in errors or in `repr`.

    If the provider's replies repeat the key, it is replaced by a mark with `key_name`. `headers` are sent with
    every call. Redirects are not followed; proxies and certificates come from the environment. `live` may replace
    the key: before a call once its time is over, and after a 401, which is then followed by one more call.

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
        key_name: str = "",
        live: LiveKey | None = None,
    ) -> None:
        base = base_url.rstrip("/")
        self._base = base
        self._root = _LAST_VERSION.sub("", base)
        self._dialect = DIALECTS[dialect]
        self._base_url = base_url
        self._headers = dict(headers or {})
        self._key_name = key_name
        self._live = live
        self._keyed = self._with_key(key)
        self._connect_seconds = connect_seconds
        self._clients: dict[str, HttpClient] = {}

    def __repr__(self) -> str:
        return f"HttpUpstream({self._base_url!r})"

    async def send(self, call: ModelCall) -> UpstreamReply:
        """Send one call; raises `UpstreamError` if no head arrives."""
        keyed = await self._current_key()
        reply = await self._send(call, keyed)
        if reply.status == _REJECTED and self._live is not None:
            fresh = await self._current_key(rejected=keyed)
            if fresh is not keyed:
                await close_chunks(reply.chunks)
                reply = await self._send(call, fresh)
        return reply

    def _with_key(self, key: str | None) -> _Keyed:
        return _Keyed(key, {**self._dialect.provider_headers(key), **self._headers}, self._key_name)

    async def _current_key(self, *, rejected: _Keyed | None = None) -> _Keyed:
        """Return the key to use, which is `rejected` again if its source has no other."""
        # After a rejection another call may have read the new key already.
        if self._live is None or (rejected is not None and self._keyed is not rejected):
            return self._keyed
        key = self._live.known() if rejected is None else None
        if key is None:
            try:
                # In a thread, because the source may be a server or a program.
                key = await asyncio.to_thread(self._live.read, rejected.key if rejected else None)
            except ChargehandError as error:
                if rejected is not None:  # the provider's own answer says more
                    return rejected
                raise UpstreamError(error.message, hint=error.hint) from error
        if key is None and rejected is None:
            message = f"{self._key_name or 'the key'} is not set any more"
            raise UpstreamError(message, hint="chargehand secret check")
        if key is not None and key != self._keyed.key:
            self._keyed = self._with_key(key)
        return self._keyed

    async def _send(self, call: ModelCall, keyed: _Keyed) -> UpstreamReply:
        # The call's dialect, not the provider's: a responses model makes embeddings in OpenAI's older form.
        path, body = DIALECTS[call.dialect].locate(call)
        headers = {**keyed.headers, **call.headers, "content-type": "application/json"}
        connect = min(self._connect_seconds, call.seconds)
        # A provider's own path is next to the dialect's, not below its version.
        path, base = (call.path, self._root) if call.path else (self._fit_path(path), self._base)
        content = msgspec.json.encode(body)
        reply = await self._request(
            "POST", base, path, headers, content, connect=connect, seconds=call.seconds, keyed=keyed
        )
        # Headers with our own prefix are ours alone, whatever a provider sends in them.
        told = {name: text for name, text in reply.headers.items() if not name.lower().startswith(_OWN_HEADERS)}
        chunks: AsyncIterator[bytes] = _Chunks(reply.body, functools.partial(self._explain_error, keyed))
        # The key is removed from the reply here, since no code behind this upstream knows the whole key.
        if keyed.filter.active:
            # A short key may be part of a media type, which says how to read the reply.
            told = {name: text if text in _TYPES else keyed.filter.scrub_text(text) for name, text in told.items()}
            content_type = {name.lower(): text for name, text in told.items()}.get("content-type", "")
            if keyed.filter.in_replies or not 200 <= reply.status < 300:
                chunks = FilteredChunks(chunks, keyed.filter, content_type)
        return UpstreamReply(status=reply.status, headers=told, chunks=chunks)

    async def probe(self, seconds: float) -> bool:
        """Return whether the provider answers at all, by requesting its list of models, which costs nothing."""
        path = self._fit_path(self._dialect.list_path)
        try:
            keyed = self._keyed
            reply = await self._request(
                "GET", self._base, path, keyed.headers, b"", connect=seconds, seconds=seconds, keyed=keyed
            )
        except UpstreamError:
            return False
        await reply.body.aclose()
        return reply.status < 500 and reply.status != _BUSY

    async def _request(
        self,
        method: str,
        base: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        connect: float,
        seconds: float,
        keyed: _Keyed,
    ) -> HttpReply:
        try:
            if base not in self._clients:
                # Our own client, or httpx if a proxy may be involved or the address is unusual.
                host = urlsplit(base).hostname or ""
                local = host in ("localhost", "::1") or host.startswith("127.")
                # httpx decides which hosts bypass a proxy.
                proxied = not local and bool({"http", "https", "all"} & getproxies().keys())
                origin = None if proxied else _find_origin(base)
                self._clients[base] = (
                    ProxiedClient(base, _trust(), trust_env=not local) if origin is None else DirectClient(origin)
                )
            return await self._clients[base].request(
                method, path, {**_COMMON, **headers}, body, connect=connect, seconds=seconds
            )
        except HttpError as error:
            raise self._explain_error(keyed, error) from None
        except (ValueError, OSError, ImportError) as error:
            # For example a key or header that is not ASCII; the message names the kind of error, never the value.
            raise UpstreamError(
                f"cannot send to {self._base_url!r}: {type(error).__name__}",
                code="upstream_unreachable",
                hint="check base_url, key, proxy and certificate settings",
            ) from None

    def _fit_path(self, path: str) -> str:
        return _OWN_VERSION.sub("", path) if _VERSION.search(self._base) else path

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        while self._clients:
            await self._clients.popitem()[1].close()

    def _explain_error(self, keyed: _Keyed, error: HttpError) -> UpstreamError:
        what = str(error)
        # A server may repeat the text it was sent, and errors end up in logs and on terminals.
        if keyed.key:
            what = keyed.filter.scrub_text(what.replace(keyed.key, "[redacted]"))
        message = _SENTENCES[error.code].format(base=repr(self._base_url), what=what)
        return UpstreamError(message, code=error.code, hint="check base_url, the network and proxy settings")


class _Chunks:
    """The body of a reply; its errors become errors of the upstream."""

    def __init__(self, body: HttpBody, explain: Callable[[HttpError], UpstreamError]) -> None:
        self._body = body
        self._explain = explain

    def __aiter__(self) -> _Chunks:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._body)
        except HttpError as error:
            raise self._explain(error) from None

    async def aclose(self) -> None:
        """Close the body; the connection is reused only if the whole body was read."""
        await self._body.aclose()


def _find_origin(base: str) -> Origin | None:
    """Return where connections to `base` go, or `None` for an address that is left to httpx."""
    parts = urlsplit(base)
    host = parts.hostname or ""
    port = parts.port
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
        certificates=_trust if parts.scheme == "https" else None,
    )


def _trust() -> ssl.SSLContext:
    return _load_certificates(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@functools.cache
def _load_certificates(file: str | None, directory: str | None) -> ssl.SSLContext:
    """Load the trusted certificate authorities, which takes 40 ms: once per process, not per attempt.

    The arguments are the variables that httpx reads from the environment.
    """
    import httpx

    context = httpx.create_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
