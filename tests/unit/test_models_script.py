"""Scripts: the line that answers each call, and the error if no line does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit._model_clients import call, document

from chargehand.core.errors import UsageError
from chargehand.models.contract import Usage
from chargehand.models.script_upstream import ScriptUpstream, find_newest_text
from chargehand.models.scripted_replies import ScriptedCall, ScriptedReply
from chargehand.models.scripts import Script, ScriptLine

HEADER: dict[str, Any] = {"format": "chargehand-script", "version": 1}


def script(*lines: dict[str, Any]) -> Script:
    return Script.load(b"".join(json.dumps(line).encode() + b"\n" for line in (HEADER, *lines)))


async def text(upstream: ScriptUpstream, turn: int, attempt: str = "a", **more: Any) -> str:
    reply = await upstream.send(call(turn, attempt=attempt, **more))
    found = await document(reply)
    return str(found["choices"][0]["message"]["content"]) if reply.status == 200 else f"HTTP {reply.status}"


async def test_lines_are_taken_in_order_in_each_attempt() -> None:
    upstream = ScriptUpstream(script({"text": "one"}, {"text": "two"}))
    heard = [await text(upstream, turn, attempt) for attempt in "ab" for turn in (1, 2, 3)]
    assert heard == ["one", "two", "HTTP 410"] * 2
    assert [(each.attempt, each.turn) for each in upstream.calls] == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]


async def test_a_resumed_attempt_gets_the_line_of_its_turn() -> None:
    upstream = ScriptUpstream(script({"text": "one"}, {"turn": 5, "text": "five"}, {"text": "six"}))
    assert [await text(upstream, turn) for turn in (5, 6, 1, 2)] == ["five", "six", "one", "HTTP 410"]


async def test_a_numbered_attempt_uses_only_the_lines_with_its_number() -> None:
    lines = ({"text": "any"}, {"attempt": 2, "text": "second"}, {"attempt": 2, "text": "second's second"})
    upstream = ScriptUpstream(script(*lines))
    assert [await text(upstream, 1, attempt) for attempt in "abc"] == ["any", "second", "any"]
    assert await text(upstream, 2, "b") == "second's second"
    told = ScriptUpstream(script(*lines), attempts={"b": 2})
    assert [await text(told, 1, attempt) for attempt in "ba"] == ["second", "any"]


async def test_a_turn_that_is_tried_again_gets_its_next_line_or_the_same() -> None:
    upstream = ScriptUpstream(script({"turn": 1, "fault": "429/0"}, {"turn": 1, "text": "one"}, {"text": "two"}))
    assert [await text(upstream, turn) for turn in (1, 1, 1, 2)] == ["HTTP 429", "one", "one", "two"]


@pytest.mark.parametrize(
    ("expect", "status"), [("7 passed", 200), (["7 passed", "in 1 s"], 200), (["7 passed", "failed"], 409)]
)
async def test_a_script_line_is_sent_only_if_its_expected_texts_occur(expect: Any, status: int) -> None:
    upstream = ScriptUpstream(script({"text": "good", "expect": expect}))
    messages = [
        {"role": "assistant", "content": "failed before"},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "7 passed in 1 s"}]},
        {"role": "user", "content": "go on"},
    ]
    reply = await upstream.send(call(1, messages=messages))
    assert reply.status == status
    if status != 200:
        message = (await document(reply))["error"]["message"]
        assert message.startswith("script, line 2 expects 'failed'")
        assert not upstream.calls


def test_tool_results_of_anthropic_are_heard() -> None:
    result = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "done"}]}
    body = {"messages": [{"role": "user", "content": "old"}, {"role": "assistant", "content": "x"}]}
    body["messages"].append({"role": "user", "content": [result]})
    assert find_newest_text(call(1, dialect="anthropic", **body)) == "done"


async def test_a_missing_line_is_an_error_in_the_format_of_the_dialect() -> None:
    reply = await ScriptUpstream(script()).send(call(3, dialect="anthropic"))
    found = await document(reply)
    assert (reply.status, found["type"]) == (410, "error")
    assert '"turn": 3' in found["error"]["message"]


async def test_tokens_are_estimated_if_the_script_has_no_usage() -> None:
    upstream = ScriptUpstream(script({"text": "x" * 40}, {"text": "x", "usage": {"input": 7, "output": 3}}))
    first = await document(await upstream.send(call(1)))
    assert first["usage"]["completion_tokens"] == 10
    assert first["usage"]["prompt_tokens"] > 5
    second = await document(await upstream.send(call(2)))
    assert (second["usage"]["prompt_tokens"], second["usage"]["completion_tokens"]) == (7, 3)


async def test_answered_calls_of_several_upstreams_are_appended_to_a_shared_journal(tmp_path: Path) -> None:
    journal = tmp_path / "calls"
    for _ in range(2):
        upstream = ScriptUpstream(script({"text": "one"}), journal=journal)
        await text(upstream, 1)
        await text(upstream, 2)
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert lines == [{"call": "c-1", "attempt": 1, "turn": 1, "line": 2}] * 2


async def test_a_late_reply_comes(tmp_path: Path) -> None:
    assert await text(ScriptUpstream(script({"text": "late", "delay": 0.01})), 1) == "late"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "line 2"),
        ("[]", "line 2"),
        ('{"txt": "a"}', "'txt' is not a field of a script"),
        ('{"tools": [{"name": "a", "args": {}}]}', "'args' is not a field of a script"),
        ('{"text": 1}', r"line 2: Expected `str`, got `int` - at `\$.text`"),
        ('{"turn": 0}', "count from 1"),
        ('{"attempt": -1}', "count from 1"),
        ('{"delay": -1}', "not negative"),
        ('{"fault": "nothing"}', "'nothing' is not a kind of fault"),
        ('{"fault": "cut@2"}', "names a turn"),
        ('{"stop": "now"}', "line 2"),
    ],
)
def test_a_wrong_line_is_named(line: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        Script.load(f"{json.dumps(HEADER)}\n{line}\n".encode())
    assert caught.value.code == "script_invalid"
    assert caught.value.hint


@pytest.mark.parametrize("header", ["", "{}", '{"format": "chargehand-script", "version": 2}', "nonsense"])
def test_loading_a_script_with_an_invalid_header_raises(header: str, tmp_path: Path) -> None:
    path = tmp_path / "script.jsonl"
    path.write_text(header + "\n")
    with pytest.raises(UsageError, match=r"script\.jsonl, line 1"):
        Script.load(path)


def test_loading_a_missing_script_raises(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read") as caught:
        Script.load(tmp_path / "none")
    assert caught.value.code == "file_unreadable"


LINES = st.lists(
    st.builds(
        ScriptLine,
        attempt=st.none() | st.integers(1, 3),
        turn=st.none() | st.integers(1, 9),
        expect=st.lists(st.text(min_size=1), max_size=2).map(tuple),
        reply=st.builds(
            ScriptedReply,
            text=st.text(),
            tools=st.lists(
                st.builds(
                    ScriptedCall,
                    name=st.text(),
                    arguments=st.dictionaries(st.text(), st.integers(-9, 9) | st.text()) | st.text(min_size=1),
                    id=st.text(),
                ),
                max_size=2,
            ).map(tuple),
            usage=st.none() | st.builds(Usage, input=st.integers(0, 9), output=st.none() | st.integers(0, 9)),
            stop=st.sampled_from([None, "end", "length"]),
            fault=st.sampled_from(["", "429/7", "cut"]),
        ),
    ),
    max_size=5,
)


@given(lines=LINES, note=st.text())
def test_a_dumped_script_loads_equally(lines: list[ScriptLine], note: str) -> None:
    written = Script(lines=tuple(lines), note=note)
    found = Script.load(written.dump())
    assert found.note == note
    assert [(each.attempt, each.turn, each.expect, each.reply) for each in found.lines] == [
        (each.attempt, each.turn, each.expect, each.reply) for each in lines
    ]
