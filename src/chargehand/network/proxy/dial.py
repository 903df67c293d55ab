"""Resolves a host, checks its addresses and connects to a checked one."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from msgspec import Struct

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
_RESOLVER_THREADS = 4
_ADDRESS_SECONDS = 5.0


class SystemResolver:
    """Asks the host's resolver in separate threads: slow names must not block the worker."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_RESOLVER_THREADS, thread_name_prefix="egress-resolver")

    async def __call__(self, host: str, port: int) -> Sequence[Address]:
        """Return the addresses of a name, the best first; raises `OSError`."""
        loop = asyncio.get_running_loop()

        def look_up() -> Sequence[Address]:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
            return [ipaddress.ip_address(entry[4][0]) for entry in found]

        return await loop.run_in_executor(self._threads, look_up)

    def close(self) -> None:
        """Start no further look-up; running ones end by themselves, since `getaddrinfo` cannot be stopped."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class Destination(Struct, frozen=True, kw_only=True):
    """A permitted destination of a request: host, port and the checked addresses."""

    host: str
    port: int
    addresses: tuple[Address, ...]


class UpstreamConnection(Struct, frozen=True, kw_only=True):
    """A connection to a destination, at one of its checked addresses."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    address: Address

    @classmethod
    async def open(cls, address: Address, port: int, *, patience: float | None) -> UpstreamConnection:
        """Connect within `patience` seconds (`None`: no separate limit); raises `OSError`."""
        # By the address itself: `open_connection(host=...)` would resolve a name again, after the check.
        family = socket.AF_INET if isinstance(address, ipaddress.IPv4Address) else socket.AF_INET6
        connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            # Pieces of a tunnel are forwarded as they come, and must not wait for one another.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(patience):
                await asyncio.get_running_loop().sock_connect(connection, (str(address), port))
            reader, writer = await asyncio.open_connection(sock=connection, limit=_READ_BYTES)
        except BaseException:
            connection.close()
            raise
        return cls(reader=reader, writer=writer, address=address)


class Dialer:
    """Resolves, checks, connects; nothing is resolved twice, so a name that changes (rebinding) gains nothing."""

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

    def find_rule(self, host: str, port: int) -> HostRule:
        """Return the rule that allows a host; raises `EgressRefusal`."""
        rule = self._allowed.find(host, port)
        if rule is None:
            raise EgressRefusal(
                403,
                f"{_authority(host, port)} is not allowed",
                hint="a person can allow it in [sandbox] network of the configuration",
            )
        return rule

    async def resolve(self, rule: HostRule, host: str, port: int) -> Destination:
        """Return the host's addresses; raises `EgressRefusal` if any of them may not be reached.

        Call it only with a matching rule: a look-up is itself a message to the name's DNS server.
        """
        address = parse_address(host)
        found: Sequence[Address] = [address] if address is not None else ()
        if address is None:
            try:
                async with asyncio.timeout(self._limits.connect_seconds):
                    found = await self._resolve(host, port)
            except (OSError, UnicodeError):  # TimeoutError is an OSError
                pass
            if not found:
                raise EgressRefusal(502, f"{host} has no address", hint="the host's own resolver was asked")
        # One bad address refuses them all: rebinding starts with a name that mixes public and private addresses.
        for each in found:
            kind = classify_address(each)
            if kind in ("public", "private") and self._own(each):
                kind = "this machine"
            named = rule.address == each and not (each.is_unspecified or each.is_multicast)
            if kind == "public" or named or (rule.private and kind in GRANTED_BY_NAME):
                continue
            grant = f"{PRIVATE_PREFIX}{_authority(host, port)}" if kind in GRANTED_BY_NAME else "the very address"
            raise EgressRefusal(
                403,
                f"{_authority(host, port)} leads to {each} ({kind})",
                hint=f"only the user's own configuration can allow it: {grant} in [sandbox] network",
            )
        return Destination(host=host, port=port, addresses=tuple(dict.fromkeys(found)))

    async def connect(self, destination: Destination) -> UpstreamConnection:
        """Connect to the first of the addresses that answers; raises `EgressRefusal`."""
        problem = ""
        addresses = destination.addresses
        port = destination.port
        try:
            async with asyncio.timeout(self._limits.connect_seconds):
                for address in addresses:
                    # One address that drops packets must not take the time of the next.
                    patience = None if address == addresses[-1] else _ADDRESS_SECONDS
                    try:
                        return await UpstreamConnection.open(address, port, patience=patience)
                    except OSError as error:  # TimeoutError is one
                        problem = error.strerror or "it does not answer"
        except TimeoutError:
            problem = "it does not answer"
        raise EgressRefusal(502, f"cannot connect to {_authority(destination.host, port)}: {problem}")


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
