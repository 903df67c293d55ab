"""The output of other agent programs: JSON Lines of every CLI, and permission requests of ACP agents."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chargehand.agents._json_rpc import JsonLines
from chargehand.agents.acp.client import action_of_call, lines_of
from chargehand.agents.clis import SPECS, CliLaunch
from chargehand.agents.programs.cli_forms import FORMS
from chargehand.agents.programs.events import AgentEvent, SessionLog
from chargehand.models.contract import Usage
from chargehand.policy.actions import Action, FileWrite, Other, Shell
from chargehand.testing.agents import fake_agent as _fake_agent

NAMES = SPECS.names()
LAUNCH = CliLaunch(prompt="The request", model="m", dialect="openai", token="cht-token")


def played(place: Path, name: str, act: str) -> tuple[list[AgentEvent], JsonLines, int]:
    """Return the events of the stand-in of a CLI, and its exit code."""
    words = [sys.executable, "-I", "-c", inspect.getsource(_fake_agent), name, act, *SPECS[name].words(LAUNCH)]
    done = subprocess.run(words, cwd=place, capture_output=True, timeout=60, check=False)
    lines = JsonLines()
    found = [*lines.take(done.stdout), *lines.finish()]
    return [event for line in found for event in FORMS[SPECS[name].form](line)], lines, done.returncode


@pytest.mark.parametrize("name", NAMES)
def test_every_output_format_yields_the_same_events(name: str, tmp_path: Path) -> None:
    events, lines, code = played(tmp_path, name, "edit")
    assert (code, lines.malformed) == (0, 0)
    kinds = [event.kind for event in events]
    assert kinds[:3] == ["session", "text", "call"]
    assert [event.text for event in events if event.kind == "text"] == ["I begin.", "It is made."]
    (call,) = [event for event in events if event.kind == "call"]
    (result,) = [event for event in events if event.kind == "result"]
    assert call.call == result.call == "c-1"
    assert not result.failed
    usage = [event.usage for event in events if event.usage is not None]
    assert [(each.input, each.output) for each in usage] == [(11, 3)]
    assert (events[-1].kind, events[-1].failed) == ("end" if SPECS[name].tells_its_end else "usage", False)


@pytest.mark.parametrize("name", NAMES)
def test_every_output_format_reports_a_failure(name: str, tmp_path: Path) -> None:
    events, _, code = played(tmp_path, name, "fail")
    log = SessionLog(redact=str, show=lambda _: None)
    for event in events:
        log.take(event)
    assert (code, log.error) == (1, "the model does not answer")


@pytest.mark.parametrize("name", NAMES)
def test_every_output_format_ignores_unknown_lines(name: str, tmp_path: Path) -> None:
    events, lines, _ = played(tmp_path, name, "malformed")
    assert lines.malformed == 2
    assert [event.text for event in events if event.kind == "text"] == ["I begin.", "It is made."]


ODD = st.sampled_from(
    [None, True, -1, 3, 0.5, "", "text", "assistant", [], [1], [{}], [{"type": "text"}], [{"type": "tool_result"}],
     {}, {"type": 7}, {"content": [{"type": "tool_use", "input": 3}]}, {"content": "x"}, {"state": []},
     {"type": "command_execution"}, {"changes": 1}, {"input_tokens": "1"}, {"readToolCall": None}, {"data": 1}]
)  # fmt: skip
WORDS = ["type", "subtype", "message", "content", "part", "state", "item", "usage", "stats", "tool_call", "error"]
KINDS = [
    "assistant",
    "user",
    "result",
    "system",
    "tool_use",
    "tool_call",
    "error",
    "item.completed",
    "turn.failed",
]
LINES = st.dictionaries(st.sampled_from(WORDS), st.sampled_from(KINDS) | ODD, max_size=6)


@given(LINES)
def test_no_line_breaks_any_form(line: dict[str, Any]) -> None:
    for spec in SPECS.values():
        assert all(isinstance(event, AgentEvent) for event in FORMS[spec.form](line))


@given(st.lists(st.binary(max_size=20) | st.sampled_from([b'{"a": 1}', b"[]", b"", b"{"]), max_size=8), st.data())
def test_cutting_a_stream_anywhere_gives_the_same_lines(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"\n".join(lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    whole, pieces = JsonLines(), JsonLines()
    expected = [*whole.take(stream), *whole.finish()]
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += pieces.take(stream[start:end])
    found += pieces.finish()
    assert (found, pieces.malformed) == (expected, whole.malformed)


def test_a_line_without_end_is_bounded_and_the_next_is_read() -> None:
    lines = JsonLines(longest=100)
    assert [*lines.take(b"x" * 90), *lines.take(b"x" * 90), *lines.take(b"x" * 90)] == []
    assert list(lines.take(b'y\n{"a": 1}\n')) == [{"a": 1}]
    assert lines.malformed == 1


@given(st.text(min_size=1).filter(str.strip), st.data())
def test_text_sent_in_pieces_is_joined(text: str, data: st.DataObject) -> None:
    """As gemini sends it; any other event ends the text, and so does the end of the stream."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    shown: list[str] = []
    log = SessionLog(redact=str, show=shown.append)
    call = {"type": "tool_use", "tool_name": "read_file", "tool_id": "c", "parameters": {}}
    lines = [{"type": "message", "role": "assistant", "content": piece, "delta": True} for piece in pieces]
    for line in [*lines, call, *lines]:
        for event in FORMS[SPECS["gemini"].form](line):
            log.take(event)
    told = [json.loads(line) for line in log.transcript().splitlines()]
    assert [each.get("text") for each in told] == [text, None, text]
    assert log.said == text.strip()
    assert shown == [f"{text}\n", "[read_file] {}\n", f"{text}\n"]


