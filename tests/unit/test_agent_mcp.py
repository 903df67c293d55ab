"""Messages of MCP servers: schemas are reduced to a small subset; any content is accepted and answered."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.agents.native.mcp import relay
from chargehand.agents.native.mcp.schema import faults, plain_schema
from chargehand.agents.native.mcp.server import McpError, McpExchange
from chargehand.agents.native.mcp.tools import read_content
from chargehand.agents.text_protocol import describe, parse
from chargehand.agents.tool_specs import SPECS, ToolSpec

WORDS = st.sampled_from(
    ["type", "properties", "items", "required", "enum", "const", "anyOf", "allOf", "oneOf", "$ref", "$defs",
     "additionalProperties", "minimum", "maxLength", "description", "pattern", "x", "object", "array", "#/$defs/x"]
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=25,
)
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 5},
        "age": {"type": ["integer", "null"], "minimum": 0, "exclusiveMaximum": 150},
        "kind": {"enum": ["a", "b", 3]},
        "address": {"$ref": "#/$defs/address"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        "either": {"anyOf": [{"type": "string"}, {"type": "number", "minimum": 10}]},
        "both": {"allOf": [{"type": "integer"}, {"const": 4}]},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"address": {"type": "object", "properties": {"zip": {"type": "string"}}, "required": ["zip"]}},
}


@pytest.mark.parametrize(
    ("given_arguments", "fault"),
    [
        ({}, "arguments.name is missing"),
        ({"name": 3}, "arguments.name must be string, not 3"),
        ({"name": ""}, "arguments.name breaks minLength 1"),
        ({"name": "x", "age": -1}, "arguments.age breaks minimum 0"),
        ({"name": "x", "age": 150}, "arguments.age breaks exclusiveMaximum 150"),
        ({"name": "x", "age": True}, "arguments.age must be integer or null, not true"),
        ({"name": "x", "kind": "c"}, 'arguments.kind must be one of ["a", "b", 3], not "c"'),
        ({"name": "x", "address": {}}, "arguments.address.zip is missing"),
        ({"name": "x", "tags": ["a", 1]}, "arguments.tags[1] must be string, not 1"),
        ({"name": "x", "tags": ["a", "b", "c"]}, "arguments.tags breaks maxItems 2"),
        ({"name": "x", "either": 9}, "arguments.either fits none of anyOf"),
        ({"name": "x", "both": 5}, "arguments.both must be 4, not 5"),
        ({"name": "x", "other": 5}, "there is no arguments.other"),
    ],
)
def test_arguments_that_break_a_schema_keyword_are_reported(given_arguments: dict[str, Any], fault: str) -> None:
    (found,) = faults(plain_schema(PERSON), given_arguments)
    assert found.startswith(fault)


def test_valid_arguments_have_no_faults() -> None:
    right = {
        "name": "x",
        "age": None,
        "kind": 3,
        "address": {"zip": "1", "more": 2},
        "tags": [],
        "either": 10.5,
        "both": 4,
    }
    assert faults(plain_schema(PERSON), right) == []


def test_a_schema_that_refers_to_itself_ends() -> None:
    loop = {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#/properties/a"}}}
    made = plain_schema(loop)
    assert len(json.dumps(made)) < 17_000
    assert "$ref" not in json.dumps(made)


def test_patterns_are_shown_and_never_run() -> None:
    evil = {"properties": {"x": {"type": "string", "pattern": "(a+)+$"}}}
    assert plain_schema(evil)["properties"]["x"]["pattern"] == "(a+)+$"
    assert faults(plain_schema(evil), {"x": "a" * 10_000 + "!"}) == []


def test_too_large_a_schema_becomes_the_schema_of_any_object() -> None:
    huge = {"properties": {f"p{n}": {"description": "d" * 500} for n in range(100)}, "required": ["p1"]}
    assert plain_schema(huge) == {"type": "object", "properties": {}, "required": []}


@given(JSON, JSON)
def test_any_schema_and_value_are_processed_without_errors(schema: Any, value: Any) -> None:
    made = plain_schema(schema)
    assert json.loads(json.dumps(made)) == made
    assert made["type"] == "object"
    assert set(made["required"]) <= set(made["properties"])
    assert all(isinstance(fault, str) for fault in faults(made, value))
    spec = ToolSpec(name="mcp_x_y", description="d", parameters=made)
    assert "mcp_x_y: d" in describe([*SPECS, spec])


def test_a_bare_call_of_an_mcp_tool_is_parsed() -> None:
    assert [call.name for call in parse('{"name": "mcp_x_y", "arguments": {}}', SPECS).calls] == ["mcp_x_y"]
    assert parse('{"name": "nothing_known", "arguments": {}}', SPECS).calls == ()


WORD = st.sampled_from(
    ["jsonrpc", "id", "method", "params", "result", "error", "code", "message", "content", "type", "text", "data",
     "ping", "image", "resource", "blob", "mimeType", "uri", "isError", "notifications/tools/list_changed"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.text(max_size=6) | WORD,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORD, inner, max_size=6),
    max_leaves=12,
)
LINE = VALUES.map(lambda value: json.dumps(value).encode() + b"\n")
RELAY = st.sampled_from(
    [b"new\n", b"old\n", b"absent x\n", b"flood\n", b'ended {"code": [1]}\n', b"ended {\n", b"ended 3\n"]
)
SPOKEN = st.tuples(st.just("stdout"), LINE | st.binary(max_size=20))
PIECES = st.lists(SPOKEN | st.tuples(st.just("stderr"), RELAY | st.binary(max_size=9)), max_size=12)


def talk(changed: asyncio.Event | None = None) -> McpExchange:
    return McpExchange(itertools.count(1), changed or asyncio.Event())


def said(made: McpExchange) -> list[dict[str, Any]]:
    """Return the messages to the server."""
    found = []
    while not made.channel._lines.empty():
        found.append(json.loads(made.channel._lines.get_nowait() or b"null"))
    return found


def feed(made: McpExchange, messages: Iterable[dict[str, Any]]) -> None:
    for message in messages:
        made.take("stdout", json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


@given(PIECES)
def test_any_input_ends_in_a_result_or_an_mcp_error(pieces: list[tuple[Any, bytes]]) -> None:
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


@given(st.dictionaries(WORD, VALUES, max_size=6))
def test_any_result_becomes_text_without_escape_sequences(result: dict[str, Any]) -> None:
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


def test_a_server_that_ends_before_it_reads_is_reported_with_its_last_words(tmp_path: Path) -> None:
    """Its end becomes known only after the host's data could not be written."""
    program = ("sh", "-c", "exec 0<&-; touch closed; sleep 0.5; echo no input >&2; exit 4")
    argv = [sys.executable, "-I", "-S", relay.__file__, "talk", str(tmp_path / "relay"), *program]
    with subprocess.Popen(argv, cwd=tmp_path, stdin=PIPE, stdout=PIPE, stderr=PIPE) as talk:
        assert talk.stdin is not None
        assert talk.stderr is not None
        assert talk.stderr.readline() == b"new\n"
        while not (tmp_path / "closed").exists():
            time.sleep(0.01)
        talk.stdin.write(b"{}\n")
        talk.stdin.flush()
        word, _, report = talk.stderr.read().decode().partition(" ")
    assert (word, json.loads(report)) == ("ended", {"code": 4, "stderr": "no input\n"})
