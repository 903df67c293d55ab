"""Index pages with Windows line endings have the same links as pages with plain ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chargehand.network.contract import MirrorLimits, MirrorTrace
from chargehand.network.mirror.links import JSON_MEDIA, FileLink, parse_html_links
from chargehand.network.mirror.pypi import PythonRegistry
from chargehand.network.mirror.settings import ClientAccess, PipConfig
from chargehand.network.mirror.upstream import AddressPolicy, RegistryClient

PAGE = """<!DOCTYPE html>
<html>
<body>
<a
  href="a-1.0-py3-none-any.whl#sha256=0123456789abcdef0123456789abcdef"
  data-requires-python="&gt;=3.8"
  data-yanked="it broke
on two lines">a</a>
<a href="
a-2.0.tar.gz
">a</a>
</body>
</html>
"""


async def _answer(index: Path, accept: str) -> bytes:
    config = PipConfig(indexes=(index.as_uri(),), find_links=((index / "links.html").as_uri(),))
    policy = AddressPolicy(config.indexes)
    client = RegistryClient(ClientAccess(), policy=policy, page_bytes=100_000)
    registry = PythonRegistry(config, upstream=client, limits=MirrorLimits())
    try:
        reply = await registry.index("a", accept=accept, trace=MirrorTrace())
    finally:
        await client.close()
    assert isinstance(reply.body, bytes)
    # Each registry names its files differently.
    return re.sub(rb"/pypi/files/[^/]+/", b"/pypi/files/ID/", reply.body)


@pytest.mark.parametrize("ends", [b"\r\n", b"\r"])
@pytest.mark.parametrize("accept", ["*/*", JSON_MEDIA])
async def test_a_local_index_page_is_served_equally_with_other_line_endings(
    tmp_path: Path, ends: bytes, accept: str
) -> None:
    answers = []
    for written in (PAGE.encode(), PAGE.encode().replace(b"\n", ends)):
        index = tmp_path / "simple"
        (index / "a").mkdir(parents=True, exist_ok=True)
        (index / "a" / "index.html").write_bytes(written)
        (index / "links.html").write_bytes(written)
        answers.append(await _answer(index, accept))
    assert answers[1] == answers[0]
    assert answers[0].count(b"a-1.0-py3-none-any.whl") >= 1
    assert b"it broke\non" in answers[0] or b"it broke\\non" in answers[0]


def test_a_remote_index_page_is_parsed_equally_with_other_line_endings() -> None:
    def read(text: str) -> list[FileLink]:
        return parse_html_links(text, url="https://index.invalid/simple/a/")

    assert read(PAGE.replace("\n", "\r\n")) == read(PAGE)
    assert read(PAGE.replace("\n", "\r")) == read(PAGE)
