"""HTTP client of the user's registries: trust, proxies, credentials, and checks of the addresses they lead to."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple
from urllib.parse import unquote, urlsplit

import httpx

from chargehand.network.addresses import host_of, is_web_url, join_web_url
from chargehand.network.allow_list import Address, AddressKind, classify_address, unwrap_ipv4
from chargehand.network.contract import FILE_MEDIA, MirrorRefusal, MirrorReply, MirrorTrace, Resolve
from chargehand.network.mirror.settings import (
    ClientAccess,
    host_for_log,
    origin_of,
    split_login,
    url_port,
)

_LOCAL_PAGE_BYTES = 64 * 1024 * 1024
_ZERO_NETWORK = ipaddress.ip_network("0.0.0.0/8")
# Reached only if the configuration itself names the host: cloud metadata is among them.
_NEVER_GRANTED: frozenset[AddressKind] = frozenset({"link-local", "multicast"})
_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_HOPS = 10
_PIECE_BYTES = 262_144
_CONNECT_SECONDS = 30.0
_USER_AGENT = "chargehand-registry-mirror"
_MAX_CLIENTS = 32
# Represents hosts without a separate client: connections to them are not kept.
_ANY_HOST = "*"


class AddressPolicy:
    """Checks the addresses that pages and redirects of the registries at `urls` name.

    A host that the user configured is always reached. Any other must be public, or of a kind (private, loopback,
    reserved) that also occurs among the configured hosts: a company's registry may keep its files on a neighbour,
    the public one never does.
    """

    def __init__(self, urls: Iterable[str], *, resolve: Resolve | None = None) -> None:
        self._configured = {_host(url): url_port(urlsplit(url)) for url in urls if is_web_url(url)}
        self._resolve = resolve or _resolve_here
        self._granted: frozenset[AddressKind] | None = None

    async def address(self, url: str) -> Address | None:
        """Return the address to connect to, `None` for a configured host.

        Raises `MirrorRefusal`: 403 if it may not be reached, 502 if the host has no address.
        """
        host = _host(url)
        if host in self._configured:
            return None
        addresses = await self._look_up(host, url_port(urlsplit(url)))
        for each in addresses:
            kind = _classify(each)
            if kind == "public":
                continue
            if self._granted is None:
                kinds: set[AddressKind] = set()
                for configured, port in self._configured.items():
                    try:
                        kinds.update(map(_classify, await self._look_up(configured, port)))
                    except MirrorRefusal:
                        continue
                # Resolved once, so that a name which changes later grants nothing more.
                self._granted = frozenset(kinds) - _NEVER_GRANTED
            if kind not in self._granted:
                raise MirrorRefusal(
                    403,
                    f"{host_for_log(url)!r} leads to an address that is not public ({kind})",
                    hint="only a registry that your own configuration names may be there",
                )
        return addresses[0]

    def names_address(self, url: str) -> bool:
        """Return whether the host is an address: checked even if a proxy looks names up."""
        try:
            ipaddress.ip_address(_host(url))
        except ValueError:
            return False
        return True

    async def _look_up(self, host: str, port: int) -> Sequence[Address]:
        try:
            addresses = await self._resolve(host, port)
        except (OSError, UnicodeError):
            addresses = ()
        if not addresses:
            raise MirrorRefusal(502, f"{host!r} has no address")
        return addresses


async def _resolve_here(host: str, port: int) -> Sequence[Address]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [ipaddress.ip_address(entry[4][0]) for entry in found]


def _classify(address: Address) -> AddressKind:
    # Connecting to 0.0.0.0/8 or :: reaches this machine.
    inner = unwrap_ipv4(address)
    zero = inner.is_unspecified or (isinstance(inner, ipaddress.IPv4Address) and inner in _ZERO_NETWORK)
    return "loopback" if zero else classify_address(address)


def _host(url: str) -> str:
    return host_of(url).rstrip(".")


class _ClientKey(NamedTuple):
    """The properties that distinguish clients; `host` is empty for the user's configured hosts."""

    verify: bool
    proxy: str | None
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamPage:
    """A complete answer of an upstream: its URL after redirects, its media type and its body."""

    url: str = field(repr=False)
    media: str
    body: bytes = field(repr=False)


