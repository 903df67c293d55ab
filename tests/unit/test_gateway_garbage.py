"""Replies that violate their dialect: a typed fault, another try, and no part of them is kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.gateway_kit import (
    DONE,
    JSON,
    SSE,
    Piece,
    Reply,
    chunk,
    data,
    event,
    gateway,
    message,
    openai_stream,
    openai_whole,
)

from chargehand.models.contract import Dialect
from chargehand.models.dialects.shapes import CHAT, find_misfit
from chargehand.models.replay_cache import ReplayCache

TOKEN = "cht-0123456789abcdef0123456789abcdef"
TALK = [{"role": "user", "content": "hi"}]
PATHS: dict[Dialect, tuple[str, dict[str, Any]]] = {
    "openai": ("/v1/chat/completions", {"model": "m", "messages": TALK}),
    "anthropic": ("/v1/messages", {"model": "m", "max_tokens": 100, "messages": TALK}),
    "responses": ("/v1/responses", {"model": "m", "input": "hi"}),
    "gemini": ("/v1beta/models/m:generateContent", {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}),
}
BLOCK = event("content_block_start", index=0, content_block="text")
GARBAGE: list[tuple[Dialect, bytes]] = [
    ("openai", chunk({"role": "assistant", "tool_calls": "none"})),
    ("openai", chunk({"tool_calls": ["look"]})),
    ("openai", chunk({"tool_calls": [{"index": [0], "function": {"name": "look"}}]})),
    ("openai", chunk({"tool_calls": [{"index": 0, "function": "look"}]})),
    ("openai", chunk({"tool_calls": [{"index": 0, "function": {"name": 7}}]})),
    ("openai", chunk({"content": 7})),
    ("openai", data({"choices": {"delta": {}}})),
    ("openai", data({"choices": ["a"]})),
    ("openai", data([1, 2])),
    ("openai", data("word")),
    ("openai", b"data: <html><body>Bad gateway</body></html>\n\n"),
    ("openai", b'data: {"choices": [{"delta": {"content": "cut\n\n'),
    ("openai", chunk({"content": "a"}, usage="much")),
    ("anthropic", BLOCK),
    ("anthropic", event("content_block_delta", index=0, delta=["text"])),
    ("anthropic", event("content_block_delta", index="a", delta={"type": "text_delta", "text": "a"})),
    ("anthropic", event("content_block_delta", index=0, delta={"type": "text_delta", "text": {}})),
    ("anthropic", event("message_start", message="hello")),
    ("responses", event("response.output_item.added", output_index=0, item="call")),
    ("responses", event("response.completed", response=[])),
    ("responses", event("response.output_text.delta", delta=7)),
    ("gemini", data({"candidates": "none"})),
    ("gemini", data({"candidates": [{"content": {"parts": "none"}}]})),
    ("gemini", data({"candidates": [{"index": [0], "finishReason": "STOP"}]})),
    ("gemini", data({"candidates": [{"content": {"parts": [{"functionCall": "look"}]}}]})),
]
WHOLE: list[tuple[Dialect, bytes]] = [
    ("openai", b"Bad gateway"),
    ("openai", b'{"choices": [{"message": {"content": "cut'),
    ("openai", b""),
    ("openai", b"null"),
    ("openai", b"[]"),
    ("openai", b"{}"),
    ("openai", b'{"error": {"message": "overloaded"}}'),
    ("openai", openai_whole(tool_calls="none")),
    ("openai", openai_whole(tool_calls=[{"id": "a", "function": {"name": None, "arguments": 7}}])),
    ("anthropic", json.dumps(message(["text"])).encode()),
    ("anthropic", b'{"type": "message", "content": "hello"}'),
    ("anthropic", b'{"type": "error", "error": {"type": "overloaded_error", "message": "overloaded"}}'),
    ("responses", b'{"output": {"type": "message"}}'),
    ("responses", b'{"id": "r", "status": "completed"}'),
    ("gemini", b'{"candidates": [{"content": "hello"}]}'),
    ("gemini", b'{"usageMetadata": {}}'),
]


async def refusals(
    place: Path, dialect: Dialect, replies: Sequence[Reply], *, stream: bool, **options: Any
) -> tuple[int, bytes, int, list[str], int]:
    """Ask once; return status, body, the number of provider calls, the calls' ends, and that of kept replies."""
    path, body = PATHS[dialect]
    if stream:
        path = path.replace("generateContent", "streamGenerateContent") + (
            "?alt=sse" if dialect == "gemini" else ""
        )
        body = body if dialect == "gemini" else {**body, "stream": True}
    file = place / "calls.jsonl"
    calls = ReplayCache(file, secrets={}, token=TOKEN)
    async with gateway(place, *replies, dialect=dialect, limit=None, calls=calls, **options) as running:
        got = await running.post(body, path)
        asked = len(running.upstream.calls)
        ends = [record.status for record in running.records]
    calls.close()
    kept = sum("call" in json.loads(line) for line in file.read_text().splitlines())
    return got.status_code, got.content, asked, ends, kept


