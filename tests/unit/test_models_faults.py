"""Injected faults: each kind, its schedule, and the error for a wrong specification."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.late import LateModule
from tests.unit._model_clients import anthropic_client, call, document, openai_client, read

from chargehand.core.errors import UpstreamError, UsageError
from chargehand.models.contract import ModelCall, UpstreamReply
from chargehand.models.faults import Fault, Faults
from chargehand.models.faulty_upstream import FaultyUpstream
from chargehand.models.script_upstream import ScriptUpstream
from chargehand.models.scripted_replies import ScriptedCall, ScriptedReply
from chargehand.models.scripts import Script

anthropic, openai = LateModule("anthropic"), LateModule("openai")

TOOLS = ScriptedReply(text="hello there", tools=(ScriptedCall(name="read", arguments={"path": "a"}, id="one"),))
QUESTION: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def faulty(spec: str, *replies: ScriptedReply | str, seed: int = 0) -> FaultyUpstream:
    return FaultyUpstream(ScriptUpstream(Script.of(*(replies or (TOOLS,)))), Faults.parse(spec), seed=seed)


@pytest.mark.parametrize(("spec", "after"), [("429@1", None), ("429/7@1", "7"), ("429/0.5@1", "0.5")])
async def test_a_provider_that_is_busy(spec: str, after: str | None) -> None:
    reply = await faulty(spec).send(call())
    assert (reply.status, reply.headers.get("retry-after")) == (429, after)
    assert "on purpose" in (await document(reply))["error"]["message"]


async def test_injected_http_errors_raise_the_matching_client_exceptions() -> None:
    async with openai_client(faulty("429/7@1,500@2")) as client:
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(**QUESTION)
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(**QUESTION)
    async with anthropic_client(faulty("429@1")) as client:
        with pytest.raises(anthropic.RateLimitError):
            await client.messages.create(**QUESTION, max_tokens=9)


async def test_a_fault_fires_once_in_each_attempt_and_takes_no_reply_from_a_script() -> None:
    upstream = faulty("500@1,429@1", "one", "two")
    again = [(await upstream.send(call(1))).status for _ in range(3)]
    assert again == [500, 429, 200]
    assert (await upstream.send(call(1, attempt="b"))).status == 500
    # A client that retries by itself comes with its next turn.
    replies = [await document(await upstream.send(call(turn, attempt="b"))) for turn in (2, 3)]
    assert [reply["choices"][0]["message"]["content"] for reply in replies] == ["one", "two"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("spec", "length"), [("cut@1", None), ("cut/9@1", 9)])
async def test_a_reply_that_breaks_off(spec: str, length: int | None, stream: bool) -> None:
    whole = await read(await faulty("500@2").send(call(stream=stream)))
    reply = await faulty(spec).send(call(stream=stream))
    assert await reply.chunks.__anext__() == whole[: length or len(whole) // 2]
    with pytest.raises(UpstreamError) as caught:
        await reply.chunks.__anext__()
    assert caught.value.code == "upstream_cut"


async def test_a_reply_in_single_bytes() -> None:
    reply = await faulty("drip@1").send(call(stream=True))
    pieces = [piece async for piece in reply.chunks]
    assert {len(piece) for piece in pieces} == {1}
    async with openai_client(faulty("drip@1")) as client:
        done = await client.chat.completions.create(**QUESTION)
        assert done.choices[0].message.content == "hello there"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_body_that_is_no_json(stream: bool) -> None:
    reply = await faulty("malformed@1").send(call(stream=stream))
    assert reply.status == 200
    with pytest.raises(json.JSONDecodeError):
        json.loads((await read(reply)).decode().removeprefix("data: "))


@pytest.mark.parametrize("stream", [False, True])
async def test_the_twin_ids_fault_gives_two_tool_calls_the_same_id(stream: bool) -> None:
    async with anthropic_client(faulty("twin-ids@1")) as client:
        if stream:
            async with client.messages.stream(**QUESTION, max_tokens=9) as events:
                done = await events.get_final_message()
        else:
            done = await client.messages.create(**QUESTION, max_tokens=9)
    assert [block.id for block in done.content if block.type == "tool_use"] == ["one", "one"]


async def test_two_tool_calls_are_made_up_from_the_tools_that_are_offered() -> None:
    offered = [{"type": "function", "function": {"name": "list", "parameters": {}}}]
    found = await document(await faulty("twin-ids@1", "no call").send(call(tools=offered)))
    calls = found["choices"][0]["message"]["tool_calls"]
    assert [(each["id"], each["function"]["name"]) for each in calls] == [("call_twin", "list")] * 2


@pytest.mark.parametrize(("spec", "size"), [("big@1", 1_000_000), ("big/5000@1", 5000)])
async def test_a_text_of_a_megabyte(spec: str, size: int) -> None:
    found = await document(await faulty(spec).send(call()))
    assert len(found["choices"][0]["message"]["content"]) == size


async def test_a_stalled_reply_times_out_and_a_short_stall_only_delays() -> None:
    reply = await faulty("stall@1").send(call(seconds=0.01))
    with pytest.raises(UpstreamError, match=r"no piece came for 0\.01 seconds") as caught:
        await read(reply)
    assert caught.value.code == "upstream_timeout"
    assert (await document(await faulty("stall/0.01@1").send(call())))["choices"]


async def test_faults_by_chance_are_the_same_for_the_same_seed() -> None:
    async def statuses(seed: int) -> list[int]:
        upstream = faulty("500%0.5", *["x"] * 40, seed=seed)
        return [(await upstream.send(call(turn))).status for turn in range(1, 41)]

    assert await statuses(1) == await statuses(1) != await statuses(2)
    assert set(await statuses(1)) == {200, 500}


async def test_a_reply_that_is_left_early_is_closed_behind_the_fault() -> None:
    class Open:
        closed = False

        async def send(self, call: ModelCall) -> UpstreamReply:
            return UpstreamReply(status=200, headers={}, chunks=self)

        async def close(self) -> None: ...
        def __aiter__(self) -> AsyncIterator[bytes]:
            return self

        async def __anext__(self) -> bytes:
            return b"xx"

        async def aclose(self) -> None:
            self.closed = True

    for read_first in (False, True):
        inner = Open()
        reply = await FaultyUpstream(inner, Faults.parse("drip@1")).send(call())
        if read_first:
            assert await reply.chunks.__anext__() == b"x"
        await reply.chunks.aclose()
        assert inner.closed


async def test_a_reply_that_is_no_json_is_not_retold() -> None:
    inner = faulty("malformed@1")
    assert await read(await FaultyUpstream(inner, Faults.parse("big@1")).send(call()))
    refused = FaultyUpstream(faulty("500@1"), Faults.parse("twin-ids@1"))
    assert (await refused.send(call())).status == 500


def test_a_specification_is_read() -> None:
    spec = "429@1, 429/7@2,cut%0.25"
    assert Faults.parse(spec).entries == (
        Fault(kind="429", turn=1),
        Fault(kind="429", argument=7.0, turn=2),
        Fault(kind="cut", probability=0.25),
    )


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("", "'' is not a fault"),
        ("429", "'429' has no turn or probability"),
        ("429@0", "is not a fault"),
        ("cutt@1", "'cutt' is not a kind"),
        ("200@1", "'200' is not a kind"),
        ("drip/3@1", "takes no argument"),
        ("cut%2", "probability"),
        ("cut%0", "probability"),
        ("429@1,,500@2", "'' is not a fault"),
    ],
)
def test_an_invalid_fault_specification_is_rejected(spec: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        Faults.parse(spec)
    assert caught.value.code == "faults_invalid"
    assert "KIND@TURN" in caught.value.hint
