"""Each feature of a call in another dialect is handled as in `docs/reference/translation.md`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples
from tests.gateway_kit import (
    DONE,
    JSON,
    SSE,
    USAGE,
    Reply,
    Scripted,
    anthropic_stream,
    anthropic_whole,
    chunk,
    gateway,
    openai_whole,
)
from tests.translation_features import BASES, FEATURES, put
from tests.translation_kit import (
    ALL,
    BROKEN,
    budget_rows,
    effort_rows,
    find,
    judge,
    judge_malformed,
    malformed_reply,
    render_page,
    reply_rows,
    request_rows,
    send,
)

from chargehand.models.contract import Dialect, ModelCall
from chargehand.models.conversation import DYNAMIC_BUDGET, EFFORT_BUDGETS, ReasoningRequest, fold_reply
from chargehand.models.dialects.translation import TranslatingUpstream, read_event_data
from chargehand.models.event_stream import EventSplitter
from chargehand.models.providers import Providers
from chargehand.models.registries import DIALECTS
from chargehand.models.replay_cache import ReplayCache

PAGE = Path(__file__).parents[2] / "docs/reference/translation.md"
PATHS: dict[Dialect, str] = {
    "openai": "/v1/chat/completions",
    "responses": "/v1/responses",
    "anthropic": "/v1/messages",
    "gemini": "/v1beta/models/m:generateContent",
}


def test_the_page_is_current() -> None:
    command = "python -m tests.translation_kit > docs/reference/translation.md"
    assert PAGE.read_text() == render_page(), f"run: {command}"


def test_every_feature_is_translated_or_reported_between_any_two_dialects() -> None:
    rows = [*request_rows(), *reply_rows(), *effort_rows(), *budget_rows()]
    assert len(FEATURES) > 40
    assert [row for row in rows if "lost" in row] == []


def test_a_feature_that_is_lost_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests the judge itself: it notices a dialect that does not name an unsupported feature."""
    monkeypatch.setattr("chargehand.models.conversation.find_features", lambda _: set())
    forgotten = ("tool result that failed", "one call at a time", "how closely to look at pictures")
    few = [feature for feature in FEATURES if feature.name in forgotten]
    assert len(few) == 3
    assert all("lost" in [judge(one, c, u) for c in ALL for u in ALL] for one in few)


@given(st.integers(0, 100_000))
def test_a_reasoning_budget_maps_to_an_effort_that_covers_the_budget(tokens: int) -> None:
    word = ReasoningRequest(budget=tokens).word
    assert word is not None
    assert EFFORT_BUDGETS[word] >= tokens or word == "high"
    assert (word == "none") == (tokens == 0)


def test_a_dynamic_budget_has_no_effort_and_a_zero_budget_takes_precedence() -> None:
    assert ReasoningRequest(budget=DYNAMIC_BUDGET).word is None
    assert ReasoningRequest(budget=DYNAMIC_BUDGET, effort="high").tokens == EFFORT_BUDGETS["high"]
    assert ReasoningRequest(budget=0, effort="high").word == "none"
    assert ReasoningRequest(effort="of tomorrow").tokens is None


CLAUDES = {
    "claude-3-5-haiku-latest": None,
    "claude-3-7-sonnet-latest": "thinking.budget_tokens",
    "claude-sonnet-4-20250514": "thinking.budget_tokens",
    "claude-opus-4-1": "thinking.budget_tokens",
    "claude-haiku-4-5-20251001": "thinking.budget_tokens",
    "anthropic/claude-sonnet-4.5": "thinking.budget_tokens",
    "claude-opus-4-6": "output_config.effort",
    "anthropic/claude-opus-4.7": "output_config.effort",
    "claude-fable-5": "output_config.effort",
    "kimi-k2": "thinking.budget_tokens",
}


@pytest.mark.parametrize("model", CLAUDES)
def test_each_claude_model_gets_its_form_of_the_reasoning_request(model: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "reasoning_effort": "medium"}
    sent = send("openai", "anthropic", body, model)
    ways = [way for way in set(CLAUDES.values()) - {None} if find(sent.body, str(way))]
    assert ways == ([CLAUDES[model]] if CLAUDES[model] else [])
    assert sent.left == (frozenset() if CLAUDES[model] else {"reasoning_effort"})