class RegistryClient:
    """One package client's way out. Every failure is a `MirrorRefusal` whose message names only the host."""

    def __init__(self, access: ClientAccess, *, policy: AddressPolicy, page_bytes: int) -> None:
        self._access = access
        self._policy = policy
        self._page_bytes = page_bytes
        self._clients: dict[_ClientKey, httpx.AsyncClient] = {}
        self._contexts: dict[bool, ssl.SSLContext] = {}

    async def close(self) -> None:
        """Close every connection."""
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()

    async def page(
        self, url: str, *, accept: str, trace: MirrorTrace, absent: tuple[int, ...] = (404, 410), login: str = ""
    ) -> UpstreamPage | None:
        """Return the page at `url`, None if the upstream answers with a status in `absent`.

        `login` is an Authorization header for the host of `url`, and no other.
        """
        headers = {"accept": accept, "accept-encoding": "gzip, deflate"}
        response, final_url = await self._open(url, headers=headers, trace=trace, login=login)
        body = bytearray()
        try:
            if response.status_code in absent:
                trace.problems.append(f"{host_for_log(final_url)} answered {response.status_code}")
                return None
            _check_status(response, final_url)
            # Counted after decompression: a small answer may hold a very large page.
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > self._page_bytes:
                    limit = f"is larger than {self._page_bytes} B"
                    raise MirrorRefusal(502, f"the answer of {host_for_log(final_url)!r} {limit}")
        except httpx.HTTPError as error:
            raise _failure(error, final_url) from None
        finally:
            await response.aclose()
        return UpstreamPage(url=final_url, media=response.headers.get("content-type", ""), body=bytes(body))

    async def file(self, url: str, *, trace: MirrorTrace, login: str = "") -> MirrorReply:
        """Return the file at `url` as a stream; the caller closes the reply. `login` as for a page."""
        headers = {"accept": "*/*", "accept-encoding": "identity"}
        response, final_url = await self._open(url, headers=headers, trace=trace, login=login)
        try:
            if response.status_code in (404, 410):
                raise MirrorRefusal(404, f"{host_for_log(final_url)!r} does not have this file")
            _check_status(response, final_url)
        except BaseException:
            await response.aclose()
            raise

        async def pieces() -> AsyncGenerator[bytes, None]:
            try:
                async for piece in response.aiter_raw(_PIECE_BYTES):
                    yield piece
            except httpx.HTTPError as error:
                raise _failure(error, final_url) from None

        # Some upstreams compress in spite of `identity`; the bytes are forwarded unchanged, and so is their
        # coding.
        encoding = response.headers.get("content-encoding", "").strip().lower()
        length = response.headers.get("content-length", "")
        return MirrorReply(
            media=FILE_MEDIA,
            body=pieces(),
            length=int(length) if length.isdecimal() and length.isascii() else None,
            encoding=encoding if encoding in ("gzip", "deflate", "br", "zstd") else "",
            close=response.aclose,
        )

    async def _open(
        self, url: str, *, headers: dict[str, str], trace: MirrorTrace, login: str
    ) -> tuple[httpx.Response, str]:
        if not is_web_url(url):
            raise MirrorRefusal(
                502, f"{host_for_log(url)!r} is not a web address", hint="correct it where it is set"
            )
        # httpx must not follow redirects: each hop is checked, and gets only the user's login for that hop.
        secure = urlsplit(url).scheme == "https"
        first = origin_of(url)
        for _ in range(_MAX_HOPS):
            bare, own_login = split_login(url)
            trace.add_host(host_for_log(bare))
            downgraded = secure and urlsplit(bare).scheme != "https"
            header = own_login or (login if origin_of(bare) == first else "") or self._access.logins.header(bare)
            authorization = {"authorization": header} if header and not downgraded else {}
            response = await self._send(bare, headers={**headers, **authorization})
            location = response.headers.get("location")
            if response.status_code not in _REDIRECTS or not location:
                return response, bare
            await response.aclose()
            url = join_web_url(bare, location)
            if not url:
                raise MirrorRefusal(502, f"{host_for_log(bare)!r} redirects to an invalid web address")
        raise MirrorRefusal(502, f"{host_for_log(url)!r} redirects too often")

    async def _send(self, url: str, *, headers: dict[str, str]) -> httpx.Response:
        try:
            address = None
            # The user's proxy looks names up, and may reach hosts that this machine cannot.
            if not self._access.proxies.proxy(url) or self._policy.names_address(url):
                address = await self._policy.address(url)
            client = self._client(url, pinned=address is not None)
            request = client.build_request("GET", url, headers=headers)
            if address is not None:
                # The connection goes to the checked address; certificate and Host stay those of the name.
                request.extensions["sni_hostname"] = request.url.host
                request.url = request.url.copy_with(host=str(address))
            return await client.send(request, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, ImportError) as error:
            raise _failure(error, url) from None

    def _client(self, url: str, *, pinned: bool) -> httpx.AsyncClient:
        # A kept connection is reused by its address: one address may serve hosts of several names.
        host = urlsplit(url).netloc if pinned else ""
        known = any(key.host == host for key in self._clients)
        if not known and len(self._clients) >= _MAX_CLIENTS:
            host = _ANY_HOST
        key = _ClientKey(self._access.verifies(url), self._access.proxies.proxy(url), host)
        if key not in self._clients:
            if key.verify not in self._contexts:
                self._contexts[key.verify] = ssl_context(self._access, verify=key.verify)
            limits = httpx.Limits(max_connections=100, max_keepalive_connections=0 if host == _ANY_HOST else 20)
            # httpx must not read this process's environment: proxies and logins are those of the package client.
            # It retries only connecting, so no request is sent twice.
            self._clients[key] = httpx.AsyncClient(
                transport=httpx.AsyncHTTPTransport(
                    verify=self._contexts[key.verify], proxy=key.proxy, retries=2, trust_env=False, limits=limits
                ),
                headers={"user-agent": _USER_AGENT},
                timeout=httpx.Timeout(self._access.timeout, connect=_CONNECT_SECONDS),
                trust_env=False,
            )
        return self._clients[key]


