"""Parts of the MCP server: keys, the token's file, addresses, the rate limit, and displayed text."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.core.errors import ConfigError, ExhaustedError, UsageError
from chargehand.core.ids import keyed_id, new_id
from chargehand.mcp import _records as records
from chargehand.mcp._calls import RateLimit
from chargehand.mcp._missions import cleaned
from chargehand.mcp._records import McpArguments, McpResult, schema_of
from chargehand.mcp._tools import TOOLS
from chargehand.mcp.http import bound, hosts_of, parsed_address, token_of, url_of
from chargehand.operations.commands import known_operations

ALL = [
    kind
    for kind in vars(records).values()
    if isinstance(kind, type)
    and issubclass(kind, McpArguments | McpResult)
    and kind not in (McpArguments, McpResult)
]


def test_each_tool_is_an_operation_and_says_whether_it_changes_anything() -> None:
    known = known_operations()
    assert {tool.operation for tool in TOOLS} <= set(known)
    reading = {tool.name for tool in TOOLS if tool.read_only}
    assert reading == {
        "mission_status",
        "wait_mission",
        "list_missions",
        "show_diff",
        "show_log",
        "forecast_mission",
    }


@given(st.text(), st.text())
def test_a_keyed_id_is_deterministic_and_distinct_from_generated_ids(one: str, other: str) -> None:
    made = keyed_id("mission", one)
    assert made == keyed_id("mission", one)
    assert (made == keyed_id("mission", other)) == (one == other)
    assert made.startswith("m-k")
    assert len(made) == 28
    assert not new_id("mission", now_ms=16_000_000_000_000).startswith("m-k")  # the year 2477
    assert made != keyed_id("attempt", one)


def test_a_token_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    place = tmp_path / "new" / "token"
    token = token_of(place)
    assert (token_of(place), place.stat().st_mode & 0o777) == (token, 0o600)
    assert list(place.parent.iterdir()) == [place]
    assert token_of(tmp_path / "other") != token


@pytest.mark.parametrize("wrong", ["open", "short", "words", "link", "directory", "pipe", "bytes"])
def test_a_file_that_cannot_keep_a_token_is_refused(tmp_path: Path, wrong: str) -> None:
    place = tmp_path / "token"
    if wrong == "link":
        (tmp_path / "real").write_text("x" * 40)
        (tmp_path / "real").chmod(0o600)
        place.symlink_to("real")
    elif wrong == "directory":
        place.mkdir(mode=0o700)
    elif wrong == "pipe":
        os.mkfifo(place, 0o600)
    else:
        content = {"open": b"x" * 40, "short": b"x" * 19, "words": b"x " * 20, "bytes": b"\xff" * 40}[wrong]
        place.write_bytes(content)
        place.chmod(0o644 if wrong == "open" else 0o600)
    with pytest.raises(ConfigError) as caught:
        token_of(place)
    assert caught.value.code == "token_file"
    assert caught.value.hint


@pytest.mark.parametrize("text", ["127.0.0.1:0", "localhost:8765", "[::1]:8765", "127.1.2.3:65535"])
def test_loopback_is_served(text: str) -> None:
    address = parsed_address(text)
    assert str(address.port) == text.rpartition(":")[2]


@pytest.mark.parametrize(
    "text",
    ["", "8765", "0.0.0.0:1", "[::]:1", "10.0.0.1:80", "evil.example:80", "127.0.0.1:65536", "127.0.0.1:x", ":80"],
)
def test_a_listen_address_that_is_not_loopback_is_rejected(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parsed_address(text)
    assert caught.value.code == "listen_invalid"


def test_a_port_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError) as caught:
        bound(parsed_address(f"127.0.0.1:{taken.getsockname()[1]}"))
    assert caught.value.code == "port_taken"
    with bound(parsed_address("127.0.0.1:0")) as listening:
        port = listening.getsockname()[1]
        assert url_of(listening) == f"http://127.0.0.1:{port}/mcp"
        assert f"localhost:{port}" in hosts_of(listening)


def test_the_rate_limit_is_enforced_and_refills_up_to_the_burst() -> None:
    at = [0.0]
    rate = RateLimit(burst=3, per_second=2, now=lambda: at[0])
    for _ in range(3):
        rate.take()
    with pytest.raises(ExhaustedError, match="more than 2 calls a second"):
        rate.take()
    at[0] = 0.5
    rate.take()
    with pytest.raises(ExhaustedError):
        rate.take()
    at[0] = 100.0  # never more than the burst
    for _ in range(3):
        rate.take()
    with pytest.raises(ExhaustedError):
        rate.take()


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_schema_is_an_object_that_lists_its_properties(kind: type[msgspec.Struct]) -> None:
    schema = schema_of(kind)
    assert schema["type"] == "object"
    assert set(schema["properties"]) == {field.encode_name for field in msgspec.structs.fields(kind)}
    if issubclass(kind, McpArguments):
        assert schema["additionalProperties"] is False
        assert all("description" in each for each in schema["properties"].values())


def test_tool_arguments_are_validated_against_their_schema() -> None:
    tool = next(each for each in TOOLS if each.name == "show_log")
    assert tool.arguments({"mission": "m-1"}) == records.ShowLog(mission="m-1", after=0, limit=100)
    for wrong in ({}, {"mission": ""}, {"mission": "m", "limit": 501}, {"mission": "m", "other": 1}):
        with pytest.raises(msgspec.ValidationError):
            tool.arguments(wrong)


@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_cleaned_output_has_no_control_characters(document: object) -> None:
    shown = msgspec.json.encode(cleaned(document)).decode()
    assert not any(f"\\u{code:04x}" in shown.lower() for code in (*range(9), *range(0x0E, 0x20)))
    assert "\x7f" not in shown
    assert "\x9b" not in shown