@pytest.mark.parametrize(
    ("limit", "tokens", "named"), [(1_000, None, True), (4_000, 3_200, True), (32_000, 8_192, False)]
)
def test_a_budget_leaves_room_for_the_reply(limit: int, tokens: int | None, named: bool) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": limit}
    sent = send("openai", "anthropic", {**body, "reasoning_effort": "medium"}, "claude-sonnet-4-5")
    assert find(sent.body, "thinking.budget_tokens") == ([] if tokens is None else [tokens])
    assert ("reasoning_effort" in sent.left) == named


def test_claude_reasoning_excludes_temperature_and_forced_tool_calls() -> None:
    asked = {**BASES["gemini"], "contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
    config = {"temperature": 0.2, "topP": 0.99, "topK": 40, "thinkingConfig": {"thinkingBudget": 2_000}}
    sent = send("gemini", "anthropic", {**asked, "generationConfig": config}, "claude-sonnet-4-5")
    assert sent.body["thinking"] == {"type": "enabled", "budget_tokens": 2_000}
    assert (sent.body.get("temperature"), sent.body["top_p"], sent.body.get("top_k")) == (None, 0.99, None)
    assert sent.left == {"generationConfig.temperature", "generationConfig.topK"}
    forced = put({**asked, "generationConfig": config}, "toolConfig.functionCallingConfig.mode", "ANY")
    sent = send("gemini", "anthropic", forced, "claude-sonnet-4-5")
    assert "thinking" not in sent.body
    assert "generationConfig.thinkingConfig.thinkingBudget" in sent.left


def marks(body: Any) -> int:
    return json.dumps(body).count('"cache_control"')


def locate(body: dict[str, Any], operation: Any = "reply") -> Any:
    call = ModelCall(id="c", dialect="anthropic", body=body, attempt="a", turn=1, operation=operation)
    return DIALECTS["anthropic"].locate(call)[1]


def test_cache_marks_are_set_on_the_parts_reused_by_the_next_call() -> None:
    body = BASES["anthropic"]
    wire = locate(body)
    assert marks(wire) == 3
    assert wire["system"][-1]["cache_control"] == {"type": "ephemeral"}
    assert [marks(message) for message in wire["messages"]] == [0, 0, 1, 0, 1]
    assert marks(body) == 0, "the client's own body is not touched"
    longer = {
        **body,
        "messages": [*body["messages"], {"role": "assistant", "content": "ok"}, body["messages"][-1]],
    }
    assert [marks(message) for message in locate(longer)["messages"]] == [0, 0, 0, 0, 1, 0, 1]


@pytest.mark.parametrize(
    "path", ["system", "messages.0.content.0.cache_control", "tools.0.cache_control", "cache_control"]
)
def test_no_cache_marks_are_added_if_the_client_sets_a_mark(path: str) -> None:
    mark = {"type": "ephemeral", "ttl": "1h"}
    value = [{"type": "text", "text": "be brief", "cache_control": mark}] if path == "system" else mark
    body = put(BASES["anthropic"], path, value)
    assert locate(body) == body


def test_cache_marks_are_set_only_on_valid_parts() -> None:
    empty = {"model": "m", "messages": [{"role": "user", "content": " "}], "tools": BASES["anthropic"]["tools"]}
    assert marks(locate(empty)["messages"]) == 0
    assert marks(locate(empty)["tools"]) == 1
    for odd in (
        {"messages": "x"},
        {"messages": [{"role": "user", "content": []}]},
        {"system": [3], "messages": [7]},
    ):
        assert marks(locate({"model": "m", **odd})) == 0
    assert marks(locate(BASES["anthropic"], "count")) == 0


def test_only_the_newest_of_too_many_cache_marks_are_kept() -> None:
    part = {"type": "text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit"}}
    asked = {"model": "m", "messages": [{"role": "user", "content": [{**part, "text": str(n)} for n in range(6)]}]}
    (message,) = send("openai", "anthropic", asked, "claude-opus-4-6").body["messages"]
    assert [block["text"] for block in message["content"] if "cache_control" in block] == ["2", "3", "4", "5"]


