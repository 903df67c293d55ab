"""Resolves a host, judges its addresses and connects to the one that was judged."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from chargehand.network.allow_list import (
    GRANTED_BY_NAME,
    PRIVATE_PREFIX,
    Address,
    AllowList,
    HostRule,
    classify_address,
    is_local_address,
    parse_address,
)
from chargehand.network.contract import EgressLimits, EgressRefusal, Resolve

_READ_BYTES = 65_536
_RESOLVING = 4
_ONE_SECONDS = 5.0
_WAY_OUT = "a person can allow it in [sandbox] network of the configuration"


class SystemResolver:
    """Asks the host's own resolver, in threads of its own: slow names must not hold up the worker."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_RESOLVING, thread_name_prefix="egress-resolver")

    async def __call__(self, host: str, port: int) -> Sequence[Address]:
        """Return the addresses of a name, the best first; raises `OSError`."""
        loop = asyncio.get_running_loop()

        def ask() -> Sequence[Address]:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
            return [ipaddress.ip_address(entry[4][0]) for entry in found]

        return await loop.run_in_executor(self._threads, ask)

    def close(self) -> None:
        """Let no thread begin anything more."""
        self._threads.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where a request may go: the port and the addresses that were judged."""

    port: int
    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConnection:
    """A connection to a host, at the address that was judged."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    address: Address


class Dialer:
    """Judges and connects; nothing is resolved twice, so an answer that changes is never used."""

    def __init__(
        self,
        allowed: AllowList,
        *,
        resolve: Resolve,
        limits: EgressLimits,
        own: Callable[[Address], bool] = is_local_address,
    ) -> None:
        self._allowed = allowed
        self._resolve = resolve
        self._limits = limits
        self._own = own

    def rule(self, host: str, port: int) -> HostRule:
        """Return the rule that lets a host through; raises `EgressRefusal`."""
        rule = self._allowed.find(host, port)
        if rule is None:
            raise EgressRefusal(403, f"{_place(host, port)} is not allowed", hint=_WAY_OUT)
        return rule

    async def way(self, rule: HostRule, host: str, port: int) -> Destination:
        """Return where the host lies; raises `EgressRefusal` where any of its addresses may not be reached.

        Names are looked up only after a rule let them through: what is not allowed leaves no trace in a DNS.
        """
        address = parse_address(host)
        found = [address] if address is not None else await self._lookup(host, port)
        for each in found:
            self._judge(rule, host, port, each)
        return Destination(port=port, addresses=tuple(dict.fromkeys(found)))

    async def open(self, way: Destination, host: str) -> HostConnection:
        """Connect to the first of the addresses that answers; raises `EgressRefusal`."""
        problem = ""
        try:
            async with asyncio.timeout(self._limits.connect_seconds):
                for address in way.addresses:
                    try:
                        return await self._connect(address, way.port, last=address == way.addresses[-1])
                    except OSError as error:  # TimeoutError is one
                        problem = error.strerror or "it does not answer"
        except TimeoutError:
            problem = "it does not answer"
        raise EgressRefusal(502, f"cannot connect to {_place(host, way.port)}: {problem}")

    async def _lookup(self, host: str, port: int) -> Sequence[Address]:
        try:
            async with asyncio.timeout(self._limits.connect_seconds):
                found = await self._resolve(host, port)
        except (OSError, UnicodeError):
            found = ()
        if not found:
            raise EgressRefusal(502, f"{host} has no address", hint="the host's own resolver was asked")
        return found

    def _judge(self, rule: HostRule, host: str, port: int, address: Address) -> None:
        kind = classify_address(address)
        if kind in ("public", "private") and self._own(address):
            kind = "this machine"
        very = rule.address == address and not (address.is_unspecified or address.is_multicast)
        if kind == "public" or very or (rule.private and kind in GRANTED_BY_NAME):
            return
        shown = f"[{host}]" if ":" in host else host
        grant = f"{PRIVATE_PREFIX}{shown}:{port}" if kind in GRANTED_BY_NAME else "the very address"
        raise EgressRefusal(
            403,
            f"{_place(host, port)} leads to {address} ({kind})",
            hint=f"only the user's own configuration can allow it: {grant} in [sandbox] network",
        )

    async def _connect(self, address: Address, port: int, *, last: bool) -> HostConnection:
        family = socket.AF_INET if isinstance(address, ipaddress.IPv4Address) else socket.AF_INET6
        near = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # One address that drops packets must not take the time of the next.
            async with asyncio.timeout(None if last else _ONE_SECONDS):
                await asyncio.get_running_loop().sock_connect(near, (str(address), port))
            reader, writer = await asyncio.open_connection(sock=near, limit=_READ_BYTES)
        except BaseException:
            near.close()
            raise
        return HostConnection(reader=reader, writer=writer, address=address)


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