def ssl_context(access: ClientAccess, *, verify: bool) -> ssl.SSLContext:
    """Return the TLS settings of `access`; raises OSError (`ssl.SSLError` is one) for an unreadable CA file."""
    replaced = bool(access.roots or access.root_text)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if replaced else httpx.create_ssl_context(trust_env=False)
    if not replaced:
        context.load_default_certs()
    for path in (*access.roots, *access.extra_roots):
        if path.is_dir():
            context.load_verify_locations(capath=path)
        # A file that replaces all trust must be readable, so a missing file fails here; a missing addition is
        # skipped.
        elif path in access.roots or path.is_file():
            context.load_verify_locations(cafile=path)
    if access.root_text:
        context.load_verify_locations(cadata=access.root_text)
    if access.client_certificate:
        context.load_cert_chain(access.client_certificate)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _check_status(response: httpx.Response, url: str) -> None:
    if response.status_code != 200:
        raise MirrorRefusal(
            502,
            f"the registry at {host_for_log(url)!r} answered {response.status_code}",
            hint="check the login for it in your own configuration of the package client"
            if response.status_code in (401, 403)
            else "",
        )


# The first match is used: narrow kinds come before their base classes.
_REASONS = (
    (httpx.ProxyError, "the proxy refused"),
    (httpx.TimeoutException, "it did not answer in time"),
    (httpx.ConnectError, "no connection"),
    (httpx.HTTPError, "the connection broke"),
    (OSError, "a certificate file of the user's configuration cannot be read"),
    (ImportError, "this kind of proxy is not supported"),
    (Exception, "its address is not valid"),
)


def _failure(error: Exception, url: str) -> MirrorRefusal:
    """Return a refusal with our text: a library's message may contain paths, URLs or proxy logins."""
    text = str(error).lower()
    if "certificate" in text and ("verify" in text or "certificate_" in text):
        reason = "its certificate is not trusted"
    else:
        reason = next(words for kind, words in _REASONS if isinstance(error, kind))
    return MirrorRefusal(502, f"the registry at {host_for_log(url)!r} could not be reached: {reason}")


async def local_file(url: str) -> MirrorReply:
    """Return the regular file at a file: URL as a stream; 404 if missing."""

    def open_file() -> tuple[BinaryIO, int]:
        path = local_path(url)
        # Not a fifo or device: opening one would hang, and it cannot be a package.
        if not path.is_file():
            raise FileNotFoundError
        stream = path.open("rb")
        return stream, path.stat().st_size

    try:
        stream, size = await asyncio.to_thread(open_file)
    except OSError:
        raise MirrorRefusal(404, "the local index does not have this file") from None

    async def pieces() -> AsyncGenerator[bytes, None]:
        while piece := await asyncio.to_thread(stream.read, _PIECE_BYTES):
            yield piece

    async def close() -> None:
        stream.close()

    return MirrorReply(media=FILE_MEDIA, body=pieces(), length=size, close=close)


def read_local_page(url: str) -> bytes | None:
    """Return the page at a file: URL, `None` if it is missing, unreadable or too large."""
    path = local_path(url)
    try:
        if path.is_file() and path.stat().st_size <= _LOCAL_PAGE_BYTES:
            return path.read_bytes()
    except OSError:
        pass
    return None


def local_path(url: str) -> Path:
    """Return the path in a file: URL."""
    return Path(unquote(urlsplit(url).path))
