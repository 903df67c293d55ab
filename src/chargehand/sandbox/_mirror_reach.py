"""Where a registry may lead the mirror: its own hosts, public ones, and those that are as private as itself."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from chargehand.sandbox._egress_address import Address, Kind, inner, kind_of
from chargehand.sandbox._egress_contract import Resolve
from chargehand.sandbox._mirror_reply import MirrorRefusal
from chargehand.sandbox._mirror_settings import port_of, shown_host

_ZERO = ipaddress.ip_network("0.0.0.0/8")
_NEVER: frozenset[Kind] = frozenset({"link-local", "multicast"})
"""Reached only where the configuration itself names the host: cloud metadata is among them."""


class Reach:
    """Judges the addresses that pages and redirects of the registries at `urls` name.

    A host that the user configured is reached wherever it is. Any other must be public, or of a kind (private,
    loopback, reserved) that one of the configured hosts is of: a company's registry may keep its files on a
    neighbour, the public one never does.
    """

    def __init__(self, urls: Iterable[str], *, resolve: Resolve | None = None) -> None:
        self._own = {host: port_of(urlsplit(url)) for url in urls if (host := _host(url))}
        self._resolve = resolve or _system
        self._kinds: frozenset[Kind] | None = None

    async def address(self, url: str) -> Address | None:
        """Return the one address to connect to, `None` for a configured host.

        Raises `MirrorRefusal`: 403 where it may not be reached, 502 where there is none.
        """
        host = _host(url)
        if host in self._own:
            return None
        found = await self._lookup(host, port_of(urlsplit(url)))
        for each in found:
            kind = _kind(each)
            if kind != "public" and kind not in await self._granted():
                raise MirrorRefusal(
                    403,
                    f"{shown_host(url)!r} leads to an address that is not public ({kind})",
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

    async def _granted(self) -> frozenset[Kind]:
        if self._kinds is None:
            kinds: set[Kind] = set()
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


def _kind(address: Address) -> Kind:
    # Connecting to 0.0.0.0/8 or :: reaches this very machine.
    here = inner(address)
    zero = here.is_unspecified or (isinstance(here, ipaddress.IPv4Address) and here in _ZERO)
    return "loopback" if zero else kind_of(address)


def _host(url: str) -> str:
    return (urlsplit(url).hostname or "").rstrip(".").lower()
