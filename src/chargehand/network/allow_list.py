"""Allow-list rules of `[sandbox] network`, and the classification of IP addresses."""

from __future__ import annotations

import ipaddress
import itertools
import socket
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.errors import ConfigError
from chargehand.core.text import late_pattern

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
AddressKind = Literal["public", "private", "loopback", "this machine", "link-local", "multicast", "reserved"]
# Kinds that a private grant by name covers; `link-local` and `reserved` need the exact address.
GRANTED_BY_NAME: frozenset[AddressKind] = frozenset({"private", "loopback", "this machine"})
DEFAULT_PORTS = frozenset({80, 443})
PRIVATE_PREFIX = "private:"

_SHARED = ipaddress.ip_network("100.64.0.0/10")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_RESERVED = (
    # Documentation, benchmarks, protocol assignments, 6to4 relays: RFC 6890 and the IANA special registries.
    *map(ipaddress.ip_network, ("0.0.0.0/8", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15")),
    *map(ipaddress.ip_network, ("198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4")),
    # Tunnels and translations into networks that cannot be checked here: Teredo, 6to4, local NAT64, v4-compatible.
    *map(ipaddress.ip_network, ("2001::/23", "2002::/16", "64:ff9b:1::/48", "::/96", "2001:db8::/32")),
)
_MAX_NAME = 253
_LABEL = late_pattern(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = late_pattern(r"[0-9]+|0x[0-9a-f]*")
# No leading zero: some parsers would read it as octal.
_PORT = late_pattern(r"[1-9][0-9]{0,4}")
# IDNA 2003 and IDNA 2008 map these four differently: a rule must mean the same to every reader.
_AMBIGUOUS = frozenset("ßς\u200c\u200d")
_HINT = "write 'example.org', 'example.org:8443', '*.example.org', 'example.org:*' or '[2001:db8::1]:443'"


class HostRule(Struct, frozen=True, kw_only=True):
    """One rule: a host (A-labels, lower case) or an address, or its subdomains if `below`, and ports.

    `ports` is `None` for all. `private` permits an address that is not public.
    """

    host: str
    below: bool = False
    ports: frozenset[int] | None = DEFAULT_PORTS
    private: bool = False

    @property
    def address(self) -> Address | None:
        """The address that the rule names, `None` if it names a host."""
        return parse_address(self.host)

    def matches(self, host: str, port: int) -> bool:
        """Return whether the rule covers a host, as `normalise_host` returns it, and a port."""
        same = host.endswith(f".{self.host}") if self.below else host == self.host
        return same and (self.ports is None or port in self.ports)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = ":*" if self.ports is None else "" if self.ports == DEFAULT_PORTS else f":{min(self.ports)}"
        return f"{PRIVATE_PREFIX if self.private else ''}{'*.' if self.below else ''}{host}{port}"


class AllowList(Struct, frozen=True):
    """The rules of one sandbox; an empty list allows nothing."""

    rules: tuple[HostRule, ...]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> AllowList:
        """Return the list of the parsed rules; raises `ConfigError` as `parse_rule` does."""
        return cls(tuple(map(parse_rule, texts)))

    def find(self, host: str, port: int) -> HostRule | None:
        """Return the rule that allows a normalised host and port, a private grant first, or `None`."""
        matching = [rule for rule in self.rules if rule.matches(host, port)]
        # A rule that also grants private addresses takes precedence over one that does not.
        return next((rule for rule in matching if rule.private), matching[0] if matching else None)


def parse_rule(text: str) -> HostRule:
    """Return the parsed rule; raises `ConfigError` that names the value.

    `HOST`, `HOST:PORT` or `HOST:*`; without a port 80 and 443. HOST is a name, `*.NAME` (every name below it, not
    itself), an IPv4 address, or an IPv6 address in brackets. A leading `private:` permits private addresses.
    """
    rest = text.strip()
    private = rest.lower().startswith(PRIVATE_PREFIX)
    rest = rest[len(PRIVATE_PREFIX) :] if private else rest
    try:
        name, port = split_port(rest)
        ports = DEFAULT_PORTS if port is None else None if port == "*" else frozenset({parse_port(port)})
        below = name.startswith("*.")
        host = normalise_host(name.removeprefix("*."))
    except ValueError as error:
        raise ConfigError(f"invalid network rule {text!r}: {error}", hint=_HINT) from None
    if below and parse_address(host) is not None:
        raise ConfigError(f"invalid network rule {text!r}: an address has no subdomains", hint=_HINT)
    if below and "." not in host:
        raise ConfigError(
            f"invalid network rule {text!r}: it would allow a whole top-level domain",
            hint="name a domain below it, such as '*.example.org'",
        )
    return HostRule(host=host, below=below, ports=ports, private=private)


def meet_rules(ours: Sequence[str], theirs: Sequence[str]) -> tuple[str, ...]:
    """Return the rules for hosts that both lists allow, in our order; only ours can grant private addresses.

    Raises `ConfigError` for an invalid rule.
    """
    met: dict[str, None] = {}
    for mine, other in itertools.product(map(parse_rule, ours), map(parse_rule, theirs)):
        narrow = mine if (mine.host, mine.below) == (other.host, other.below) else None
        for wide, inner in ((mine, other), (other, mine)):
            if narrow is None and wide.below and inner.host.endswith(f".{wide.host}"):
                narrow = inner
        ports = other.ports if mine.ports is None else mine.ports
        if mine.ports is not None and other.ports is not None:
            ports = mine.ports & other.ports
        if narrow is not None and ports != frozenset():
            # Only our list can grant private addresses: theirs may come from a repository.
            met[str(replace(narrow, ports=ports, private=mine.private))] = None
    return tuple(met)


def without_grants(rules: Sequence[str]) -> tuple[str, ...]:
    """Return the rules without those that can lead to an address that is not public."""
    parsed = [(text, parse_rule(text)) for text in rules]
    return tuple(
        text
        for text, rule in parsed
        if not rule.private and (rule.address is None or classify_address(rule.address) == "public")
    )


def split_port(text: str) -> tuple[str, str | None]:
    """Return host and port of `HOST:PORT`, with port `None` if missing; raises `ValueError`."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError("a bracket without its end")
        if not isinstance(parse_address(host), ipaddress.IPv6Address):
            raise ValueError("brackets must contain an IPv6 address")
        return host, rest[1:] if rest else None
    if text.count(":") > 1:
        raise ValueError("an IPv6 address must be in brackets")
    host, colon, port = text.partition(":")
    if isinstance(parse_address(host), ipaddress.IPv6Address):
        raise ValueError("an IPv6 address must be in brackets")
    return host, port if colon else None


def parse_port(text: str) -> int:
    """Return a port from 1 to 65535; raises `ValueError`."""
    if not _PORT.fullmatch(text) or int(text) > 65_535:
        raise ValueError(f"{text!r} is not a port")
    return int(text)


def normalise_host(name: str) -> str:
    """Return a host in its form for comparison: lower case, A-labels, no final dot; raises `ValueError`.

    Numbers that only some resolvers take for an address (127.1, 0x7f000001) are refused.
    """
    address = parse_address(name)
    if address is not None:
        return str(address)
    if _AMBIGUOUS & set(name):
        raise ValueError(f"{name[:80]!r} has more than one ASCII form: write it with xn--")
    try:
        host = name if name.isascii() else name.encode("idna").decode("ascii")
    except UnicodeError:
        raise ValueError(f"{name[:80]!r} is not a host name") from None
    host = host.lower().removesuffix(".")
    labels = host.split(".")
    if len(host) > _MAX_NAME or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError(f"{name[:80]!r} is not a host name")
    if _NUMBER.fullmatch(labels[-1]):
        raise ValueError(f"{name[:80]!r} is not an address in the usual form")
    return host


def parse_address(text: str) -> Address | None:
    """Return the IP address in `text`, `None` for a name, and for an address with a zone (`fe80::1%lo`)."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return None if "%" in text else address


def unwrap_ipv4(address: Address) -> Address:
    """Return the IPv4 address within an IPv4-mapped or NAT64 (64:ff9b::/96, RFC 6052) one, else the same."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def classify_address(address: Address) -> AddressKind:
    """Return the kind of an address; an address not known to be public is not public."""
    address = unwrap_ipv4(address)
    if address.is_loopback:
        return "loopback"
    if address.is_link_local:
        return "link-local"
    if address.is_multicast:
        return "multicast"
    # Our list as well as Python's: the networks that `ipaddress` knows differ between Python releases.
    if address.is_unspecified or address.is_reserved or any(address in network for network in _RESERVED):
        return "reserved"
    site_local = isinstance(address, ipaddress.IPv6Address) and address.is_site_local
    return "private" if site_local or address in _SHARED or not address.is_global else "public"


def is_local_address(address: Address) -> bool:
    """Return whether an address is this machine's: the kernel would use it as its source address.

    Sends no packet: connecting a datagram socket only looks the route up.
    """
    family = socket.AF_INET if isinstance(address, ipaddress.IPv4Address) else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            # Any port does; 9 is the discard service.
            probe.connect((str(address), 9))
        except OSError:
            return False
        return ipaddress.ip_address(probe.getsockname()[0]) == address
