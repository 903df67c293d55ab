"""HTTP client of the user's registries: trust, proxies, credentials, and the addresses that they may lead to."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple
from urllib.parse import unquote, urljoin, urlsplit

import httpx

from chargehand.network.allow_list import Address, AddressKind, classify_address, unwrap_ipv4
from chargehand.network.contract import FILE_MEDIA, MirrorRefusal, MirrorReply, MirrorTrace, Resolve
from chargehand.network.mirror.settings import ClientAccess, host_for_log, origin_of, split_login, url_port

_ZERO = ipaddress.ip_network("0.0.0.0/8")
_NEVER: frozenset[AddressKind] = frozenset({"link-local", "multicast"})
"""Reached only where the configuration itself names the host: cloud metadata is among them."""


class AddressPolicy:
    """Judges the addresses that pages and redirects of the registries at `urls` name.

    A host that the user configured is reached wherever it is. Any other must be public, or of a kind (private,
    loopback, reserved) that one of the configured hosts is of: a company's registry may keep its files on a
    neighbour, the public one never does.
    """

    def __init__(self, urls: Iterable[str], *, resolve: Resolve | None = None) -> None:
        self._own = {host: url_port(urlsplit(url)) for url in urls if (host := _host(url))}
        self._resolve = resolve or _system
        self._kinds: frozenset[AddressKind] | None = None

    async def address(self, url: str) -> Address | None:
        """Return the one address to connect to, `None` for a configured host.

        Raises `MirrorRefusal`: 403 where it may not be reached, 502 where there is none.
        """
        host = _host(url)
        if host in self._own:
            return None
        found = await self._lookup(host, url_port(urlsplit(url)))
        for each in found:
            kind = _kind(each)
            if kind != "public" and kind not in await self._granted():
                raise MirrorRefusal(
                    403,
                    f"{host_for_log(url)!r} leads to an address that is not public ({kind})",
                    hint="only a registry that your own configuration names may be there",
                )
        return found[0]

    def literal(self, url: str) -> bool:
        """Say whether the host is an address: judged also where a proxy looks names up."""
        try:
            ipaddress.ip_address(_host(url))
        except ValueError:
            return False
        return True

    async def _granted(self) -> frozenset[AddressKind]:
        if self._kinds is None:
            kinds: set[AddressKind] = set()
            for host, port in self._own.items():
                try:
                    kinds.update(map(_kind, await self._lookup(host, port)))
                except MirrorRefusal:
                    continue
            self._kinds = frozenset(kinds) - _NEVER
        return self._kinds

    async def _lookup(self, host: str, port: int) -> Sequence[Address]:
        try:
            found = await self._resolve(host, port)
        except (OSError, UnicodeError):
            found = ()
        if not found:
            raise MirrorRefusal(502, f"{host!r} has no address")
        return found


async def _system(host: str, port: int) -> Sequence[Address]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [ipaddress.ip_address(entry[4][0]) for entry in found]


def _kind(address: Address) -> AddressKind:
    # Connecting to 0.0.0.0/8 or :: reaches this very machine.
    here = unwrap_ipv4(address)
    zero = here.is_unspecified or (isinstance(here, ipaddress.IPv4Address) and here in _ZERO)
    return "loopback" if zero else classify_address(address)


def _host(url: str) -> str:
    return (urlsplit(url).hostname or "").rstrip(".").lower()


_HOPS = 10
_PIECE = 262_144
_CONNECT_SECONDS = 30.0
_AGENT = "chargehand-registry-mirror"
_CLIENTS = 32
_ANY = "*"
"""Stands for the hosts that have no client of their own: no connection to them is kept."""


class _Key(NamedTuple):
    """What tells clients apart; `host` is empty for the user's own hosts."""

    verify: bool
    proxy: str | None
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamPage:
    """A whole answer of an upstream: where it came from after redirects, its media type and its body."""

    url: str = field(repr=False)
    media: str
    body: bytes = field(repr=False)