@pytest.mark.parametrize("number", range(len(GARBAGE)))
async def test_a_garbage_event_is_the_providers_fault_and_is_never_kept(tmp_path: Path, number: int) -> None:
    dialect, bad = GARBAGE[number]
    status, body, asked, ends, kept = await refusals(
        tmp_path, dialect, [Reply(headers=SSE, pieces=[bad, DONE])], stream=True
    )
    assert (status, kept) == (502, 0), body
    assert b"upstream_malformed" in body
    assert asked > 1, "it is asked again as long as the client has nothing"
    assert set(ends) == {"failed"}


@pytest.mark.parametrize("number", range(len(WHOLE)))
async def test_a_garbage_reply_is_the_providers_fault_and_is_never_kept(tmp_path: Path, number: int) -> None:
    dialect, bad = WHOLE[number]
    status, body, asked, _, kept = await refusals(
        tmp_path, dialect, [Reply(headers=JSON, pieces=[bad])], stream=False
    )
    assert (status, kept) == (502, 0), body
    assert b"upstream_malformed" in body
    assert asked > 1


async def test_a_valid_retry_replaces_an_invalid_reply(tmp_path: Path) -> None:
    bad = Reply(headers=SSE, pieces=[chunk({"tool_calls": "none"}), DONE])
    good = Reply(headers=SSE, pieces=openai_stream("hello"))
    status, body, asked, ends, kept = await refusals(tmp_path, "openai", [bad, good], stream=True)
    assert (status, asked, ends, kept) == (200, 2, ["failed", "ok"], 1)
    assert b"hello" in body
    assert b"none" not in body


async def test_garbage_in_the_middle_ends_the_stream_with_an_error(tmp_path: Path) -> None:
    pieces: list[Piece] = [chunk({"content": "half"}), chunk({"tool_calls": "none"}), chunk({"content": "more"})]
    status, body, asked, ends, kept = await refusals(
        tmp_path, "openai", [Reply(headers=SSE, pieces=pieces)], stream=True
    )
    assert (status, asked, ends, kept) == (200, 1, ["cut"], 0)
    assert b"half" in body
    assert b"upstream_malformed" in body
    assert b"none" not in body
    assert b"more" not in body


async def test_a_whole_reply_is_no_stream(tmp_path: Path) -> None:
    status, body, _, _, kept = await refusals(
        tmp_path, "openai", [Reply(headers=JSON, pieces=[openai_whole()])], stream=True
    )
    assert (status, kept) == (502, 0), body


async def test_a_silent_provider_is_asked_once_more(tmp_path: Path) -> None:
    never = asyncio.Event()
    silent = Reply(headers=SSE, pieces=[never])
    status, body, asked, _, _ = await refusals(tmp_path, "openai", [silent], stream=True, call_seconds=0.05)
    assert (status, asked) == (504, 2), body
    good = Reply(headers=SSE, pieces=openai_stream("hello"))
    place = tmp_path / "again"
    place.mkdir()
    status, body, asked, _, _ = await refusals(place, "openai", [silent, good], stream=True, call_seconds=0.05)
    assert (status, asked) == (200, 2), body


@pytest.mark.parametrize("stream", [True, False])
async def test_garbage_that_an_earlier_version_kept_is_not_given_again(tmp_path: Path, stream: bool) -> None:
    path, body = PATHS["openai"]
    body = {**body, "stream": True} if stream else body
    good = Reply(headers=SSE, pieces=openai_stream("hello")) if stream else Reply(pieces=[openai_whole()])
    file = tmp_path / "calls.jsonl"
    for life in range(2):
        calls = ReplayCache(file, secrets={}, token=TOKEN)
        async with gateway(tmp_path, good, limit=None, calls=calls) as running:
            got = await running.post(body, path)
            assert (got.status_code, len(running.upstream.calls)) == (200, 1), "the kept reply is garbage"
            assert b"hello" in got.content
        calls.close()
        if not life:
            spoilt = [json.loads(line) for line in file.read_text().splitlines()]
            for line in spoilt:
                if "call" in line:
                    line["reply"] = {"sse": [{"data": {"choices": "none"}}]} if stream else {"json": []}
            file.write_text("".join(json.dumps(line) + "\n" for line in spoilt))


@pytest.mark.parametrize(
    "delta",
    [
        {"content": None, "tool_calls": None, "role": None},
        {"content": [{"type": "text", "text": "a"}]},
        {"tool_calls": [{"function": {"name": "look", "arguments": {"path": "a"}}}]},
        {"tool_calls": [{"index": 0, "id": None, "function": {"name": None, "arguments": "{"}}]},
        {"annotations": 7, "x_more": "anything"},
    ],
)
def test_replies_of_lenient_providers_are_accepted(delta: dict[str, Any]) -> None:
    assert find_misfit({"choices": [{"delta": delta, "finish_reason": None}], "usage": None}, CHAT) == ""
