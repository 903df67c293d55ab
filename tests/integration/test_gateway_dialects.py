"""Every dialect's real clients against every dialect's models: the official SDKs and pydantic-ai, with tools."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.tools import ToolDefinition
from tests.late import LateModule

from chargehand.core.redaction import Redactor
from chargehand.models.contract import CallListeners, CallRecord, Dialect, ModelUpstream, Price, ServedModel, Usage
from chargehand.models.faults import Faults
from chargehand.models.faulty_upstream import FaultyUpstream
from chargehand.models.gateway import Gateway, GatewayLimits, ServedAttempt
from chargehand.models.metering import MemoryLedger
from chargehand.models.recording import Recording, RecordingUpstream, RecordingWriter
from chargehand.models.replay import ReplayUpstream
from chargehand.models.script_upstream import ScriptUpstream
from chargehand.models.scripted_replies import ScriptedCall, ScriptedReply
from chargehand.models.scripts import Script

anthropic, openai, genai = LateModule("anthropic"), LateModule("openai"), LateModule("google.genai")
errors, types = LateModule("google.genai.errors"), LateModule("google.genai.types")
pytestmark = pytest.mark.usefixtures("shared_trust")
DIALECTS: tuple[Dialect, ...] = ("openai", "anthropic", "responses", "gemini")
SOME = [(one, DIALECTS[(place + step) % 4]) for place, one in enumerate(DIALECTS) for step in (0, 1)]
"""Each client with its own dialect and with one other: they stand for the rest where all went through before."""
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
PRICE = Price(input=1.0, output=10.0)
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)
SHOWN = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
SAID = (
    ScriptedReply(text="I look first.", tools=(ScriptedCall(name="add", arguments={"a": 1}, id="call_1"),)),
    ScriptedReply(text="hello wörld", usage=Usage(input=100, output=3)),
)


def script() -> ScriptUpstream:
    return ScriptUpstream(Script.of(*SAID))


@asynccontextmanager
async def served(
    dialect: Dialect, upstream: ModelUpstream, *, limit: float | None = 1.0
) -> AsyncIterator[tuple[str, str, list[CallRecord]]]:
    records: list[CallRecord] = []
    model = ServedModel(name="m", dialect=dialect, model="up", upstream=upstream, price=PRICE)
    async with Gateway(
        [model],
        ServedAttempt(id="a-1", ledger=MemoryLedger(limit)),
        CallListeners(on_call=records.append),
        limits=GatewayLimits(retries=0),
    ) as gateway:
        port = await gateway.listen_tcp()
        yield f"http://127.0.0.1:{port}", gateway.token, records


Talk = tuple[list[str], list[tuple[str, str, Any]]]


async def through_chat(url: str, token: str, *, stream: bool) -> Talk:
    tools: Any = [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]
    picture = {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{base64.b64encode(PNG).decode()}"},
    }
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": "hi"}, picture]}]
    texts, calls = [], []
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=token, max_retries=0) as client:
        for _ in SAID:
            asked: Any = {"model": "m", "messages": messages, "tools": tools}
            if stream:
                async with client.chat.completions.stream(**asked) as events:
                    reply = (await events.get_final_completion()).choices[0].message
            else:
                reply = (await client.chat.completions.create(**asked)).choices[0].message
            texts.append(reply.content or "")
            made: Any = [call for call in reply.tool_calls or [] if call.type == "function"]
            calls += [(call.id, call.function.name, json.loads(call.function.arguments)) for call in made]
            messages = [
                *messages,
                {
                    "role": "assistant",
                    "content": reply.content,
                    "tool_calls": [
                        {
                            "id": call.id,
                            "type": "function",
                            "function": {"name": call.function.name, "arguments": call.function.arguments},
                        }
                        for call in made
                    ],
                },
                *({"role": "tool", "tool_call_id": call.id, "content": "it is 2"} for call in made),
            ]
    return texts, calls


async def through_messages(url: str, token: str, *, stream: bool) -> Talk:
    tools: Any = [{"name": "add", "input_schema": SCHEMA}]
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()}
    messages: Any = [
        {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image", "source": source}]}
    ]
    texts, calls = [], []
    async with anthropic.AsyncAnthropic(base_url=url, api_key=token, max_retries=0) as client:
        for _ in SAID:
            asked: Any = {
                "model": "m",
                "max_tokens": 60_000 if stream else 999,
                "messages": messages,
                "tools": tools,
            }
            if stream:
                async with client.messages.stream(**asked) as events:
                    reply = await events.get_final_message()
            else:
                reply = await client.messages.create(**asked)
            texts.append("".join(block.text for block in reply.content if block.type == "text"))
            made = [block for block in reply.content if block.type == "tool_use"]
            calls += [(block.id, block.name, block.input) for block in made]
            results = [{"type": "tool_result", "tool_use_id": block.id, "content": "it is 2"} for block in made]
            content = [block.model_dump(exclude_none=True) for block in reply.content]
            messages = [*messages, {"role": "assistant", "content": content}, {"role": "user", "content": results}]
        count = await client.messages.count_tokens(model="m", messages=messages[:1])
        assert count.input_tokens > 10
    return texts, calls


async def through_responses(url: str, token: str, *, stream: bool) -> Talk:
    tools: Any = [{"type": "function", "name": "add", "parameters": SCHEMA, "strict": False}]
    picture = {"type": "input_image", "image_url": SHOWN}
    items: Any = [{"role": "user", "content": [{"type": "input_text", "text": "hi"}, picture]}]
    texts, calls = [], []
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=token, max_retries=0) as client:
        for _ in SAID:
            asked: Any = {"model": "m", "input": items, "tools": tools}
            if stream:
                async with client.responses.stream(**asked) as events:
                    kinds = [event.type async for event in events]
                    reply: Any = await events.get_final_response()
                assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
            else:
                reply = await client.responses.create(**asked)
            texts.append(reply.output_text)
            made = [item for item in reply.output if item.type == "function_call"]
            calls += [(item.call_id, item.name, json.loads(item.arguments)) for item in made]
            items = [
                *items,
                *(
                    {k: v for k, v in item.model_dump(exclude_none=True).items() if k[0] != "p"}
                    for item in reply.output
                ),
                *({"type": "function_call_output", "call_id": i.call_id, "output": "it is 2"} for i in made),
            ]
    return texts, calls


@asynccontextmanager
async def gemini_client(url: str, token: str) -> AsyncIterator[genai.Client]:
    client = genai.Client(api_key=token, http_options=types.HttpOptions(base_url=url))
    try:
        yield client
    finally:
        await client.aio.aclose()
        client.close()


async def through_gemini(url: str, token: str, *, stream: bool) -> Talk:
    declared = types.FunctionDeclaration(name="add", parameters_json_schema=SCHEMA)
    config = types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=[declared])],
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    first = [types.Part(text="hi"), types.Part.from_bytes(data=PNG, mime_type="image/png")]
    contents: list[Any] = [types.Content(role="user", parts=first)]
    texts, calls = [], []
    async with gemini_client(url, token) as made_client:
        client = made_client.aio
        for _ in SAID:
            parts: list[types.Part] = []
            if stream:
                async for piece in await client.models.generate_content_stream(
                    model="m", contents=contents, config=config
                ):
                    parts += _parts(piece)
            else:
                parts = _parts(await client.models.generate_content(model="m", contents=contents, config=config))
            texts.append("".join(part.text or "" for part in parts))
            made = [part.function_call for part in parts if part.function_call]
            calls += [(call.id or "", call.name or "", call.args) for call in made]
            results = [
                types.Part(
                    function_response=types.FunctionResponse(
                        id=call.id, name=call.name, response={"output": "it is 2"}
                    )
                )
                for call in made
            ]
            contents += [types.Content(role="model", parts=parts)]
            contents += [types.Content(role="user", parts=results)] if results else []
        counted = await client.models.count_tokens(model="m", contents=contents[:1])
        assert (counted.total_tokens or 0) > 10
    return texts, calls


def _parts(reply: types.GenerateContentResponse) -> list[types.Part]:
    (candidate,) = reply.candidates or ()
    return list((candidate.content and candidate.content.parts) or ())


OFFICIAL = {
    "openai": through_chat,
    "anthropic": through_messages,
    "responses": through_responses,
    "gemini": through_gemini,
}
EXPECTED: Talk = (["I look first.", "hello wörld"], [("call_1", "add", {"a": 1})])


@pytest.mark.parametrize("upstream", DIALECTS)
@pytest.mark.parametrize("client", DIALECTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_official_client_of_each_dialect_works_with_a_model_of_each(
    client: Dialect, upstream: Dialect, stream: bool
) -> None:
    provider = script()
    async with served(upstream, provider) as (url, token, records):
        assert await OFFICIAL[client](url, token, stream=stream) == EXPECTED
    replies = [record for record in records if record.usage.output]
    assert [record.status for record in replies] == ["ok", "ok"]
    assert replies[1].cost_usd == pytest.approx(130e-6)
    (_, second) = [call for call in provider.calls if call.operation == "reply"]
    assert "it is 2" in json.dumps(second.body)
    assert base64.b64encode(PNG).decode() in json.dumps(second.body)
    assert {call.dialect for call in provider.calls} == {upstream}


@asynccontextmanager
async def pydantic_model(dialect: Dialect, url: str, token: str) -> AsyncIterator[Model[Any]]:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.google import GoogleProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    if dialect == "gemini":
        async with gemini_client(url, token) as google:
            yield GoogleModel("m", provider=GoogleProvider(client=google))
    elif dialect == "anthropic":
        async with anthropic.AsyncAnthropic(base_url=url, api_key=token, max_retries=0) as client:
            yield AnthropicModel("m", provider=AnthropicProvider(anthropic_client=client))
    else:
        kind = OpenAIChatModel if dialect == "openai" else OpenAIResponsesModel
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=token, max_retries=0) as chat:
            yield kind("m", provider=OpenAIProvider(openai_client=chat))


@pytest.mark.parametrize("upstream", DIALECTS)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_pydantic_ai_works_in_each_dialect_with_a_model_of_each(dialect: Dialect, upstream: Dialect) -> None:
    provider = script()
    tools = ModelRequestParameters(
        function_tools=[ToolDefinition(name="add", description="adds", parameters_json_schema=SCHEMA)]
    )
    prompt = UserPromptPart(content=["hi", BinaryContent(data=PNG, media_type="image/png")])
    messages: list[ModelMessage] = [ModelRequest(parts=[prompt])]
    async with served(upstream, provider) as (url, token, records), pydantic_model(dialect, url, token) as model:
        reply = await model_request(model, messages, model_request_parameters=tools)
        (call,) = [part for part in reply.parts if isinstance(part, ToolCallPart)]
        assert (call.tool_name, call.args_as_dict(), call.tool_call_id) == ("add", {"a": 1}, "call_1")
        result = ToolReturnPart(tool_name="add", content="it is 2", tool_call_id=call.tool_call_id)
        messages += [ModelResponse(parts=reply.parts), ModelRequest(parts=[result])]
        async with model_request_stream(model, messages, model_request_parameters=tools) as stream:
            async for _ in stream:
                pass
        said = stream.get()
    assert "".join(part.content for part in said.parts if isinstance(part, TextPart)) == "hello wörld"
    assert (said.usage.input_tokens, said.usage.output_tokens) == (100, 3)
    assert [record.status for record in records] == ["ok", "ok"]
    assert "it is 2" in json.dumps(provider.calls[1].body)


async def meets(client: Dialect, url: str, token: str, *, stream: bool) -> str:
    """Return a client's error: its HTTP status, the type of another exception, or "nothing"."""
    try:
        await OFFICIAL[client](url, token, stream=stream)
    except openai.APIStatusError as error:
        return str(error.status_code)
    except anthropic.APIStatusError as error:
        return str(error.status_code)
    except errors.APIError as error:
        return str(error.code)
    except (openai.APIError, anthropic.APIError, ValueError, RuntimeError) as error:
        return type(error).__name__
    return "nothing"