class RegistryClient:
    """One package client's way out. Every failure is a `MirrorRefusal` whose message names the host alone."""

    def __init__(self, access: ClientAccess, *, reach: AddressPolicy, page_bytes: int) -> None:
        self._access = access
        self._reach = reach
        self._page_bytes = page_bytes
        self._clients: dict[_Key, httpx.AsyncClient] = {}
        self._contexts: dict[bool, ssl.SSLContext] = {}

    async def close(self) -> None:
        """Close every connection."""
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()

    async def page(
        self, url: str, *, accept: str, trace: MirrorTrace, absent: tuple[int, ...] = (404, 410), login: str = ""
    ) -> UpstreamPage | None:
        """Return the page at `url`, None where the upstream answers with a status of `absent`.

        `login` is an Authorization header for the host of `url`, and no other.
        """
        headers = {"accept": accept, "accept-encoding": "gzip, deflate"}
        response, final = await self._open(url, headers=headers, trace=trace, login=login)
        try:
            if response.status_code in absent:
                trace.problems.append(f"{host_for_log(final)} answered {response.status_code}")
                return None
            _check_status(response, final)
            body = await self._whole(response, final)
        finally:
            await response.aclose()
        return UpstreamPage(url=final, media=response.headers.get("content-type", ""), body=body)

    async def _whole(self, response: httpx.Response, url: str) -> bytes:
        body = bytearray()
        try:
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > self._page_bytes:
                    raise MirrorRefusal(
                        502, f"the answer of {host_for_log(url)!r} is larger than {self._page_bytes} B"
                    )
        except httpx.HTTPError as error:
            raise _failure(error, url) from None
        return bytes(body)

    async def file(self, url: str, *, trace: MirrorTrace, login: str = "") -> MirrorReply:
        """Return the file at `url` as a stream; the caller closes the reply. `login` as for a page."""
        headers = {"accept": "*/*", "accept-encoding": "identity"}
        response, final = await self._open(url, headers=headers, trace=trace, login=login)
        try:
            if response.status_code in (404, 410):
                raise MirrorRefusal(404, f"{host_for_log(final)!r} does not have this file")
            _check_status(response, final)
        except BaseException:
            await response.aclose()
            raise
        length = response.headers.get("content-length", "")
        return MirrorReply(
            media=FILE_MEDIA,
            body=_pieces(response, final),
            length=int(length) if length.isdecimal() and length.isascii() else None,
            encoding=_encoding(response),
            close=response.aclose,
        )

    async def _open(
        self, url: str, *, headers: dict[str, str], trace: MirrorTrace, login: str
    ) -> tuple[httpx.Response, str]:
        # Redirects are followed by hand: each hop is judged, and gets the login the user has for it and no other.
        secure, first = urlsplit(url).scheme == "https", origin_of(url)
        for _ in range(_HOPS):
            bare, own = split_login(url)
            trace.add_host(host_for_log(bare))
            plain_now = secure and urlsplit(bare).scheme != "https"
            given = own or (login if origin_of(bare) == first else "") or self._access.logins.header(bare)
            sent = {"authorization": given} if given and not plain_now else {}
            response = await self._send(bare, headers={**headers, **sent})
            location = response.headers.get("location")
            if response.status_code not in (301, 302, 303, 307, 308) or not location:
                return response, bare
            await response.aclose()
            url = _next_url(bare, location)
        raise MirrorRefusal(502, f"{host_for_log(url)!r} redirects too often")

    async def _send(self, url: str, *, headers: dict[str, str]) -> httpx.Response:
        try:
            address = await self._judged(url)
            client = self._client(url, pinned=address is not None)
            request = client.build_request("GET", url, headers=headers)
            if address is not None:
                request.extensions["sni_hostname"] = request.url.host
                request.url = request.url.copy_with(host=str(address))
            return await client.send(request, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, ImportError) as error:
            raise _failure(error, url) from None

    async def _judged(self, url: str) -> Address | None:
        """Return the very address to connect to, `None` where it is the user's own host or proxy that decides."""
        if self._access.proxies.proxy(url) and not self._reach.literal(url):
            return None  # the user's proxy looks names up, and may reach what this machine does not
        return await self._reach.address(url)

    def _client(self, url: str, *, pinned: bool) -> httpx.AsyncClient:
        # A kept connection is found again by its address: behind one address may be hosts of several names.
        host = urlsplit(url).netloc if pinned else ""
        known = any(key.host == host for key in self._clients)
        alone = host if known or len(self._clients) < _CLIENTS else _ANY
        key = _Key(self._access.verifies(url), self._access.proxies.proxy(url), alone)
        if key not in self._clients:
            limits = httpx.Limits(max_connections=100, max_keepalive_connections=0 if alone == _ANY else 20)
            context = self._context(verify=key.verify)
            self._clients[key] = httpx.AsyncClient(
                transport=httpx.AsyncHTTPTransport(
                    verify=context, proxy=key.proxy, retries=2, trust_env=False, limits=limits
                ),
                headers={"user-agent": _AGENT},
                timeout=httpx.Timeout(self._access.timeout, connect=_CONNECT_SECONDS),
                trust_env=False,
            )
        return self._clients[key]

    def _context(self, *, verify: bool) -> ssl.SSLContext:
        if verify not in self._contexts:
            self._contexts[verify] = ssl_context(self._access, verify=verify)
        return self._contexts[verify]


