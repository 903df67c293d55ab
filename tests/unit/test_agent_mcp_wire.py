"""Whatever a relay and a server send, the talk with them takes it, answers what it should, and ends in words."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.agents.native.mcp.server import McpError, McpExchange
from chargehand.agents.native.mcp.tools import read_content

WORD = st.sampled_from(
    ["jsonrpc", "id", "method", "params", "result", "error", "code", "message", "content", "type", "text", "data",
     "ping", "image", "resource", "blob", "mimeType", "uri", "isError", "notifications/tools/list_changed"]
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.text(max_size=6) | WORD,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORD, inner, max_size=6),
    max_leaves=12,
)
LINE = JSON.map(lambda value: json.dumps(value).encode() + b"\n")
RELAY = st.sampled_from(
    [b"new\n", b"old\n", b"absent x\n", b"flood\n", b'ended {"code": [1]}\n', b"ended {\n", b"ended 3\n"]
)
WORDS = st.tuples(st.just("stdout"), LINE | st.binary(max_size=20))
PIECES = st.lists(WORDS | st.tuples(st.just("stderr"), RELAY | st.binary(max_size=9)), max_size=12)


def talk(changed: asyncio.Event | None = None) -> McpExchange:
    return McpExchange(itertools.count(1), changed or asyncio.Event())


def said(made: McpExchange) -> list[dict[str, Any]]:
    """Return what would go to the server."""
    found = []
    while not made.channel._lines.empty():
        found.append(json.loads(made.channel._lines.get_nowait() or b"null"))
    return found


def feed(made: McpExchange, messages: Iterable[dict[str, Any]]) -> None:
    for message in messages:
        made.take("stdout", json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


@given(PIECES)
def test_nothing_that_is_sent_breaks_it(pieces: list[tuple[Any, bytes]]) -> None:
    async def taken() -> None:
        made = talk()
        waiting = asyncio.ensure_future(made.request("tools/list", {}))
        await asyncio.sleep(0)
        for stream, piece in pieces:
            made.take(stream, piece)
        over: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        over.cancel()
        made.relay_ended(over)
        (result,) = await asyncio.gather(waiting, return_exceptions=True)
        assert isinstance(result, dict) or (isinstance(result, McpError) and len(result.message) < 1_000)

    asyncio.run(taken())


@given(st.dictionaries(WORD, JSON, max_size=6))
def test_whatever_a_result_is_it_becomes_text(result: dict[str, Any]) -> None:
    kept: list[bytes] = []
    text = read_content(result, keep=lambda content: kept.append(content) or "id")
    assert text
    assert "\x1b" not in text


async def test_answers_find_their_requests_whatever_their_order() -> None:
    changed = asyncio.Event()
    made = talk(changed)
    first, second = (asyncio.ensure_future(made.request("tools/call", {"name": name})) for name in "ab")
    await asyncio.sleep(0)
    assert [(each["id"], each["params"]["name"]) for each in said(made)] == [(1, "a"), (2, "b")]
    feed(
        made,
        [
            {"id": True, "result": {"wrong": 1}},
            {"id": "1", "result": {"wrong": 2}},
            {"id": 7, "method": "ping"},
            {"id": "x" * 300, "method": "ping"},
            {"id": 8, "method": "roots/list"},
            {"method": "notifications/tools/list_changed"},
            {"id": 2, "result": {"b": 1}},
            {"id": 2, "result": {"again": 1}},
            {"id": 1, "error": {"code": -1, "message": "no\nway"}},
        ],
    )
    assert await second == {"b": 1}
    with pytest.raises(McpError, match="error: no way"):
        await first
    assert said(made) == [
        {"jsonrpc": "2.0", "id": 7, "result": {}},
        {"jsonrpc": "2.0", "id": 8, "error": {"code": -32601, "message": "not offered by this client"}},
    ]
    assert changed.is_set()


async def test_requests_without_end_are_not_answered_without_end() -> None:
    made = talk()
    feed(made, ({"id": number, "method": "ping"} for number in range(1000)))
    assert len(said(made)) == 100
