"""What an address is: public, or one of those that a sandbox reaches only where the user said so."""

from __future__ import annotations

import ipaddress
import socket
from typing import Literal

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Kind = Literal["public", "private", "loopback", "this machine", "link-local", "multicast", "reserved"]
BY_NAME: frozenset[Kind] = frozenset({"private", "loopback", "this machine"})
"""Kinds that a private grant by name covers; `link-local` and `reserved` need the very address."""

_SHARED = ipaddress.ip_network("100.64.0.0/10")
_RESERVED = (
    # Documentation, benchmarks, protocol assignments, 6to4 relays: RFC 6890 and the IANA special registries.
    *map(ipaddress.ip_network, ("0.0.0.0/8", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15")),
    *map(ipaddress.ip_network, ("198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4")),
    # Tunnels and translations into networks that nobody here can judge: Teredo, 6to4, local NAT64, v4-compatible.
    *map(ipaddress.ip_network, ("2001::/23", "2002::/16", "64:ff9b:1::/48", "::/96", "2001:db8::/32")),
)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def inner(address: Address) -> Address:
    """Return the IPv4 address within an IPv4-mapped or NAT64 (64:ff9b::/96, RFC 6052) one, else the same."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def kind_of(address: Address) -> Kind:
    """Return what an address is by itself; what is not known to be public is not."""
    address = inner(address)
    if address.is_loopback:
        return "loopback"
    if address.is_link_local:
        return "link-local"
    if address.is_multicast:
        return "multicast"
    if address.is_unspecified or any(address in network for network in _RESERVED):
        return "reserved"
    if isinstance(address, ipaddress.IPv4Address) and address in _SHARED:
        return "private"
    return _by_registry(address)


def _by_registry(address: Address) -> Kind:
    if address.is_reserved:
        return "reserved"
    if isinstance(address, ipaddress.IPv6Address) and address.is_site_local:
        return "private"
    return "public" if address.is_global else "private"


def is_own(address: Address) -> bool:
    """Tell whether an address is this machine's: the kernel would speak to it from that very address.

    Asked without a packet: connecting a datagram socket only looks the route up.
    """
    family = socket.AF_INET if isinstance(address, ipaddress.IPv4Address) else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect((str(address), 9))
        except OSError:
            return False
        return ipaddress.ip_address(asked.getsockname()[0]) == address