@pytest.mark.parametrize(("client", "upstream"), SOME)
@pytest.mark.parametrize(
    ("fault", "stream", "expected"),
    [
        ("400@1", False, "400"),
        ("429@1", False, "429"),
        ("500@1", True, "500"),
        ("malformed@1", False, "502"),
        ("cut@1", False, "502"),
        ("cut/700@1", True, ""),
        ("drip@1", True, "nothing"),
        ("stall/0.01@1", True, "nothing"),
        ("twin-ids@1", False, "nothing"),
        ("big/6000@1", True, "nothing"),
        pytest.param("big/60000@1", True, "nothing", marks=pytest.mark.soak),
    ],
)
async def test_each_fault_is_a_client_error_or_handled_by_the_gateway(
    client: Dialect, upstream: Dialect, fault: str, stream: bool, expected: str
) -> None:
    said = ScriptUpstream(Script.of(ScriptedReply(text="hello " * 200, tools=SAID[0].tools), SAID[1]))
    async with served(upstream, FaultyUpstream(said, Faults.parse(fault))) as (url, token, records):
        met = await meets(client, url, token, stream=stream)
    if not expected:
        # A stream that breaks off never looks complete to a client, and its cost is unknown.
        assert met != "nothing"
        assert records[0].cost_usd is None
        return
    assert met == expected
    assert records[0].status == ("ok" if expected == "nothing" else "failed")