def test_a_text_in_pieces_is_bounded_as_another_is() -> None:
    log = SessionLog(redact=str, show=lambda _: None)
    for _ in range(30):
        log.take(AgentEvent(kind="text", text="x" * 10_000, piece=True))
    told = [json.loads(line)["text"] for line in log.transcript().splitlines()]
    assert [len(text) for text in told] == [100_000] * 3


def test_cached_tokens_count_as_input_of_claude_but_not_of_qwen() -> None:
    usage = {
        "input_tokens": 10,
        "output_tokens": 5,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 1000,
    }
    line = {"type": "result", "subtype": "success", "usage": usage, "total_cost_usd": 0.5}
    (event,) = FORMS[SPECS["claude"].form](line)
    assert event.usage == Usage(input=1110, output=5, cached=100, cache_write=1000, cost_usd=0.5)
    (event,) = FORMS[SPECS["qwen"].form]({**line, "usage": {**usage, "total_tokens": 15}, "total_cost_usd": None})
    assert event.usage is not None
    assert (event.usage.input, event.usage.cached) == (10, 100)


@pytest.mark.parametrize("name", NAMES)
def test_no_start_shows_the_token_in_its_words(name: str) -> None:
    """Every process can read the words of a command line, but not the environment."""
    assert LAUNCH.token not in " ".join(SPECS[name].words(LAUNCH))
    assert LAUNCH.prompt in SPECS[name].words(LAUNCH)
    for path, text in SPECS[name].files(LAUNCH).items():
        assert LAUNCH.token not in text
        tomllib.loads(text) if path.endswith(".toml") else json.loads(text)
    assert LAUNCH.token in " ".join(SPECS[name].environment(LAUNCH).values())


def test_codex_asks_through_its_adapter_and_never_by_itself() -> None:
    """The adapter is started without our options, so the same settings are in its HOME."""
    for asks, policy in ((True, "untrusted"), (False, "never")):
        (text,) = SPECS["codex"].files(replace(LAUNCH, asks=asks)).values()
        settings = tomllib.loads(text)
        assert (settings["approval_policy"], settings["sandbox_mode"]) == (policy, "danger-full-access")
        provider = settings["model_providers"][settings["model_provider"]]
        assert (provider["base_url"], provider["wire_api"]) == ("http://127.0.0.1:8871/v1", "responses")
    assert "--ignore-user-config" in SPECS["codex"].words(LAUNCH)


def test_claude_uses_the_default_permission_mode_if_asking_is_on() -> None:
    (text,) = SPECS["claude"].files(replace(LAUNCH, asks=True)).values()
    assert json.loads(text) == {"permissions": {"defaultMode": "default", "allow": ["mcp__chargehand"]}}
    assert SPECS["claude"].files(LAUNCH) == {}


@pytest.mark.parametrize("name", ["claude", "codex", "gemini", "opencode", "qwen"])
def test_a_cli_is_configured_for_the_tools_of_the_gateway_if_it_has_some(name: str) -> None:
    for tools in (True, False):
        launch, spec = replace(LAUNCH, tools=tools), SPECS[name]
        settings = [*spec.words(launch), *spec.environment(launch).values(), *spec.files(launch).values()]
        assert any("http://127.0.0.1:8871/mcp" in text for text in settings) is tools
        assert "{tools}" not in settings


@pytest.mark.parametrize(
    ("call", "action"),
    [
        ({"kind": "execute", "title": "rm -rf build"}, Shell(text="rm -rf build")),  # gemini
        ({"kind": "execute", "rawInput": {"command": "make"}, "title": "Build it"}, Shell(text="make")),
        (
            {"kind": "execute", "rawInput": {"command": ["/bin/sh", "-lc", "make"], "cwd": "/workspace"}},  # codex
            Shell(text="make", cwd="/workspace"),
        ),
        ({"kind": "execute", "rawInput": {"script": "make"}, "title": "make"}, Other(kind="tool", name="make")),
        ({"kind": "execute"}, Other(kind="tool", name="execute")),
        ({"kind": "other", "title": "make"}, Other(kind="tool", name="make")),
        ({"title": "make"}, Other(kind="tool", name="make")),
        ({"kind": "edit", "locations": [{"path": "/workspace/a"}]}, FileWrite(path="/workspace/a")),
    ],
)
def test_the_action_of_a_tool_call_is_recognized(call: dict[str, Any], action: Action) -> None:
    assert action_of_call(call) == action


@pytest.mark.parametrize(
    ("first", "limit", "lines"),
    [
        (None, None, "a\x0cb\u2028c\n\r\nd\n\ne"),
        (1, 1, "a\x0cb\u2028c\n"),
        (2, 1, "\r\n"),
        (3, None, "d\n\ne"),
        (4, 9, "\ne"),
        (0, 1, "a\x0cb\u2028c\n"),
        (6, None, ""),
        (2, 0, ""),
    ],
)
def test_lines_of_a_file_end_at_line_feeds_alone(first: int | None, limit: int | None, lines: str) -> None:
    assert lines_of("a\x0cb\u2028c\n\r\nd\n\ne", first=first, limit=limit) == lines
