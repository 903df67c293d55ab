"""Which addresses pages and redirects of a registry may lead the mirror to."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

import pytest

from chargehand.network.allow_list import Address
from chargehand.network.contract import MirrorRefusal
from chargehand.network.mirror.upstream import AddressPolicy

NAMES = {
    "public.example": ["151.101.0.223"],
    "files.example": ["151.101.0.224"],
    "inner.example": ["10.1.2.3"],
    "neighbour.example": ["10.1.2.4"],
    "both.example": ["151.101.0.225", "127.0.0.1"],
    "loop.example": ["127.0.0.1"],
    "mapped.example": ["::ffff:127.0.0.1"],
    "zero.example": ["0.0.0.0"],
    "odd.example": ["198.18.0.1"],
    "metadata.example": ["169.254.169.254"],
}


async def resolve(host: str, port: int) -> Sequence[Address]:
    """Answer from the table; an address is its own answer."""
    try:
        return [ipaddress.ip_address(host)]
    except ValueError:
        return [ipaddress.ip_address(text) for text in NAMES.get(host, ())]


@pytest.mark.parametrize(
    ("own", "asked", "allowed"),
    [
        ("https://public.example/", "https://files.example/x", True),
        ("https://public.example/", "https://inner.example/x", False),
        ("https://public.example/", "http://10.0.0.1/", False),
        ("https://public.example/", "http://[fd00::1]/", False),
        ("https://public.example/", "https://both.example/x", False),
        ("https://public.example/", "http://metadata.example/", False),
        ("https://public.example/", "http://mapped.example/", False),
        ("https://public.example/", "http://zero.example/", False),
        ("https://public.example/", "https://nothing.example/", False),
        ("https://inner.example/", "https://neighbour.example/x", True),
        ("https://inner.example/", "https://loop.example/", False),
        ("https://inner.example/", "http://169.254.169.254/latest", False),
        ("https://odd.example/", "http://zero.example/", False),
        ("https://odd.example/", "http://198.18.0.9/", True),
        ("http://metadata.example/", "http://169.254.169.254/", False),
        ("http://127.0.0.1:80/", "http://loop.example:81/", True),
        ("http://gone.example/", "https://files.example/x", True),
    ],
)
async def test_only_what_is_public_or_as_private_as_the_registry(own: str, asked: str, allowed: bool) -> None:
    reach = AddressPolicy([own, "file:///srv/index"], resolve=resolve)
    assert await reach.address(own) is None
    if allowed:
        address = await reach.address(asked)
        assert address is not None
    else:
        with pytest.raises(MirrorRefusal) as caught:
            await reach.address(asked)
        assert caught.value.status == (502 if "nothing" in asked else 403)


@pytest.mark.parametrize(
    ("url", "literal"), [("http://10.0.0.1/", True), ("http://[::1]:80/", True), ("http://a/", False)]
)
def test_an_address_is_known_as_one(url: str, literal: bool) -> None:
    assert AddressPolicy([]).names_address(url) == literal