@pytest.mark.parametrize("upstream", ALL)
@pytest.mark.parametrize("client", ALL)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_malformed_tool_call_is_the_models_fault_and_its_reply_is_kept(
    tmp_path: Path, client: Dialect, upstream: Dialect, stream: bool
) -> None:
    pieces = malformed_reply(upstream, stream=stream)
    providers = Providers()
    reply = Reply(headers=SSE if stream else JSON, pieces=pieces)
    path = PATHS[client].replace("generateContent", "streamGenerateContent") if stream else PATHS[client]
    body = put(BASES[client], "stream", True) if stream and client != "gemini" else BASES[client]
    async with gateway(
        tmp_path, reply, dialect=upstream, provider="p", providers=providers, limit=None
    ) as running:
        got = await running.post(body, path)
        record = await running.settled()
    assert got.status_code == 200
    assert "I add." in got.text
    assert (len(running.upstream.calls), record.status, record.usage.output) == (1, "ok", 7)
    assert providers.of("p", "up").state == "closed"
    if client != upstream:
        assert record.reason.startswith("model_malformed: ")
        assert "upstream_malformed" not in got.text


@pytest.mark.parametrize("client", ALL)
def test_malformed_arguments_of_an_earlier_reply_can_go_to_any_model(client: Dialect) -> None:
    body = put(BASES["openai"], "messages.2.tool_calls.0.function.arguments", BROKEN)
    sent = send("openai", client, body, "m")
    assert not sent.refused
    assert json.dumps(BROKEN)[1:-1] in json.dumps(sent.body).replace("\\\\\\", "\\")


async def test_left_out_fields_are_in_every_response_header_and_logged_once(tmp_path: Path) -> None:
    asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "service_tier": "flex", "seed": 3}
    async with gateway(tmp_path, Reply(pieces=[anthropic_whole()]), dialect="anthropic") as running:
        heads = [(await running.post(asked)).headers["x-chargehand-left-out"] for _ in range(3)]
        more = (await running.post({**asked, "logit_bias": {"1": 1}})).headers["x-chargehand-left-out"]
    assert heads == ["seed, service_tier"] * 3
    assert more == "logit_bias, seed, service_tier"
    told = [record.left_out for record in running.records]
    assert told == [("seed", "service_tier"), (), (), ("logit_bias",)]


async def test_left_out_fields_are_named_within_the_same_dialect(tmp_path: Path) -> None:
    asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "zq, \n": 1, "ümlaut": 1, "x" * 300: 1}
    async with gateway(tmp_path, Reply(pieces=[openai_whole()])) as running:
        clean = await running.post({"model": "m", "messages": [], "seed": 1})
        got = await running.post(asked)
        error = await running.post(b'{"model": "m", "messages": [], "a": null}')
    assert "x-chargehand-left-out" not in clean.headers
    assert got.headers["x-chargehand-left-out"] == f"\\xfcmlaut, {'x' * 80}, zq ?"
    assert "x-chargehand-left-out" not in error.headers


@settings(max_examples=examples(30), deadline=None)
@given(order=st.permutations([0] * 5 + [1] * 5 + [2] * 5), client=st.sampled_from(ALL), after=st.text())
async def test_calls_that_come_mixed_into_each_other_reach_each_client_whole(
    order: list[int], client: Dialect, after: str
) -> None:
    """A piece of one call, a piece of another, words between them: every client reads the original calls."""
    said = [json.dumps({"said": f"{number}" * 11}) for number in range(3)]
    rest = [[text[at : at + 5] for at in range(0, len(text), 5)] for text in said]
    assert [len(each) for each in rest] == [5] * 3
    pieces = [chunk({"role": "assistant", "content": "I look"})]
    for number, text in enumerate(order):
        call: dict[str, Any] = {"index": text, "function": {"arguments": rest[text].pop(0)}}
        if len(rest[text]) == 4:
            call = {"index": text, "id": f"c{text}", "function": {**call["function"], "name": f"look_{text}"}}
        pieces.append(chunk({"tool_calls": [call], **({"content": after} if number == 9 else {})}))
    pieces += [chunk({}, finish="tool_calls", usage=USAGE), DONE]
    upstream = TranslatingUpstream(Scripted(Reply(headers=SSE, pieces=pieces)), "openai", DIALECTS)
    body = {**BASES[client], "model": "m", "stream": True}
    reply = await upstream.send(ModelCall(id="c", dialect=client, body=body, attempt="a", turn=1))
    reader, split = DIALECTS[client].reply_reader("c"), EventSplitter()
    events = [*split.feed(await reply.read_all()), split.rest()]
    deltas = [delta for event in events for delta in reader.read_event(read_event_data(event))]
    found = fold_reply([*deltas, *reader.finish()])
    assert sorted((call.name, json.loads(call.arguments)["said"]) for call in found.calls) == [
        (f"look_{number}", f"{number}" * 11) for number in range(3)
    ]
    assert (found.text, found.ended, found.stop) == (f"I look{after}", True, "tools")


HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "effort-2025, context-1m-2025,skills-2025",
    "anthropic-dangerous-direct-browser-access": "true",
    "anthropic-workspace": "w",
    "openai-beta": "realtime=v1",
    "openai-organization": "org",
    "x-goog-user-project": "p",
    "x-goog-api-client": "genai",
}
DROPPED = ["anthropic-workspace", "context-1m-2025", "openai-beta", "openai-organization", "skills-2025"]
DROPPED += ["x-goog-user-project"]


@pytest.mark.parametrize("client", ["anthropic", "openai"])
@pytest.mark.parametrize("kind", ["whole", "stream", "error", "embeddings"])
async def test_each_feature_header_is_forwarded_or_named_as_left_out(
    tmp_path: Path, client: Dialect, kind: str
) -> None:
    """In every reply: live or recorded, whole or streamed, also of an error; in the log once."""
    asked: dict[str, Any] = {"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": "hi"}]}
    path = {"anthropic": "/v1/messages", "openai": "/v1/chat/completions"}[client]
    reply = Reply(pieces=[anthropic_whole()])
    upstream: Dialect = "anthropic"
    if kind == "stream":
        asked["stream"], reply = True, Reply(headers=SSE, pieces=anthropic_stream("hi"))
    elif kind == "error":
        reply = Reply(status=400, pieces=[b'{"error": {"message": "no"}}'])
    elif kind == "embeddings":
        vector = {"object": "embedding", "index": 0, "embedding": [1.0]}
        reply = Reply(pieces=[json.dumps({"data": [vector], "usage": {"prompt_tokens": 1}}).encode()])
        asked, path, upstream = {"model": "m", "input": "hi"}, "/v1/embeddings", "openai"
        client = "openai"
    expected = DROPPED if client == upstream == "anthropic" else sorted([*DROPPED, "effort-2025"])
    if kind == "embeddings":
        expected = DROPPED
    told = []
    for life in range(2):
        calls = ReplayCache(tmp_path / "calls.jsonl", secrets={}, token="cht-0123456789abcdef0123456789abcdef")
        async with gateway(tmp_path, reply, dialect=upstream, calls=calls) as running:
            got = await running.post(asked, path, headers=HEADERS)
            assert got.headers["x-chargehand-left-out"] == ", ".join(expected), life
            kept = kind != "error"
            assert ("x-chargehand-replayed" in got.headers) == (kept and life == 1)
            assert len(running.upstream.calls) == (not kept or life == 0)
            told += [record.left_out for record in running.records]
        calls.close()
    assert told == [tuple(expected)] * 2, "once in each life of the attempt"


async def test_a_flood_of_names_is_cut(tmp_path: Path) -> None:
    asked = {"model": "m", "messages": [], **{f"f{n:04}": 1 for n in range(5_000)}}
    async with gateway(tmp_path, Reply(pieces=[openai_whole()])) as running:
        got = await running.post(asked)
    names = got.headers["x-chargehand-left-out"].split(", ")
    assert (len(names), names[-1]) == (41, "4960 more")


@pytest.mark.parametrize("stream", [False, True])
def test_a_malformed_call_reaches_each_client(stream: bool) -> None:
    assert {judge_malformed("gemini", upstream, stream=stream) for upstream in ALL if upstream != "gemini"} == {
        "`malformed_arguments`"
    }