def ssl_context(access: ClientAccess, *, verify: bool) -> ssl.SSLContext:
    """Return the TLS settings of `access`; raises OSError (`ssl.SSLError` is one) for an unreadable CA file."""
    replaced = bool(access.roots or access.root_text)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if replaced else httpx.create_ssl_context(trust_env=False)
    if not replaced:
        context.load_default_certs()
    for path in (*access.roots, *access.extra_roots):
        if path.is_dir():
            context.load_verify_locations(capath=path)
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


def _next_url(url: str, location: str) -> str:
    try:
        following = urljoin(url, location)
        usable = urlsplit(following).scheme in ("http", "https") and bool(urlsplit(following).hostname)
    except ValueError:
        usable = False
    if not usable:
        raise MirrorRefusal(502, f"{host_for_log(url)!r} redirects to what is not a web address")
    return following


def _check_status(response: httpx.Response, url: str) -> None:
    if response.status_code != 200:
        raise MirrorRefusal(
            502,
            f"the registry at {host_for_log(url)!r} answered {response.status_code}",
            hint="check the login for it in your own configuration of the package client"
            if response.status_code in (401, 403)
            else "",
        )


def _failure(error: Exception, url: str) -> MirrorRefusal:
    """Say what went wrong in our own words: a library's message may hold paths, URLs or proxy logins."""
    return MirrorRefusal(502, f"the registry at {host_for_log(url)!r} could not be reached: {_reason(error)}")


def _reason(error: Exception) -> str:
    text = str(error).lower()
    if "certificate" in text and ("verify" in text or "certificate_" in text):
        return "its certificate is not trusted"
    if isinstance(error, httpx.ProxyError):
        return "the proxy refused"
    if isinstance(error, httpx.TimeoutException):
        return "it did not answer in time"
    if isinstance(error, httpx.ConnectError):
        return "no connection"
    if isinstance(error, httpx.HTTPError):
        return "the connection broke"
    if isinstance(error, OSError):
        return "a certificate file of the user's configuration cannot be read"
    if isinstance(error, ImportError):
        return "this kind of proxy is not supported"
    return "its address is not valid"


def _encoding(response: httpx.Response) -> str:
    value = response.headers.get("content-encoding", "").strip().lower()
    return value if value in ("gzip", "deflate", "br", "zstd") else ""


async def _pieces(response: httpx.Response, url: str) -> AsyncGenerator[bytes, None]:
    try:
        async for piece in response.aiter_raw(_PIECE):
            yield piece
    except httpx.HTTPError as error:
        raise _failure(error, url) from None


async def disk_file(url: str) -> MirrorReply:
    """Return the regular file at a file: URL as a stream; 404 where there is none."""

    def opened() -> tuple[BinaryIO, int]:
        path = local_path(url)
        # Not a fifo or device: opening one would hang, and none is a package.
        if not path.is_file():
            raise FileNotFoundError
        stream = path.open("rb")
        return stream, path.stat().st_size

    try:
        stream, size = await asyncio.to_thread(opened)
    except OSError:
        raise MirrorRefusal(404, "the local index does not have this file") from None

    async def close() -> None:
        stream.close()

    return MirrorReply(media=FILE_MEDIA, body=_disk_pieces(stream), length=size, close=close)


async def _disk_pieces(stream: BinaryIO) -> AsyncGenerator[bytes, None]:
    while piece := await asyncio.to_thread(stream.read, _PIECE):
        yield piece


def local_path(url: str) -> Path:
    """Return the path that a file: URL names."""
    return Path(unquote(urlsplit(url).path))
