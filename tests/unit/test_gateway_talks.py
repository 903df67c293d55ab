"""OpenAI's responses and Gemini's dialect at the gateway: money, limits, refusals, counts, embeddings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.gateway_kit import JSON, SSE, Reply, data, event, gateway

from chargehand.models.contract import Dialect
from chargehand.store.ledger import SpendingLimits
from chargehand.store.store import open_store

RESPONSES = "/v1/responses"
GEMINI = "/v1beta/models/m:generateContent"
STREAM = "/v1beta/models/m:streamGenerateContent?alt=sse"
ASKED: dict[Dialect, dict[str, Any]] = {
    "responses": {"model": "m", "input": "hi", "max_output_tokens": 50},
    "gemini": {
        "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
        "generationConfig": {"maxOutputTokens": 50},
    },
}
USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 50},
    "output_tokens": 3,
    "total_tokens": 103,
}
META = {
    "promptTokenCount": 100,
    "cachedContentTokenCount": 50,
    "candidatesTokenCount": 2,
    "thoughtsTokenCount": 1,
    "totalTokenCount": 103,
}
OUTPUT = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hello"}]}]
WHOLE = {"id": "r", "object": "response", "status": "completed", "output": OUTPUT, "usage": USAGE}
CANDIDATE = {"content": {"role": "model", "parts": [{"text": "hello"}]}, "finishReason": "STOP", "index": 0}


def responses_stream(*words: str, end: bool = True) -> list[Any]:
    pieces: list[Any] = [event("response.created", response={**WHOLE, "status": "in_progress"})]
    pieces += [event("response.output_text.delta", output_index=0, delta=word) for word in words]
    return [*pieces, *([event("response.completed", response=WHOLE)] if end else [])]


def gemini_stream(*words: str, end: bool = True) -> list[Any]:
    pieces: list[Any] = [
        data({"candidates": [{"content": {"role": "model", "parts": [{"text": word}]}, "index": 0}]})
        for word in words
    ]
    last = {"content": {"parts": []}, "finishReason": "STOP", "index": 0}
    return [*pieces, *([data({"candidates": [last], "usageMetadata": META})] if end else [])]


def whole(dialect: Dialect) -> bytes:
    return json.dumps(
        WHOLE if dialect == "responses" else {"candidates": [CANDIDATE], "usageMetadata": META}
    ).encode()


def stream(dialect: Dialect, *words: str, end: bool = True) -> list[Any]:
    return responses_stream(*words, end=end) if dialect == "responses" else gemini_stream(*words, end=end)


def place(dialect: Dialect, *, streamed: bool = False) -> str:
    return RESPONSES if dialect == "responses" else STREAM if streamed else GEMINI


def body(dialect: Dialect, *, streamed: bool = False) -> dict[str, Any]:
    return {**ASKED[dialect], **({"stream": True} if streamed and dialect == "responses" else {})}


BOTH: list[Dialect] = ["responses", "gemini"]
COST = (50 * 1.0 + 50 * 0.1 + 3 * 10) / 1e6


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_reply_is_passed_unchanged_and_booked(tmp_path: Path, dialect: Dialect, streamed: bool) -> None:
    pieces = stream(dialect, "he", "llo") if streamed else [whole(dialect)]
    reply = Reply(headers=SSE if streamed else JSON, pieces=pieces)
    async with gateway(tmp_path, reply, dialect=dialect) as running:
        got = await running.post(body(dialect, streamed=streamed), place(dialect, streamed=streamed))
        record = await running.settled()
    assert got.content == b"".join(pieces)
    assert (record.status, record.cost_usd) == ("ok", pytest.approx(COST))
    assert running.upstream.calls[0].stream is streamed
    assert running.upstream.calls[0].body["model"] == "up"


@pytest.mark.parametrize("dialect", BOTH)
async def test_the_remaining_budget_limits_the_output(tmp_path: Path, dialect: Dialect) -> None:
    asked = {
        name: value for name, value in ASKED[dialect].items() if name.startswith(("model", "input", "contents"))
    }
    async with gateway(tmp_path, Reply(pieces=[whole(dialect)]), dialect=dialect, limit=0.01) as running:
        assert (await running.post(asked, place(dialect))).status_code == 200
    sent = running.upstream.calls[0].body
    cap = sent["max_output_tokens"] if dialect == "responses" else sent["generationConfig"]["maxOutputTokens"]
    assert 900 < cap < 1000


@pytest.mark.parametrize("dialect", BOTH)
async def test_a_stream_without_its_end_is_cut(tmp_path: Path, dialect: Dialect) -> None:
    cut = Reply(headers=SSE, pieces=stream(dialect, "he", end=False))
    async with gateway(tmp_path, cut, dialect=dialect) as running:
        got = await running.post(body(dialect, streamed=True), place(dialect, streamed=True))
        record = await running.settled()
    assert "upstream_cut" in got.text
    assert (record.status, record.cost_usd) == ("cut", None)


@pytest.mark.parametrize("dialect", BOTH)
async def test_a_provider_that_ignores_the_limit_is_cut(tmp_path: Path, dialect: Dialect) -> None:
    words = ["w"] * 60
    async with gateway(tmp_path, Reply(headers=SSE, pieces=stream(dialect, *words)), dialect=dialect) as running:
        got = await running.post(body(dialect, streamed=True), place(dialect, streamed=True))
    assert "budget_exhausted" in got.text
    assert got.text.count('"w"') == 50


ASKED_OF: dict[Dialect, tuple[str, dict[str, Any]]] = {
    "openai": ("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "hi"}]}),
    "anthropic": (
        "/v1/messages",
        {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]},
    ),
    "responses": (RESPONSES, ASKED["responses"]),
    "gemini": (GEMINI, ASKED["gemini"]),
}


@pytest.mark.parametrize("scope", ["attempt", "task", "mission", "user", "day"])
@pytest.mark.parametrize("dialect", list(ASKED_OF))
async def test_each_limit_stops_hard_and_is_named_in_each_dialect(
    tmp_path: Path, dialect: Dialect, scope: str
) -> None:
    keys = {"mission": "limits.budget_usd"}
    limits = SpendingLimits(**{f"{scope}_usd": 1.0})
    with open_store(tmp_path / "home") as store:
        money = store.spending.ledger(mission="m-1", attempt="a-1", task="t-1", user="ann", limits=limits)
        told = money.reserve("c-0", 1.0)
        assert [(spent.limit, spent.limit_usd) for spent in told] == [(scope, 1.0)]
        money.settle("c-0", 1.0)  # spent, not reserved by a running call: for a reserve the call would wait
        async with gateway(tmp_path, dialect=dialect, ledger=money) as running:
            where, asked = ASKED_OF[dialect]
            got = await running.post(asked, where)
        assert store.spending.total().booked_usd == 1.0
    error = got.json()["error"]
    assert (got.status_code, running.upstream.calls) == (402, [])
    assert f"the budget of the {scope}" in error["message"]
    assert keys.get(scope, f"limits.{scope}_usd") in error["message"]
    code = error["details"][0]["reason"] if dialect == "gemini" else error["code"]
    assert code == "budget_exhausted"


@pytest.mark.parametrize("dialect", BOTH)
async def test_no_money_is_an_error_of_the_dialect(tmp_path: Path, dialect: Dialect) -> None:
    async with gateway(tmp_path, Reply(pieces=[whole(dialect)]), dialect=dialect, limit=0.0) as running:
        got = await running.post(body(dialect), place(dialect))
    error = got.json()["error"]
    assert got.status_code == 402
    assert error["code"] == (402 if dialect == "gemini" else "budget_exhausted")
    assert dialect != "gemini" or error["details"][0]["reason"] == "budget_exhausted"
    assert running.upstream.calls == []


@pytest.mark.parametrize(
    ("path", "more", "words"),
    [
        (RESPONSES, {"previous_response_id": "r"}, "send all of it"),
        (RESPONSES, {"conversation": "c"}, "send all of it"),
        (RESPONSES, {"background": True}, "send all of it"),
        (RESPONSES, {"tools": [{"type": "code_interpreter"}]}, "the provider would run it"),
        (GEMINI, {"tools": [{"googleSearch": {}}]}, "the provider would run it"),
        (GEMINI, {"tools": [{"code_execution": {}}]}, "the provider would run it"),
        (GEMINI, {"cachedContent": "x"}, "nothing is kept"),
        (GEMINI, {"generationConfig": {"candidateCount": 9}}, "candidateCount"),
    ],
)
async def test_provider_side_tools_and_state_are_refused(
    tmp_path: Path, path: str, more: dict[str, Any], words: str
) -> None:
    dialect: Dialect = "responses" if path == RESPONSES else "gemini"
    async with gateway(tmp_path, Reply(pieces=[whole(dialect)]), dialect=dialect) as running:
        got = await running.post({**ASKED[dialect], **more}, path)
    assert got.status_code == 400
    assert words in got.json()["error"]["message"]
    assert running.upstream.calls == []


async def test_responses_are_not_stored_and_web_search_is_removed(tmp_path: Path) -> None:
    tools = [{"type": "web_search"}, {"type": "function", "name": "add", "parameters": {}}]
    async with gateway(tmp_path, Reply(pieces=[whole("responses")]), dialect="responses") as running:
        await running.post(
            {**ASKED["responses"], "store": True, "tools": tools, "service_tier": "flex"}, RESPONSES
        )
    sent = running.upstream.calls[0].body
    assert sent["store"] is False
    assert [tool["type"] for tool in sent["tools"]] == ["function"]
    assert "service_tier" not in sent


async def test_a_tool_group_is_passed_only_if_the_client_runs_all_tools(tmp_path: Path) -> None:
    """As codex offers its tools for subagents."""
    inner = {"type": "function", "name": "spawn", "parameters": {}}
    group = {"type": "namespace", "name": "agents", "description": "", "tools": [inner]}
    async with gateway(tmp_path, Reply(pieces=[whole("responses")]), dialect="responses") as running:
        assert (await running.post({**ASKED["responses"], "tools": [group]}, RESPONSES)).status_code == 200
        assert running.upstream.calls[0].body["tools"] == [group]
        for bad in ([{"type": "code_interpreter"}], [inner, {"type": "mcp"}], [group], [], "x"):
            got = await running.post({**ASKED["responses"], "tools": [{**group, "tools": bad}]}, RESPONSES)
            assert got.status_code == 400, bad
            assert "the provider would run it" in got.json()["error"]["message"]
        assert len(running.upstream.calls) == 1


async def test_both_spellings_of_gemini_keys_are_normalized(tmp_path: Path) -> None:
    asked = {
        "contents": [{"parts": [{"inline_data": {"mime_type": "image/png", "data": "AA=="}}]}],
        "system_instruction": {"parts": [{"text": "be brief"}]},
        "tools": [{"function_declarations": [{"name": "a", "parameters": {"properties": {"some_name": {}}}}]}],
    }
    async with gateway(tmp_path, Reply(pieces=[whole("gemini")]), dialect="gemini") as running:
        await running.post(asked, GEMINI)
    sent = running.upstream.calls[0].body
    assert sent["contents"][0]["parts"][0]["inlineData"]["mimeType"] == "image/png"
    assert sent["systemInstruction"]["parts"] == [{"text": "be brief"}]
    assert "some_name" in sent["tools"][0]["functionDeclarations"][0]["parameters"]["properties"]


async def test_a_picture_is_reserved_for_in_every_dialect(tmp_path: Path) -> None:
    picture = {"inlineData": {"mimeType": "image/png", "data": "AA=="}}
    async with gateway(tmp_path, Reply(pieces=[whole("gemini")]), dialect="gemini", limit=0.03) as running:
        got = await running.post({"contents": [{"parts": [picture]}]}, GEMINI)
    assert got.status_code == 402
    shown = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    asked = {"model": "m", "input": [{"role": "user", "content": [shown]}]}
    async with gateway(tmp_path, Reply(pieces=[whole("responses")]), dialect="responses", limit=0.03) as running:
        assert (await running.post(asked, RESPONSES)).status_code == 402


async def test_tokens_are_counted_by_the_provider_or_estimated_from_bytes(tmp_path: Path) -> None:
    asked = {"model": "m", "messages": [{"role": "user", "content": "hi " * 100}]}
    good = Reply(pieces=[b'{"input_tokens": 77}'])
    async with gateway(tmp_path, good, dialect="anthropic", limit=0.0) as running:
        got = await running.post(asked, "/v1/messages/count_tokens")
        assert got.json() == {"input_tokens": 77}
        assert running.upstream.calls[0].operation == "count"
    for bad in (Reply(status=404, pieces=[b"{}"]), Reply(pieces=[b"<html>"])):
        async with gateway(tmp_path, bad, dialect="anthropic") as running:
            assert 80 < (await running.post(asked, "/v1/messages/count_tokens")).json()["input_tokens"] < 110
    async with gateway(tmp_path, good) as running:
        got = await running.post(ASKED["gemini"], "/v1beta/models/m:countTokens")
        assert got.json()["totalTokens"] > 5
        assert running.upstream.calls == []
    assert running.records == []


async def test_embeddings_cost_their_input(tmp_path: Path) -> None:
    made = {"object": "list", "data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 100, "total_tokens": 100}}
    async with gateway(tmp_path, Reply(pieces=[json.dumps(made).encode()])) as running:
        got = await running.post({"model": "m", "input": ["a", "b"], "extra": 1}, "/v1/embeddings")
        record = await running.settled()
    assert got.json()["data"][0]["embedding"] == [0.5]
    assert (record.cost_usd, record.turn) == (pytest.approx(100e-6), 1)
    call = running.upstream.calls[0]
    assert (call.operation, call.body) == ("embed", {"model": "up", "input": ["a", "b"]})
    async with gateway(tmp_path, Reply(pieces=[b"{}"]), dialect="anthropic") as running:
        assert (await running.post({"model": "m", "input": "a"}, "/v1/embeddings")).status_code == 400


async def test_geminis_clients_read_the_list_of_models(tmp_path: Path) -> None:
    async with gateway(tmp_path, Reply(pieces=[whole("gemini")]), dialect="gemini") as running:
        headers = {"authorization": "", "x-goog-api-key": running.gateway.token}
        got = (await running.client.get("/v1beta/models", headers=headers)).json()
    assert got["models"][0]["name"] == "models/m"
