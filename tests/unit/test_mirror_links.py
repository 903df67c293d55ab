"""Index pages: the links read from them, content that is never served, and permitted targets."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.network.allow_list import Address
from chargehand.network.contract import MirrorRefusal
from chargehand.network.mirror.links import (
    FileLink,
    may_belong_to,
    parse_html_links,
    parse_json_links,
    render_html,
    render_json,
)
from chargehand.network.mirror.upstream import AddressPolicy

BASE = "https://index.invalid/simple/a/"
DIGEST = "ab" * 32

HTML = f"""<!DOCTYPE html><html><head><base href="../../"></head><body>
<a href="packages/a-1.0-py3-none-any.whl#sha256={DIGEST}" data-requires-python="&gt;=3.8"
   data-dist-info-metadata="sha256={DIGEST}">a</a>
<a href="https://files.invalid/a-0.9.tar.gz?token=s3cret#md5=00" data-yanked="broken &amp; bad">a</a>
<a href="file:///etc/a-1.0.tar.gz">a local file</a>
<a href="a-1.0.tar.gz.asc">a signature</a><a href="..">up</a><a>no link</a><a href="http://[/a-1.zip">broken</a>
</body></html>"""


def test_html_page_is_read_with_its_attributes() -> None:
    wheel, sdist = parse_html_links(HTML, url=BASE)
    assert wheel.url == "https://index.invalid/packages/a-1.0-py3-none-any.whl"
    assert (wheel.hashes, wheel.requires_python, wheel.metadata) == (
        {"sha256": DIGEST},
        ">=3.8",
        {"sha256": DIGEST},
    )
    assert wheel.yanked is None
    assert (sdist.filename, sdist.yanked, sdist.metadata) == ("a-0.9.tar.gz", "broken & bad", None)


def test_only_a_page_on_disk_names_files_of_this_machine() -> None:
    page = '<a href="file:///srv/a-1.0.tar.gz">a</a>'
    assert parse_html_links(page, url=BASE) == []
    assert [link.url for link in parse_html_links(page, url="file:///srv/index.html")] == [
        "file:///srv/a-1.0.tar.gz"
    ]
    listing = json.dumps({"files": [{"filename": "a-1.0.tar.gz", "url": "file:///srv/a-1.0.tar.gz"}]}).encode()
    assert parse_json_links(listing, url=BASE) == []


@pytest.mark.parametrize("name", ["../a-1.zip", "a/b-1.zip", "a\n-1.zip", "-a-1.zip", ".a-1.zip", "a-1.exe", ""])
def test_json_names_that_are_no_archive_are_dropped(name: str) -> None:
    listing = json.dumps({"files": [{"filename": name, "url": "x.zip"}]}).encode()
    assert parse_json_links(listing, url=BASE) == []


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"files": [1]}', b"\xff", b"<html>"])
def test_parsing_an_invalid_json_page_raises(body: bytes) -> None:
    with pytest.raises((msgspec.MsgspecError, UnicodeDecodeError)):
        parse_json_links(body, url=BASE)


def test_a_find_links_file_belongs_to_its_project_alone() -> None:
    assert may_belong_to("zope_interface-5.0-py3-none-any.whl", "zope-interface")
    assert may_belong_to("zope.interface-5.0.tar.gz", "zope-interface")
    assert not may_belong_to("six_evil-1.0-py3-none-any.whl", "six")
    assert not may_belong_to("sixer-1.0.tar.gz", "six")


hexes = st.text("0123456789abcdef", min_size=64, max_size=64)
digests = st.dictionaries(st.just("sha256"), hexes, max_size=1)
words = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=20)
links = st.builds(
    FileLink,
    filename=st.from_regex(r"[a-z][a-z0-9_]{0,5}-[0-9]\.[0-9]\.tar\.gz", fullmatch=True),
    url=st.just("https://files.invalid/x.tar.gz"),
    hashes=digests,
    requires_python=words.map(str.strip),
    yanked=st.none() | words,
    metadata=st.none() | digests,
)


def _same(one: FileLink, other: FileLink) -> bool:
    return all(
        getattr(one, name) == getattr(other, name)
        for name in ("filename", "hashes", "requires_python", "yanked", "metadata")
    )


@given(st.lists(links, max_size=4))
def test_both_forms_keep_every_link_whole(given_links: list[FileLink]) -> None:
    def rewrite(link: FileLink) -> str:
        return f"/files/{link.filename}"

    read = parse_html_links(render_html("a", given_links, rewrite=rewrite).decode(), url="http://mirror.invalid/")
    assert len(read) == len(given_links)
    assert all(_same(one, other) for one, other in zip(read, given_links, strict=True))
    read = parse_json_links(render_json("a", given_links, rewrite=rewrite), url="http://mirror.invalid/")
    assert len(read) == len(given_links)
    assert all(_same(one, other) for one, other in zip(read, given_links, strict=True))


@given(st.lists(links, max_size=4))
def test_pages_never_show_the_upstream_address(given_links: list[FileLink]) -> None:
    for render in (render_html, render_json):
        assert b"files.invalid" not in render("a", given_links, rewrite=lambda link: f"/files/{link.filename}")


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
    """Resolve from the table; an address resolves to itself."""
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
async def test_only_public_addresses_or_those_of_the_registry_range_are_allowed(
    own: str, asked: str, allowed: bool
) -> None:
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
def test_an_ip_address_in_a_url_is_recognized(url: str, literal: bool) -> None:
    assert AddressPolicy([]).names_address(url) == literal