@pytest.mark.parametrize(("client", "upstream"), SOME)
async def test_a_recording_is_replayed_in_each_dialect(tmp_path: Path, client: Dialect, upstream: Dialect) -> None:
    file = tmp_path / "session.jsonl"
    writer = RecordingWriter(file)
    recorded = RecordingUpstream(script(), writer, Redactor())
    async with served(upstream, recorded) as (url, token, _):
        assert await OFFICIAL[client](url, token, stream=True) == EXPECTED
    writer.close()
    recording = Recording.load(file)
    assert {exchange.dialect for exchange in recording.exchanges if exchange.operation == "reply"} == {upstream}
    async with served(upstream, ReplayUpstream(recording), limit=1.0) as (url, token, _):
        assert await OFFICIAL[client](url, token, stream=True) == EXPECTED


@pytest.mark.parametrize("upstream", ["openai", "responses"])
@pytest.mark.parametrize("form", ["float", "base64"])
async def test_openais_client_gets_embeddings(upstream: Dialect, form: Any) -> None:
    async with (
        served(upstream, script()) as (url, token, records),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=token, max_retries=0) as client,
    ):
        made = await client.embeddings.create(model="m", input=["a", "b"], encoding_format=form)
    assert [len(one.embedding) for one in made.data] == ([8, 8] if form == "float" else [44, 44])
    assert made.data[0].embedding != made.data[1].embedding
    assert records[0].cost_usd == pytest.approx(made.usage.prompt_tokens / 1e6)
