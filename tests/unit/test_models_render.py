"""Scripted replies, as the official clients of both dialects read them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples
from tests.late import LateModule
from tests.unit._model_clients import DIALECTS, anthropic_client, openai_client

from chargehand.models.contract import Dialect, Usage
from chargehand.models.event_stream import event_bytes, parse_events
from chargehand.models.script_upstream import ScriptUpstream
from chargehand.models.scripted_replies import ScriptedCall, ScriptedReply, decode_body, render
from chargehand.models.scripts import Script

openai = LateModule("openai")

TEXTS = st.text(max_size=120) | st.sampled_from(["", "\n\n", "a\r\nb\u2028c\x85d", "data: [DONE]", "🦀" * 30])
LEAVES = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=20)
ARGUMENTS = st.dictionaries(st.text(max_size=8), LEAVES | st.lists(LEAVES, max_size=3), max_size=4)
CALLS = st.lists(
    st.builds(ScriptedCall, name=st.from_regex(r"[a-z_]{1,12}", fullmatch=True), arguments=ARGUMENTS), max_size=3
).map(tuple)
REPLIES = st.builds(
    ScriptedReply,
    text=TEXTS,
    tools=CALLS,
    usage=st.none() | st.builds(Usage, input=st.integers(0, 10**6), output=st.integers(0, 10**6)),
)
Completed = tuple[str, list[tuple[str, Any]], str]


def result(reply: ScriptedReply, stop: str) -> Completed:
    return reply.text, [(tool.name, tool.arguments) for tool in reply.tools], stop


async def through_openai(reply: ScriptedReply, *, stream: bool) -> Completed:
    async with openai_client(ScriptUpstream(Script.of(reply))) as client:
        asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
        if not stream:
            done = await client.chat.completions.create(**asked)
        else:
            options: Any = {"include_usage": True}
            async with client.chat.completions.stream(**asked, stream_options=options) as events:
                done = await events.get_final_completion()
    assert done.usage is not None
    if reply.usage is not None:
        assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (reply.usage.input, reply.usage.output)
    (choice,) = done.choices
    functions = [call.function for call in choice.message.tool_calls or () if call.type == "function"]
    calls = [(function.name, json.loads(function.arguments)) for function in functions]
    return choice.message.content or "", calls, choice.finish_reason


async def through_anthropic(reply: ScriptedReply, *, stream: bool) -> Completed:
    async with anthropic_client(ScriptUpstream(Script.of(reply))) as client:
        asked: dict[str, Any] = {
            "model": "m",
            "max_tokens": 99,
            "messages": [{"role": "user", "content": "hello"}],
        }
        if not stream:
            done = await client.messages.create(**asked)
        else:
            async with client.messages.stream(**asked) as events:
                done = await events.get_final_message()
    if reply.usage is not None:
        assert (done.usage.input_tokens, done.usage.output_tokens) == (reply.usage.input, reply.usage.output)
    text = "".join(block.text for block in done.content if block.type == "text")
    calls = [(block.name, block.input) for block in done.content if block.type == "tool_use"]
    return text, calls, done.stop_reason or ""


@settings(max_examples=examples(40), deadline=None)
@given(reply=REPLIES, stream=st.booleans())
def test_the_openai_client_reads_the_scripted_reply(reply: ScriptedReply, stream: bool) -> None:
    expected = result(reply, "tool_calls" if reply.tools else "stop")
    assert asyncio.run(through_openai(reply, stream=stream)) == expected


@settings(max_examples=examples(40), deadline=None)
@given(reply=REPLIES, stream=st.booleans())
def test_the_anthropic_client_reads_the_scripted_reply(reply: ScriptedReply, stream: bool) -> None:
    expected = result(reply, "tool_use" if reply.tools else "end_turn")
    assert asyncio.run(through_anthropic(reply, stream=stream)) == expected


@settings(max_examples=examples(100), deadline=None)
@given(reply=REPLIES, dialect=st.sampled_from(["openai", "anthropic"]), stream=st.booleans())
def test_a_rendered_reply_decodes_to_the_same_reply(reply: ScriptedReply, dialect: Dialect, stream: bool) -> None:
    body = b"".join(render(DIALECTS[dialect], reply, model="m", stream=stream, usage_chunk=True))
    found = decode_body(DIALECTS[dialect], body, stream=stream)
    assert result(found, "") == result(reply, "")
    assert found.why == reply.why
    assert all(call.id for call in found.tools)


@pytest.mark.parametrize("stop", ["length", "refusal"])
async def test_other_ends_have_the_words_of_their_dialect(stop: Any) -> None:
    reply = ScriptedReply(text="so", stop=stop)
    words = {"length": ("length", "max_tokens"), "refusal": ("content_filter", "refusal")}
    body = b"".join(render(DIALECTS["openai"], reply, model="m", stream=False))
    assert json.loads(body)["choices"][0]["finish_reason"] == words[stop][0]
    assert (await through_anthropic(reply, stream=True))[2] == words[stop][1]


def test_streamed_arguments_come_in_pieces_and_usage_only_when_asked_for() -> None:
    reply = ScriptedReply(tools=(ScriptedCall(name="write", arguments={"path": "a" * 40}),))
    plain = list(render(DIALECTS["openai"], reply, model="m", stream=True))
    assert sum(b'"arguments"' in piece for piece in plain) > 3
    assert plain[-1] == b"data: [DONE]\n\n"
    assert not [piece for piece in plain if b"usage" in piece]
    assert b'"usage"' in list(render(DIALECTS["openai"], reply, model="m", stream=True, usage_chunk=True))[-2]
    kinds = [
        event.event
        for event in parse_events(b"".join(render(DIALECTS["anthropic"], reply, model="m", stream=True)))
    ]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_tool_arguments_that_are_not_json_are_sent_unchanged() -> None:
    reply = ScriptedReply(tools=(ScriptedCall(name="write", arguments='{"path": '),))
    found = decode_body(
        DIALECTS["openai"], b"".join(render(DIALECTS["openai"], reply, model="m", stream=True)), stream=True
    )
    assert found.tools[0].arguments == '{"path": '


async def test_an_exhausted_script_raises_a_status_error_in_the_client() -> None:
    nothing = ScriptUpstream(Script(lines=()))
    async with openai_client(nothing) as client:
        with pytest.raises(openai.APIStatusError, match="no line for attempt 1, turn 1") as caught:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])
    assert (caught.value.status_code, caught.value.code) == (410, "script_exhausted")


@given(
    events=st.lists(
        st.tuples(
            st.sampled_from(["", "ping", "x"]),
            st.text(st.characters(codec="utf-8", exclude_characters="\r"), min_size=1),
        )
    ),
    end=st.sampled_from([b"\n", b"\r\n"]),
)
def test_events_survive_the_wire(events: list[tuple[str, str]], end: bytes) -> None:
    body = b": hello\n" + b"".join(event_bytes(data, event) for event, data in events) + b"data: half"
    found = [(event.event, event.data) for event in parse_events(body.replace(b"\n", end))]
    assert found == events
