"""Conversations and replies through each pair of dialects: nothing that was said is lost."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import examples

from chargehand.models.contract import Dialect, ModelCall, UpstreamReply, Usage
from chargehand.models.conversation import (
    ConversationTurn,
    FilePart,
    NeutralReply,
    NeutralRequest,
    OfferedTool,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    UntranslatableError,
    fold_reply,
    join_turns,
    reply_deltas,
)
from chargehand.models.dialects.translation import TranslatingUpstream, read_event_data
from chargehand.models.event_stream import EventSplitter
from chargehand.models.registries import DIALECTS

ALL: tuple[Dialect, ...] = ("openai", "anthropic", "responses", "gemini")
QUICK = settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
PAIRS = [(one, other) for one in ALL for other in ALL if one != other]
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=30)
NAMES = st.from_regex(r"[a-z_]{1,12}", fullmatch=True)
LEAVES = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | WORDS
OBJECTS = st.dictionaries(WORDS, LEAVES | st.lists(LEAVES, max_size=3), max_size=3)
IMAGES = st.builds(
    FilePart,
    media_type=st.sampled_from(["image/png", "image/jpeg"]),
    data=st.binary(min_size=1, max_size=20).map(lambda raw: base64.b64encode(raw).decode()),
)
TEXTS = st.builds(TextPart, text=WORDS)


@st.composite
def rounds(draw: st.DrawFn, number: int) -> list[ConversationTurn]:
    """Draw one question, perhaps with tool calls and their results."""
    found = [ConversationTurn(role="user", parts=tuple(draw(st.lists(TEXTS | IMAGES, min_size=1, max_size=3))))]
    said = draw(st.lists(TEXTS, max_size=1))
    calls = [
        ToolCallPart(id=f"call_{number}_{n}", name=name, arguments=json.dumps(arguments))
        for n, (name, arguments) in enumerate(draw(st.lists(st.tuples(NAMES, OBJECTS), max_size=3)))
    ]
    found.append(ConversationTurn(role="assistant", parts=(*said, *calls)))
    results = [
        ToolResultPart(
            id=call.id, content=tuple(draw(st.lists(TEXTS, max_size=1)) + draw(st.lists(IMAGES, max_size=1)))
        )
        for call in calls
    ]
    return [*found, ConversationTurn(role="user", parts=tuple(results))]


@st.composite
def conversations(draw: st.DrawFn) -> NeutralRequest:
    turns = [turn for n in range(draw(st.integers(1, 3))) for turn in draw(rounds(n))]
    tools = [OfferedTool(name=f"t{n}", description=draw(WORDS), schema={"type": "object"}) for n in range(2)]
    return NeutralRequest(
        turns=join_turns(turns),
        system=tuple(draw(st.lists(WORDS, max_size=2))),
        tools=tuple(tools),
        choice=draw(st.sampled_from([None, "auto", "none", "required"])),
        limit=draw(st.none() | st.integers(1, 9_999)),
        stream=draw(st.booleans()),
    )


Gist = tuple[Any, ...]


def gist(asked: NeutralRequest) -> Gist:
    """Return everything that must not be lost, wherever it is in a turn: words, calls, results, pictures."""
    parts = [part for turn in asked.turns for part in turn.parts]
    results = [part for part in parts if isinstance(part, ToolResultPart)]
    calls = [part for part in parts if isinstance(part, ToolCallPart)]
    return (
        "\n\n".join(asked.system),
        [(turn.role, "".join(p.text for p in turn.parts if isinstance(p, TextPart))) for turn in asked.turns],
        [(call.id, call.name, json.loads(call.arguments or "{}")) for call in calls],
        [(result.id, result.name, result.text) for result in results],
        sorted(blob.data for part in parts for blob in ([part] if isinstance(part, FilePart) else ())),
        sorted(blob.data for result in results for blob in result.blobs),
        [(tool.name, tool.description, dict(tool.schema)) for tool in asked.tools],
        (asked.choice, asked.stream),
    )


def moved(asked: NeutralRequest) -> Gist:
    """Return the gist if pictures of results may follow the results, under a line that names the call."""
    words, calls, results, tools = gist(asked)[1], gist(asked)[2], gist(asked)[3], gist(asked)[6]
    said = []
    for role, text in words:
        for _, call in [(0, call[0]) for call in calls]:
            text = text.replace(f"What tool call {call} returned beside its text:", "")
        said.append((role, text))
    images = sorted([*gist(asked)[4], *gist(asked)[5]])
    return (gist(asked)[0], [one for one in said if one[1]], calls, results, images, tools, gist(asked)[7])


@pytest.mark.parametrize(("one", "other"), PAIRS)
@QUICK
@given(asked=conversations())
def test_a_conversation_survives_each_pair(one: Dialect, other: Dialect, asked: NeutralRequest) -> None:
    first = DIALECTS[one].read_request(DIALECTS[one].write_request(asked, "m").body)
    there = DIALECTS[other].read_request(DIALECTS[other].write_request(first, "m").body)
    back = DIALECTS[one].read_request(DIALECTS[one].write_request(there, "m").body)
    assert moved(there) == moved(asked)
    assert moved(back) == moved(asked)
    assert there.limit == asked.limit or {one, other} & {"anthropic"}


@pytest.mark.parametrize("dialect", ["anthropic", "responses"])
@QUICK
@given(asked=conversations())
def test_images_in_tool_results_keep_their_place_if_the_dialect_has_it(
    dialect: Dialect, asked: NeutralRequest
) -> None:
    assert gist(DIALECTS[dialect].read_request(DIALECTS[dialect].write_request(asked, "m").body)) == gist(asked)


CALLS = st.lists(st.tuples(NAMES, OBJECTS), max_size=3).map(
    lambda made: tuple(
        ToolCallPart(id=f"call_{n}", name=name, arguments=json.dumps(arguments))
        for n, (name, arguments) in enumerate(made)
    )
)
COUNTS = st.integers(0, 10**6)
REPLIES = st.builds(
    NeutralReply,
    text=st.just("") | WORDS,
    thoughts=st.just("") | WORDS,
    calls=CALLS,
    stop=st.sampled_from(["end", "length", "refusal"]),
    usage=st.builds(Usage, input=st.integers(10**6, 10**7), output=COUNTS, cached=COUNTS),
)


class Provider:
    """A provider that answers every call with one reply, in the dialect of the call, in pieces of any size."""

    def __init__(self, said: NeutralReply, cut: int) -> None:
        self.said, self.cut = said, cut

    async def send(self, call: ModelCall) -> UpstreamReply:
        writer = DIALECTS[call.dialect].reply_writer("up", "r")
        if call.stream:
            body = b"".join(writer.write_delta(piece) for piece in reply_deltas(self.said))
            kind = "text/event-stream"
        else:
            body, kind = json.dumps(writer.write_whole(self.said)).encode(), "application/json"
        return UpstreamReply(status=200, headers={"content-type": kind}, chunks=self._chunks(body))

    async def _chunks(self, body: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(body), self.cut):
            yield body[start : start + self.cut]

    async def close(self) -> None:
        pass


def spoken(said: NeutralReply) -> Gist:
    calls = [(call.id, call.name, json.loads(call.arguments or "{}")) for call in said.calls]
    usage = said.usage
    stop = "tools" if said.calls and said.stop in ("end", "tools") else said.stop
    return said.text, said.thoughts, calls, stop, usage.input, usage.output, usage.cached or 0


@pytest.mark.parametrize(("client", "upstream"), PAIRS)
@QUICK
@given(said=REPLIES, stream=st.booleans(), cut=st.integers(1, 200))
def test_a_reply_survives_each_pair(
    client: Dialect, upstream: Dialect, said: NeutralReply, stream: bool, cut: int
) -> None:
    asked = NeutralRequest(turns=(ConversationTurn(role="user", parts=(TextPart(text="hi"),)),), stream=stream)
    sent = DIALECTS[client].write_request(asked, "m").body
    call = ModelCall(id="c", dialect=client, body=sent, attempt="a", turn=1)

    async def answered() -> tuple[bytes, Usage]:
        reply = await TranslatingUpstream(Provider(said, cut), upstream, DIALECTS).send(call)
        body = b"".join([piece async for piece in reply.chunks])
        assert reply.meter is not None
        return body, reply.meter().usage

    body, usage = asyncio.run(answered())
    reader = DIALECTS[client].reply_reader("s")
    if stream:
        split = EventSplitter()
        pieces = [piece for event in split.feed(body) for piece in reader.read_event(read_event_data(event))]
        pieces += reader.finish()
    else:
        pieces = reader.read_whole(json.loads(body))
    assert spoken(fold_reply(pieces)) == spoken(said)
    assert (usage.input, usage.output) == (said.usage.input, said.usage.output)


@pytest.mark.parametrize(
    ("dialect", "body", "what"),
    [
        ("openai", {"messages": [], "n": 2}, "n"),
        ("openai", {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input_audio"),
        ("anthropic", {"messages": [{"role": "user", "content": [{"type": "search_result"}]}]}, "search_result"),
        ("responses", {"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
        ("gemini", {"contents": [{"parts": [{"executableCode": {}}]}]}, ""),
        ("gemini", {"contents": [{"parts": [{"videoMetadata": {"fps": 1}}]}]}, "videoMetadata"),
    ],
)
def test_an_untranslatable_feature_is_an_error_with_its_name(dialect: Dialect, body: Any, what: str) -> None:
    with pytest.raises(UntranslatableError) as caught:
        DIALECTS[dialect].read_request(body)
    assert what in caught.value.what


def test_a_plain_text_tool_is_translated_to_a_function_and_back() -> None:
    tools = [{"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "definition": "start: x"}}]
    body = {"model": "m", "input": "hi", "tools": tools, "stream": True}
    said = NeutralReply(
        calls=(ToolCallPart(id="c1", name="apply_patch", arguments=json.dumps({"input": "*** Begin"})),)
    )
    seen: list[ModelCall] = []

    class Keeping(Provider):
        async def send(self, call: ModelCall) -> UpstreamReply:
            seen.append(call)
            return await super().send(call)

    async def answered() -> bytes:
        call = ModelCall(id="c", dialect="responses", body=body, attempt="a", turn=1)
        reply = await TranslatingUpstream(Keeping(said, 9), "openai", DIALECTS).send(call)
        return b"".join([piece async for piece in reply.chunks])

    out = asyncio.run(answered())
    assert "start: x" in seen[0].body["tools"][0]["function"]["description"]
    assert b'"custom_tool_call","call_id":"c1"' in out
    assert b'"input":"*** Begin"' in out
