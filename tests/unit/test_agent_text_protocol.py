"""Calls written as text: read literally, repaired only without guessing, refused with an example of the form."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples

from chargehand.agents.text_protocol import describe, parse, render_result
from chargehand.agents.tool_specs import SPECS, ToolCall

LS = {"name": "bash", "arguments": {"command": "ls"}}
READ = {"name": "read", "arguments": {"path": "a.py", "limit": 3}}


def fenced(*calls: object, kind: str = "tool") -> str:
    return f"```{kind}\n" + "\n".join(json.dumps(call) for call in calls) + "\n```"


def calls(*written: dict) -> tuple[ToolCall, ...]:
    """Return calls as they are read: numbered from 0."""
    return tuple(
        ToolCall(index=index, name=data["name"], arguments=data["arguments"], written=True)
        for index, data in enumerate(written)
    )


@pytest.mark.parametrize(
    "reply",
    [
        fenced(LS),
        "Let me look.\n\n" + fenced(LS) + "\n",
        fenced(LS, kind="json"),
        fenced(LS, kind=""),
        fenced(LS, kind="tool_call"),
        "````tool\n" + json.dumps(LS, indent=2) + "\n````",
        f"<tool_call>\n{json.dumps(LS)}\n</tool_call>",
        f"<tool_call>{json.dumps(LS)}</tool_call>",
        "I look.\n" + json.dumps(LS),
        "I look.\n" + json.dumps(LS, indent=4) + "\n\n",
        '```tool\n{"name": "bash", "arguments": {"command": "ls",},}\n```',
        '```tool\n{"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}\n```',
        "```tool\n" + json.dumps(LS),
        "```tool\n" + json.dumps(LS) + "```",
        "```tool\n[" + json.dumps(LS) + "]\n```",
        "<think>perhaps\n" + fenced(READ) + "\n</think>" + fenced(LS),
    ],
)
def test_common_forms_of_a_single_call_are_parsed(reply: str) -> None:
    parsed = parse(reply, SPECS)
    assert parsed.problem is None
    assert parsed.calls == calls(LS)
    assert "```" not in parsed.text
    assert "{" not in parsed.text


def test_several_calls_keep_their_order_and_the_words_between() -> None:
    parsed = parse(f"one\n{fenced(LS)}\ntwo\n{fenced(READ)}\n<tool_call>{json.dumps(LS)}</tool_call>\n", SPECS)
    assert parsed.calls == calls(LS, READ, LS)
    assert parsed.text == "one\ntwo"
    assert parse(fenced(LS, READ), SPECS).calls == calls(LS, READ)


def test_strings_in_arguments_are_unchanged() -> None:
    odd = {"name": "edit", "arguments": {"path": "a", "old": "x,}\n```\n<think>a</think>", "new": ',] "\\ é'}}
    assert parse(fenced(odd), SPECS).calls == calls(odd)
    raw = '```tool\n{"name": "bash", "arguments": {"command": "cat <<E\n```tool\nE\n", }}\n```'
    assert parse(raw, SPECS).calls[0].arguments == {"command": "cat <<E\n```tool\nE\n"}


@pytest.mark.parametrize(
    "reply",
    [
        "All is well.",
        "",
        "```python\n" + json.dumps(LS) + "\n```",
        "```markdown\nWrite:\n" + json.dumps(LS) + "\n",
        "````text\n" + fenced(LS) + "\n````",
        '```json\n{"name": "chargehand", "arguments": {}}\n```',
        '```json\n{"name": "bash"}\n```',
        '```json\n{"version": 1,\n```',
        json.dumps(LS) + "\nis how I would do it.",
        '{"name": "someone", "arguments": {}}',
        "<think>" + fenced(LS) + "</think> No.",
        "<think>" + fenced(LS),
        "Use `" + json.dumps(LS) + "`",
    ],
)
def test_text_that_is_no_call_is_ignored(reply: str) -> None:
    assert parse(reply, SPECS).calls == ()
    assert parse(reply, SPECS).problem is None


@pytest.mark.parametrize(
    ("reply", "word"),
    [
        ('```tool\n{"name": "bash", "arguments": {"command": "ls}\n```', "valid JSON"),
        ('```tool\n{"name": "bash", "arguments": {"command": "l', "valid JSON"),
        ("```tool\nbash ls\n```", "valid JSON"),
        ("```tool\n```", "valid JSON"),
        ('```tool\n{"name": "bash", "command": "ls"}\n```', "'command'"),
        ('```tool\n{"tool": "bash", "arguments": {}}\n```', "'tool'"),
        ('```tool\n{"name": "bash"}\n```', "'name'"),
        ('```tool\n{"name": 3, "arguments": {}}\n```', "string"),
        ('```tool\n{"name": "bash", "arguments": []}\n```', "object"),
        ('```tool\n{"name": "bash", "arguments": "ls"}\n```', "object"),
        ('```tool\n{"name": "bash", "name": "edit", "arguments": {}}\n```', "twice"),
        ('```tool\n{"name": "bash", "arguments": {"timeout": NaN}}\n```', "NaN"),
        (f"```tool\n{json.dumps(LS)}\nand then\n```", "and then"),
        (f"<tool_call>{json.dumps(LS)}", "not closed"),
        ("<tool_call>bash</tool_call>", "valid JSON"),
        ('```json\n{"name": "bash", "arguments": {"command": "l\n```', "valid JSON"),
        ('I look.\n{"name": "bash", "arguments": {"command": "l', "valid JSON"),
        ("```tool\n" + "[" * 100_000 + "\n```", "nested"),
        ('```tool\n{"name": "read", "arguments": {"limit": ' + "9" * 5000 + "}}\n```", "number too long"),
    ],
)
def test_a_malformed_call_is_reported_and_no_call_is_returned(reply: str, word: str) -> None:
    for text in (reply, fenced(LS) + "\n" + reply):
        parsed = parse(text, SPECS)
        assert parsed.calls == ()
        assert parsed.problem is not None
        assert word in parsed.problem
        assert "```tool\n" in parsed.problem
        assert len(parsed.problem) < 700


def leaves(value: object) -> list[str]:
    if isinstance(value, dict):
        return [leaf for item in value.items() for each in item for leaf in leaves(each)]
    if isinstance(value, list):
        return [leaf for each in value for leaf in leaves(each)]
    return [value] if isinstance(value, str) else []


def assert_written(reply: str) -> None:
    parsed = parse(reply, SPECS)
    assert not (parsed.problem and parsed.calls)
    plain = reply.replace('\\"', '"')
    for each in parsed.calls:
        assert f'"{each.name}"' in reply
        for leaf in leaves(each.arguments):
            assert leaf in plain or json.dumps(leaf)[1:-1] in reply


PIECES = [
    "```tool\n", "```json\n", "```\n", "\n```", "````\n", "~~~\n", "<tool_call>", "</tool_call>",
    "<think>", "</think>", json.dumps(LS), json.dumps(READ), '{"name": "bash", ', '"arguments": ',
    '{"command": "ls"}', "}", "{", "]", "[", ",", "\n", " ", '"', "\\", "text", "null", "1e999", "NaN", "é",
]  # fmt: skip


@settings(max_examples=examples(500), deadline=None)
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=14).map("".join))
def test_parsing_any_reply_invents_no_calls(reply: str) -> None:
    assert_written(reply)


@settings(max_examples=examples(250), deadline=None)
@given(st.integers(0, 300), st.integers(0, 60), st.text(max_size=3), st.booleans())
def test_a_damaged_reply_is_rejected_or_read_literally(start: int, length: int, put: str, tagged: bool) -> None:
    shown = f"<tool_call>{json.dumps(READ)}</tool_call>" if tagged else fenced(READ)
    whole = "I look.\n" + fenced(LS) + "\nthen\n" + shown + "\n"
    assert_written(whole[:start] + put + whole[start + length :])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(80), deadline=None)
@given(
    st.sampled_from([spec.name for spec in SPECS]),
    st.dictionaries(st.text(), json_values, max_size=4),
    st.booleans(),
)
def test_every_written_call_is_parsed_unchanged(name: str, arguments: dict, plain: bool) -> None:
    data = {"name": name, "arguments": arguments}
    for text in (json.dumps(data, ensure_ascii=not plain), json.dumps(data, indent=1)):
        for reply in (f"```tool\n{text}\n```", f"<tool_call>{text}</tool_call>", f"```json\n{text}\n```", text):
            parsed = parse("Now:\n" + reply, SPECS)
            assert parsed.problem is None
            assert parsed.calls == calls(data)


def test_long_replies_are_read_in_a_moment() -> None:
    for piece in (
        "{\n",
        '{"name": "x", "arguments": \n',
        "```json\n{,\n```\n",
        "<tool_call\n",
        "```\n",
        '[{"',
        " \n",
    ):
        parse(piece * 5_000, SPECS)


def test_the_description_lists_every_tool_and_its_example_parses() -> None:
    text = describe(SPECS)
    for spec in SPECS:
        assert f"{spec.name}: " in text
    example = text[text.index("```tool") : text.index("The block")]
    assert parse(example, SPECS).calls == calls({"name": "bash", "arguments": {"command": "..."}})


@pytest.mark.parametrize("text", ["ok", "```\nx\n```", "````", "a ``` b"])
def test_a_result_cannot_close_its_fence(text: str) -> None:
    shown = render_result("bash", text)
    fence = shown.splitlines()[1].removesuffix("result")
    assert shown.startswith("Result of bash:\n")
    assert shown.endswith("\n" + fence)
    assert fence not in text
    assert parse(shown, SPECS).calls == ()
