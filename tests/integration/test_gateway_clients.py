"""Real clients against a real socket: the official SDKs and pydantic-ai, whole and streamed, with tools."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import ModelRequest, ToolCallPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition
from tests.gateway_kit import (
    DONE,
    PRICE,
    SSE,
    USAGE,
    Reply,
    Scripted,
    anthropic_stream,
    anthropic_whole,
    chunk,
    message,
    openai_stream,
    openai_whole,
)
from tests.late import LateModule

from chargehand.core.errors import UpstreamError
from chargehand.models.contract import CallListeners, CallRecord, Dialect, ServedModel
from chargehand.models.gateway import Gateway, ServedAttempt
from chargehand.models.metering import MemoryLedger

anthropic, openai = LateModule("anthropic"), LateModule("openai")

pytestmark = pytest.mark.usefixtures("shared_trust")
CALL = {"id": "t1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TOOL_USE = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
ADD = ToolDefinition(name="add", description="adds", parameters_json_schema=SCHEMA)
OPENAI_TOOLS: Any = [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]
ANTHROPIC_TOOLS: Any = [{"name": "add", "input_schema": SCHEMA}]
USER: Any = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def served(
    dialect: Dialect, *replies: Reply, limit: float | None = 1.0
) -> AsyncIterator[tuple[str, str, list[CallRecord], Scripted]]:
    upstream = Scripted(*replies)
    records: list[CallRecord] = []
    model = ServedModel(name="m", dialect=dialect, model="up", upstream=upstream, price=PRICE)
    attempt = ServedAttempt(id="a-1", ledger=MemoryLedger(limit))
    async with Gateway([model], attempt, CallListeners(on_call=records.append)) as gateway:
        port = await gateway.listen_tcp()
        yield f"http://127.0.0.1:{port}", gateway.token, records, upstream


def openai_tool_stream() -> list[Any]:
    first = {"index": 0, **CALL, "function": {"name": "add", "arguments": ""}}
    rest = [{"index": 0, "function": {"arguments": part}} for part in ('{"a"', ": 1}")]
    calls = [chunk({"tool_calls": [part]}) for part in (first, *rest)]
    return [*calls, chunk({}, finish="tool_calls"), chunk(None, usage=USAGE), DONE]


async def test_the_openai_client_gets_replies_whole_and_streamed() -> None:
    whole = Reply(pieces=[openai_whole()])
    streamed = Reply(headers=SSE, pieces=openai_stream("he", "llo"))
    async with served("openai", whole, streamed) as (url, token, records, upstream):
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=token) as client:
            reply = await client.chat.completions.create(model="m", messages=USER)
            assert reply.choices[0].message.content == "hello"
            stream = await client.chat.completions.create(model="m", messages=USER, stream=True)
            texts = [piece.choices[0].delta.content or "" async for piece in stream]
            assert [model.id async for model in client.models.list()] == ["m"]
        assert "".join(texts) == "hello"
        assert [record.status for record in records] == ["ok", "ok"]
        assert [record.cost_usd for record in records] == pytest.approx([130e-6, 130e-6])
        assert upstream.calls[1].body["stream_options"] == {"include_usage": True}
        assert {call.body["model"] for call in upstream.calls} == {"up"}


async def test_the_openai_client_gets_tool_calls() -> None:
    whole = Reply(pieces=[openai_whole(tool_calls=[CALL, CALL])])
    streamed = Reply(headers=SSE, pieces=openai_tool_stream())
    async with served("openai", whole, streamed) as (url, token, _, upstream):
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=token) as client:
            reply = await client.chat.completions.create(model="m", messages=USER, tools=OPENAI_TOOLS)
            # Two calls with one id are left for the agent to resolve.
            assert [call.id for call in reply.choices[0].message.tool_calls or []] == ["t1", "t1"]
            arguments = ""
            stream = await client.chat.completions.create(
                model="m", messages=USER, tools=OPENAI_TOOLS, stream=True, stream_options={"include_usage": True}
            )
            usage = None
            async for piece in stream:
                usage = piece.usage or usage
                for choice in piece.choices:
                    for call in choice.delta.tool_calls or []:
                        arguments += (call.function and call.function.arguments) or ""
        assert json.loads(arguments) == {"a": 1}
        assert usage is not None
        assert usage.prompt_tokens == 100
        assert upstream.calls[0].body["tools"] == OPENAI_TOOLS


async def test_the_anthropic_client_gets_replies_whole_and_streamed() -> None:
    whole, streamed = Reply(pieces=[anthropic_whole()]), Reply(headers=SSE, pieces=anthropic_stream("he", "llo"))
    async with served("anthropic", whole, streamed) as (url, token, records, upstream):
        async with anthropic.AsyncAnthropic(base_url=url, api_key=token) as client:
            reply = await client.messages.create(model="m", max_tokens=50, messages=USER)
            assert reply.content[0].type == "text"
            assert reply.content[0].text == "hello"
            async with client.messages.stream(model="m", max_tokens=50, messages=USER) as stream:
                assert "".join([text async for text in stream.text_stream]) == "hello"
            assert [model.id async for model in await client.models.list()] == ["m"]
        # 10 plain, 80 cached at a tenth, 10 written at 1.25, 3 out
        assert [record.cost_usd for record in records] == pytest.approx([60.5e-6] * 2)
        assert records[0].usage.input == 100
        assert upstream.calls[0].headers["anthropic-version"]
        assert upstream.calls[0].body["max_tokens"] == 50


async def test_the_anthropic_client_gets_tool_calls() -> None:
    whole = Reply(pieces=[json.dumps(message([TOOL_USE])).encode()])
    block = {**TOOL_USE, "input": {}}
    streamed = Reply(headers=SSE, pieces=anthropic_stream('{"a"', ": 1}", block=block))
    async with served("anthropic", whole, streamed) as (url, token, *_):
        client = anthropic.AsyncAnthropic(base_url=url, auth_token=token, api_key=None)
        async with client:
            reply = await client.messages.create(model="m", max_tokens=50, messages=USER, tools=ANTHROPIC_TOOLS)
            assert reply.content[0].type == "tool_use"
            async with client.messages.stream(
                model="m", max_tokens=50, messages=USER, tools=ANTHROPIC_TOOLS
            ) as stream:
                final = await stream.get_final_message()
            assert final.content[0].type == "tool_use"
            assert final.content[0].input == {"a": 1}


async def test_pydantic_ai_speaks_chat_completions() -> None:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    replies = [
        Reply(pieces=[openai_whole()]),
        Reply(pieces=[openai_whole("", tool_calls=[CALL])]),
        Reply(headers=SSE, pieces=openai_tool_stream()),
    ]
    async with served("openai", *replies) as (url, token, records, _):
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=token)
        async with client:
            model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client))
            await _pydantic_round(model)
        assert [record.turn for record in records] == [1, 2, 3]


async def test_pydantic_ai_speaks_messages() -> None:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    block = {**TOOL_USE, "input": {}}
    replies = [
        Reply(pieces=[anthropic_whole()]),
        Reply(pieces=[json.dumps(message([TOOL_USE])).encode()]),
        Reply(headers=SSE, pieces=anthropic_stream('{"a"', ": 1}", block=block)),
    ]
    async with served("anthropic", *replies) as (url, token, records, _):
        client = anthropic.AsyncAnthropic(base_url=url, api_key=token)
        async with client:
            model = AnthropicModel("m", provider=AnthropicProvider(anthropic_client=client))
            await _pydantic_round(model)
        assert [record.status for record in records] == ["ok", "ok", "ok"]


async def _pydantic_round(model: Any) -> None:
    asked = [ModelRequest.user_text_prompt("hi")]
    tools = ModelRequestParameters(function_tools=[ADD])
    reply = await model_request(model, asked)
    assert reply.text == "hello"
    assert reply.usage.input_tokens == 100
    reply = await model_request(model, asked, model_request_parameters=tools)
    assert [part.args_as_dict() for part in reply.parts if isinstance(part, ToolCallPart)] == [{"a": 1}]
    async with model_request_stream(model, asked, model_request_parameters=tools) as stream:
        async for _ in stream:
            pass
    calls = [part for part in stream.get().parts if isinstance(part, ToolCallPart)]
    assert [part.args_as_dict() for part in calls] == [{"a": 1}]


async def test_an_exhausted_budget_is_an_api_error_of_each_client() -> None:
    whole = Reply(pieces=[openai_whole()])
    async with served("openai", whole, limit=0.0) as (url, token, records, upstream):
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=token) as client:
            with pytest.raises(openai.APIStatusError, match="limit") as caught:
                await client.chat.completions.create(model="m", messages=USER)
        assert (caught.value.status_code, caught.value.code) == (402, "budget_exhausted")
        assert [record.status for record in records] == ["refused"]
        assert upstream.calls == []
    async with served("anthropic", whole, limit=0.0) as (url, token, _, _upstream):
        async with anthropic.AsyncAnthropic(base_url=url, api_key=token) as client:
            with pytest.raises(anthropic.APIStatusError, match="billing_error") as refused:
                await client.messages.create(model="m", max_tokens=50, messages=USER)
        assert refused.value.status_code == 402


async def test_a_cut_stream_is_an_api_error_of_each_client() -> None:
    cut = UpstreamError("it broke", code="upstream_cut")
    async with served("openai", Reply(headers=SSE, pieces=[chunk({"content": "he"}), cut])) as (url, token, *_):
        chat = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=token)
        async with chat:
            stream = await chat.chat.completions.create(model="m", messages=USER, stream=True)
            with pytest.raises(openai.APIError, match="it broke"):
                _ = [piece async for piece in stream]
            await stream.close()
    pieces = [*anthropic_stream("he")[:4], cut]
    async with served("anthropic", Reply(headers=SSE, pieces=pieces)) as (url, token, *_):
        client = anthropic.AsyncAnthropic(base_url=url, api_key=token)
        async with client:
            with pytest.raises(anthropic.APIError, match="it broke"):
                async with client.messages.stream(model="m", max_tokens=50, messages=USER) as events:
                    _ = [text async for text in events.text_stream]
