"""The native agent's requests stay as they were recorded, and its readers put a reply's stream together."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from chargehand.agents.contract import Endpoint, EndpointModel
from chargehand.agents.model_messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ReplyCall,
    ReplyText,
    ReplyThinking,
    SystemPromptPart,
    ToolReturnPart,
    UserPromptPart,
    read_response,
)
from chargehand.agents.native.dialects.chat import ChatDialect
from chargehand.agents.native.dialects.messages import MessagesDialect
from chargehand.agents.native.model_client import ModelClient, NotKeptError
from chargehand.agents.tool_specs import ToolSpec
from chargehand.core.errors import ExhaustedError, UpstreamError

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "native_requests.json").read_text())
DIALECTS: dict[str, type[ChatDialect] | type[MessagesDialect]] = {
    "openai": ChatDialect,
    "anthropic": MessagesDialect,
}
REQUEST: list[ModelMessage] = [ModelRequest([UserPromptPart("mend it")])]


def content_of(written: Any) -> Any:
    if isinstance(written, str):
        return written
    pictures = {"img": lambda item: BinaryContent(base64.b64decode(item["data"]), "image/png")}
    return [item if isinstance(item, str) else pictures[item["k"]](item) for item in written]


def part_of(part: dict[str, Any]) -> Any:
    match part["k"]:
        case "system":
            return SystemPromptPart(part["c"])
        case "user":
            return UserPromptPart(content_of(part["c"]))
        case "return":
            return ToolReturnPart(part["name"], content_of(part["c"]), part["id"])
        case "text":
            return ReplyText(part["c"])
        case "thinking":
            return ReplyThinking(part["c"], part["id"], part["sig"], part["prov"])
    return ReplyCall(part["name"], part["args"], part["id"])


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"{case['dialect']}-{case['model']}")
def test_a_request_is_the_one_that_earlier_versions_recorded(case: dict[str, Any]) -> None:
    messages: list[ModelMessage] = [
        (ModelRequest if message["k"] == "request" else ModelResponse)(list(map(part_of, message["parts"])))
        for message in case["messages"]
    ]
    tools = [ToolSpec(name=name, description=text, parameters=schema) for name, text, schema in case["tools"]]
    body = DIALECTS[case["dialect"]](case["model"]).write(messages, tools, case["max_output"])
    assert json.loads(json.dumps(body)) == case["body"]


def chat(*deltas: dict[str, Any], finish: str | None = "stop", **last: Any) -> bytes:
    chunks = [{"model": "served", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks += [{"choices": [{"index": 0, "delta": {}, "finish_reason": finish}], **last}]
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"


def events(*given: dict[str, Any]) -> bytes:
    return b"".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in given)


def call(index: int | None, name: str | None, arguments: Any, id: str | None = None) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": index, "id": id, "function": function}]}


async def ask(
    content: bytes, *, status: int = 200, dialect: Any = "openai", kept: bool = False
) -> tuple[ModelResponse, str]:
    """Return the reply that a stream is read as, and the text shown meanwhile."""

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == "Bearer secret"
        assert ("x-chargehand-kept" in request.headers) == kept
        return httpx.Response(status, content=content)

    shown: list[str] = []
    endpoint = Endpoint(socket=Path("s"), token="secret", models=(), environment={}, revoke=lambda: None)
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://gateway") as http:
        model = EndpointModel(name="m", dialect=dialect)
        reply = await ModelClient(endpoint, http).request(model, REQUEST, (), on_text=shown.append, kept=kept)
    return reply, "".join(shown)


async def test_text_reasoning_and_calls_of_a_chat_are_parts_in_their_order() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3}}
    reply, shown = await ask(
        chat(
            {"reasoning_content": "hm, "},
            {"reasoning_content": "so"},
            {"content": "I look <\u200d|im_end|>"},
            call(0, "bash", '{"a":', "c1"),
            call(0, None, "1}"),
            call(1, "read", "", "c2"),
            {"content": "after"},
            finish="tool_calls",
            usage=usage,
        )
    )
    assert reply.parts == [
        ReplyThinking("hm, so", "reasoning_content", None, "gateway"),
        ReplyText("I look <|im_end|>"),
        ReplyCall("bash", '{"a":1}', "c1"),
        ReplyCall("read", "", "c2"),
        ReplyText("after"),
    ]
    assert (reply.model_name, reply.finish_reason, shown) == ("served", "tool_call", "I look <|im_end|>after")
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.cache_read_tokens) == (10, 5, 3)


@pytest.mark.parametrize(
    ("deltas", "finish", "parts", "reason"),
    [
        ([{"content": "<think>"}, {"content": "hm"}, {"content": "</think>"}, {"content": "a"}], "length",
         [ReplyThinking("hm", "content", None, "gateway"), ReplyText("a")], "length"),
        ([{"refusal": "no"}], "stop", [], "content_filter"),
        ([{"content": [{"type": "text", "text": "a"}]}], None, [ReplyText("a")], "stop"),
        ([call(None, "a", "{}", "1"), call(None, "b", {"x": 1}, "2")], "tool_calls",
         [ReplyCall("a", "{}", "1"), ReplyCall("b", {"x": 1}, "2")], "tool_call"),
        ([call(0, None, "{}", "1")], "tool_calls", [], "tool_call"),
    ],
    ids=["tags", "refusal", "list", "no index", "no name"],
)  # fmt: skip
async def test_odd_chats_are_read(
    deltas: list[dict[str, Any]], finish: Any, parts: list[Any], reason: str
) -> None:
    reply, _ = await ask(chat(*deltas, finish=finish))
    assert (reply.parts, reply.finish_reason) == (parts, reason)


async def test_a_message_keeps_its_signed_reasoning_and_its_calls() -> None:
    start = {"model": "served", "usage": {"input_tokens": 10, "cache_read_input_tokens": 3}}

    def block(index: int, opened: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
        more = [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        return [{"type": "content_block_start", "index": index, "content_block": opened}, *more]

    reply, shown = await ask(
        events(
            {"type": "message_start", "message": start},
            *block(
                0,
                {"type": "thinking", "thinking": "", "signature": ""},
                {"type": "thinking_delta", "thinking": "hm"},
                {"type": "signature_delta", "signature": "signed"},
            ),
            *block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "I look"}),
            *block(
                2,
                {"type": "tool_use", "id": "t1", "name": "bash", "input": {}},
                {"type": "input_json_delta", "partial_json": '{"a":1}'},
            ),
            *block(3, {"type": "tool_use", "id": "t2", "name": "read", "input": {}}),
            *block(4, {"type": "redacted_thinking", "data": "xx"}),
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 7}},
            {"type": "message_stop"},
        ),
        dialect="anthropic",
    )
    assert reply.parts == [
        ReplyThinking("hm", None, "signed", "anthropic"),
        ReplyText("I look"),
        ReplyCall("bash", '{"a":1}', "t1"),
        ReplyCall("read", None, "t2"),
        ReplyThinking("", "redacted_thinking", "xx", "anthropic"),
    ]
    assert (reply.model_name, reply.finish_reason, shown) == ("served", "tool_call", "I look")
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (13, 7)


ERROR = {"message": "no\n money", "code": "budget_exhausted"}


@pytest.mark.parametrize(
    ("content", "status", "dialect", "error", "code"),
    [
        (json.dumps({"error": ERROR}).encode(), 402, "openai", ExhaustedError, "budget"),
        (json.dumps({"error": {**ERROR, "code": "quota_exhausted"}}).encode(), 429, "openai", UpstreamError,
         "quota_exhausted"),
        (json.dumps({"error": {"message": "maximum context length is 9"}}).encode(), 400, "openai", UpstreamError,
         "context"),
        (b"<html>oops", 502, "openai", UpstreamError, "model_failed"),
        (b"data: " + json.dumps({"error": ERROR}).encode() + b"\n\n", 200, "openai", ExhaustedError, "budget"),
        (events({"type": "message_start", "message": {}}, {"type": "error", "error": {"message": "boom"}}), 200,
         "anthropic", UpstreamError, "upstream_cut"),
        (b"", 200, "openai", UpstreamError, "upstream_malformed"),
        (b"data: [1]\n\n", 200, "openai", UpstreamError, "upstream_malformed"),
        (b'data: {"choices": "x"}\n\n', 200, "openai", UpstreamError, "upstream_malformed"),
        (b"data: {no\n\n", 200, "openai", UpstreamError, "model_failed"),
        (chat(call(0, "a", [1])), 200, "openai", UpstreamError, "upstream_malformed"),
        (events({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}), 200,
         "anthropic", UpstreamError, "upstream_malformed"),
    ],
)  # fmt: skip
async def test_the_gateways_code_decides_what_an_error_is(
    content: bytes, status: int, dialect: str, error: type[UpstreamError], code: str
) -> None:
    with pytest.raises(error) as found:
        await ask(content, status=status, dialect=dialect)
    assert found.value.code == code
    assert "\n" not in found.value.message
    with pytest.raises(NotKeptError):
        await ask(content, status=status, dialect=dialect, kept=True)


def test_a_reply_recorded_by_an_earlier_version_is_read() -> None:
    old = {
        "parts": [
            {"content": "a", "id": None, "provider_details": None, "citations": None, "part_kind": "text"},
            {"content": {"x": 1}, "tool_name": "web_search", "part_kind": "builtin-tool-return"},
            {
                "tool_name": "bash",
                "args": {"a": 1},
                "tool_call_id": "c",
                "tool_kind": None,
                "part_kind": "tool-call",
            },
        ],
        "usage": {"input_tokens": 1, "cost": None, "details": {}},
        "kind": "response",
    }
    assert read_response(old).parts == [ReplyText("a"), ReplyCall("bash", {"a": 1}, "c")]
