"""The reserve before a call and the booking after it; the behaviour when the money ends."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples
from tests.gateway_kit import (
    CLAUDE_USAGE,
    SSE,
    Reply,
    anthropic_stream,
    anthropic_whole,
    chunk,
    event,
    gateway,
    message,
    openai_stream,
    openai_whole,
)

from chargehand.core.errors import ExhaustedError, UpstreamError
from chargehand.core.ports import Spent
from chargehand.models.contract import ModelCall, Price
from chargehand.models.metering import MemoryLedger

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
MESSAGES = "/v1/messages"
GOOD = Reply(pieces=[openai_whole()])
FREE = Price(input=0.0, output=0.0)
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}


class Watching(MemoryLedger):
    """A ledger that records the reserves."""

    def __init__(self, limit: float | None) -> None:
        super().__init__(limit)
        self.reserved: list[float] = []
        self.most = 0.0

    def reserve(self, call: str, usd: float) -> tuple[Spent, ...]:
        spent = super().reserve(call, usd)
        self.reserved.append(usd)
        self.most = max(self.most, self.booked)
        return spent


async def test_the_reserve_bounds_input_bytes_and_output(tmp_path: Path) -> None:
    ledger = Watching(1.0)
    body = {**ASK, "max_tokens": 100}
    size = len(json.dumps(body).encode())
    async with gateway(tmp_path, GOOD, ledger=ledger) as running:
        await running.post(body)
        await running.post({**body, "n": 3})
    # Input written to the cache costs most: 1.25 per million.
    assert ledger.reserved[0] >= (size * 1.25 + 100 * 10) / 1e6
    assert ledger.reserved[1] - ledger.reserved[0] == pytest.approx(2 * 100 * 10 / 1e6, abs=1e-4)
    assert [record.booked_usd for record in running.records] == pytest.approx([130e-6] * 2)
    assert ledger.booked == pytest.approx(260e-6)


async def test_reserves_for_tools_and_pictures_exceed_their_bytes(tmp_path: Path) -> None:
    ledger = Watching(10.0)
    picture = {**ASK, "messages": [{"role": "user", "content": [IMAGE]}], "max_tokens": 1}
    async with gateway(tmp_path, GOOD, ledger=ledger) as running:
        await running.post({**ASK, "max_tokens": 1})
        await running.post({**ASK, "max_tokens": 1, "tools": [{"type": "function"}]})
        await running.post(picture)
    plain, tools, seen = ledger.reserved
    assert tools - plain > 1700 * 1.25 / 1e6
    assert seen > 40_000 * 1.25 / 1e6


@pytest.mark.parametrize(
    ("asked", "max_output", "sent"),
    [
        ({"max_tokens": 50}, None, {"max_tokens": 50}),
        ({"max_completion_tokens": 50}, None, {"max_tokens": 50}),
        ({"max_completion_tokens": 60, "max_tokens": 50}, None, {"max_tokens": 50}),
        ({"max_tokens": 99_999}, None, {"max_tokens": 32_000}),
        ({"max_tokens": 99_999}, 4_096, {"max_tokens": 4_096}),
        ({}, 4_096, {"max_tokens": 4_096}),
        ({}, None, {"max_tokens": 32_000}),
    ],
)
async def test_the_output_limit_is_the_least_of_all(
    tmp_path: Path, asked: dict[str, int], max_output: int | None, sent: dict[str, int]
) -> None:
    async with gateway(tmp_path, GOOD, max_output=max_output) as running:
        await running.post({**ASK, **asked, "odd": {"dropped": [1]}, "seed": 7})
    (call,) = running.upstream.calls
    assert dict(call.body) == {**ASK, "seed": 7, "model": "up", **sent}


async def test_the_remaining_budget_limits_the_output(tmp_path: Path) -> None:
    async with gateway(tmp_path, GOOD, limit=0.002) as running:
        assert (await running.post({**ASK, "max_tokens": 5_000})).status_code == 200
    limit = running.upstream.calls[0].body["max_tokens"]
    assert 100 < limit < 200
    assert [alert.limit for alert in running.alerts] == ["attempt"]


@pytest.mark.parametrize("limit", [0.0, 0.0004])
@pytest.mark.parametrize("path", ["/v1/chat/completions", MESSAGES])
async def test_less_than_sixteen_tokens_are_refused(tmp_path: Path, limit: float, path: str) -> None:
    dialect = "anthropic" if path == MESSAGES else "openai"
    async with gateway(tmp_path, GOOD, limit=limit, dialect=dialect) as running:
        reply = await running.post({**ASK, "max_tokens": 500}, path)
        record = await running.settled()
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (402, "budget_exhausted")
    assert f"attempt's limit of {limit:g} USD" in error["message"]
    assert error["type"] == ("billing_error" if dialect == "anthropic" else "insufficient_quota")
    assert (record.status, record.http_status, record.booked_usd, record.cost_usd) == ("refused", 402, 0.0, 0.0)
    assert running.upstream.calls == []


async def test_an_unknown_price_is_refused_if_the_budget_is_limited(tmp_path: Path) -> None:
    async with gateway(tmp_path, GOOD, price=None) as running:
        reply = await running.post(ASK)
    assert (reply.status_code, reply.json()["error"]["code"]) == (402, "price_unknown")
    assert "limits.assume_usd_per_mtok" in reply.json()["error"]["message"]
    assert running.records[0].status == "refused"
    async with gateway(tmp_path, GOOD, price=None, limit=None) as running:
        assert (await running.post(ASK)).status_code == 200
    assert (running.records[0].cost_usd, running.records[0].usage.output) == (None, 3)
    # Nothing limits the output either, because our limit could be more than the model accepts.
    assert "max_tokens" not in running.upstream.calls[0].body


async def test_a_free_model_needs_no_money_and_gets_no_limit(tmp_path: Path) -> None:
    async with gateway(tmp_path, GOOD, price=FREE, limit=0.0) as running:
        assert (await running.post(ASK)).status_code == 200
    assert (running.records[0].cost_usd, running.records[0].booked_usd) == (0.0, 0.0)
    assert "max_tokens" not in running.upstream.calls[0].body


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        ({"prompt_tokens": 100, "completion_tokens": 3}, 130e-6),
        (
            {"prompt_tokens": 100, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 80}},
            58e-6,
        ),
        ({"prompt_tokens": 100, "completion_tokens": 3, "cost": 0.5}, 0.5),
        ({"prompt_tokens": 100, "completion_tokens": 3, "total_tokens": 110}, 200e-6),
        ({"prompt_tokens": 100, "completion_tokens": 3, "cost": -1}, 130e-6),
        ({"prompt_tokens": "many"}, None),
        (None, None),
    ],
)
async def test_the_cost_follows_the_usage_reported_by_the_provider(
    tmp_path: Path, usage: object, cost: float | None
) -> None:
    async with gateway(tmp_path, Reply(pieces=[openai_whole(usage=usage)])) as running:
        await running.post({**ASK, "max_tokens": 100})
        record = await running.settled()
    assert record.cost_usd == (None if cost is None else pytest.approx(cost))
    # If the cost is unknown, the whole reserve stays booked.
    assert record.booked_usd == pytest.approx(cost if cost is not None else 1.4e-3, abs=2e-4)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("told", "hours", "cost"),
    [
        # 10 plain at 1, 80 cached at 0.1, 3 out at 10, and 10 written: for minutes at 1.25, for an hour at 2
        ({"ephemeral_1h_input_tokens": 10}, 10, 68e-6),
        ({"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 0}, 0, 60.5e-6),
        ({"ephemeral_5m_input_tokens": 6, "ephemeral_1h_input_tokens": 4}, 4, 63.5e-6),
        # It asked for an hour, and the reply does not say how long the written tokens are kept.
        (None, None, 68e-6),
    ],
)
async def test_cache_writes_are_booked_by_their_lifetime(
    tmp_path: Path, told: dict[str, int] | None, hours: int | None, cost: float, streamed: bool
) -> None:
    usage = {**CLAUDE_USAGE, **({} if told is None else {"cache_creation": told}), "output_tokens": 3}
    reply = Reply(pieces=[json.dumps(message([], usage=usage)).encode()])
    if streamed:
        start, *rest = anthropic_stream("a")
        start = event("message_start", message=message([], stop_reason=None, usage={**usage, "output_tokens": 1}))
        reply = Reply(headers=SSE, pieces=[start, *rest])
    hour = {**ASK, "max_tokens": 3, "cache_control": {"type": "ephemeral", "ttl": "1h"}, "stream": streamed}
    ledger = Watching(1.0)
    async with gateway(tmp_path, reply, dialect="anthropic", ledger=ledger) as running:
        await running.post(hour, MESSAGES)
        await running.post({**hour, "cache_control": {"type": "ephemeral"}}, MESSAGES)
    assert (running.records[0].cost_usd, running.records[0].hour_writes) == (pytest.approx(cost), hours)
    assert running.records[1].cost_usd == pytest.approx(60.5e-6 if told is None else cost)
    assert ledger.reserved[0] > len(json.dumps(hour)) * 2 / 1e6
    assert ledger.reserved[1] < ledger.reserved[0] * 1.25 / 1.9


NOTHING = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
SILENT = {"index": 0, "finish_reason": "content_filter", "message": {"role": "assistant", "content": ""}}


@pytest.mark.parametrize(
    ("reply", "known"),
    [
        (Reply(pieces=[openai_whole(usage=NOTHING)]), False),
        (Reply(pieces=[openai_whole(usage={**NOTHING, "cost": 0})]), False),
        (Reply(pieces=[openai_whole(usage={**NOTHING, "cost": 0.25})]), True),
        (Reply(pieces=[openai_whole(usage={"prompt_tokens": 9, "completion_tokens": 0})]), False),
        (Reply(pieces=[openai_whole("", usage={"prompt_tokens": 9, "completion_tokens": 0})]), True),
        (Reply(pieces=[json.dumps({"choices": [SILENT], "usage": NOTHING}).encode()]), False),
        (Reply(headers=SSE, pieces=openai_stream("a", usage=NOTHING)), False),
        (Reply(headers=SSE, pieces=openai_stream("a", usage={"prompt_tokens": 9, "completion_tokens": 0})), False),
    ],
)
async def test_zero_usage_of_a_nonempty_reply_is_an_unknown_cost(
    tmp_path: Path, reply: Reply, known: bool
) -> None:
    async with gateway(tmp_path, reply) as running:
        await running.post({**ASK, "max_tokens": 100, "stream": reply.headers is SSE})
        record = await running.settled()
    assert (record.cost_usd is not None) is known
    assert record.booked_usd > (0 if known else 1e-3), "what nobody counted stays booked at its reserve"


async def test_an_alert_is_raised_once(tmp_path: Path) -> None:
    async with gateway(tmp_path, Reply(pieces=[openai_whole(usage=None)]), limit=0.01) as running:
        for _ in range(4):
            await running.post({**ASK, "max_tokens": 250})
    (alert,) = running.alerts
    assert alert.limit_usd == 0.01
    assert 0.008 <= alert.spent_usd <= 0.01


async def test_a_race_for_the_last_money_ends_in_a_refusal(tmp_path: Path) -> None:
    class Late(MemoryLedger):
        def left(self, *, settled: bool = False) -> float | None:
            return 1.0

    async with gateway(tmp_path, Reply(pieces=[openai_whole()]), ledger=Late(0.001)) as running:
        reply = await running.post({**ASK, "max_tokens": 5_000})
    assert reply.json()["error"]["code"] == "budget_exhausted"


async def test_a_call_that_does_not_fit_now_waits_for_those_under_way(tmp_path: Path) -> None:
    go = asyncio.Event()
    body = {**ASK, "max_tokens": 500}
    # The first reserves 5 of 7.5 thousandths: the second could have 200 tokens now, and all after the first is
    # settled.
    replies = (Reply(wait=go, pieces=[openai_whole()]), GOOD)
    async with gateway(tmp_path, *replies, limit=0.0075) as running:
        first = asyncio.create_task(running.post(body))
        while not running.upstream.calls:
            await asyncio.sleep(0.001)
        second = asyncio.create_task(running.post(body))
        await asyncio.sleep(0.1)
        assert len(running.upstream.calls) == 1
        go.set()
        assert [(await one).status_code for one in (first, second)] == [200, 200]
        assert running.upstream.calls[1].body["max_tokens"] == 500
    assert [record.status for record in running.records] == ["ok", "ok"]


@pytest.mark.parametrize(("limit", "status", "code"), [(0.0058, 429, "budget_reserved"), (0.0075, 200, "")])
async def test_a_timeout_for_budget_reduces_the_output_or_refuses_the_call(
    tmp_path: Path, limit: float, status: int, code: str
) -> None:
    never = asyncio.Event()
    body = {**ASK, "max_tokens": 500}
    async with gateway(tmp_path, Reply(wait=never), GOOD, limit=limit, reserve_seconds=0.05) as running:
        first = asyncio.create_task(running.post(body))
        while not running.upstream.calls:
            await asyncio.sleep(0.001)
        reply = await running.post(body)
        assert (reply.status_code, reply.json().get("error", {}).get("code", "")) == (status, code)
        if not code:
            assert 16 <= running.upstream.calls[1].body["max_tokens"] < 300
        never.set()
        await asyncio.gather(first, return_exceptions=True)


async def test_a_client_that_disconnects_while_waiting_reserves_no_budget(tmp_path: Path) -> None:
    never = asyncio.Event()
    body = {**ASK, "max_tokens": 500}
    async with gateway(tmp_path, Reply(wait=never, pieces=[openai_whole()]), limit=0.0058) as running:
        first = asyncio.create_task(running.post(body))
        while not running.upstream.calls:
            await asyncio.sleep(0.001)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await running.post(body)
        never.set()
        assert (await first).status_code == 200
    assert sorted(record.status for record in running.records) == ["ok", "refused"]


def test_the_memory_ledger_refuses_reserves_above_its_limit() -> None:
    ledger = MemoryLedger(1.0)
    assert ledger.reserve("a", 0.5) == ()
    assert ledger.reserve("b", 0.4)[0].spent_usd == pytest.approx(0.9)
    with pytest.raises(ExhaustedError) as caught:
        ledger.reserve("c", 0.2)
    assert caught.value.code == "budget_reserved"
    ledger.settle("a", 0.1)
    ledger.settle("b", None)
    assert (ledger.left(), ledger.booked) == (pytest.approx(0.5), pytest.approx(0.5))
    assert MemoryLedger(None).left() is None


OUTCOMES = st.sampled_from(
    ["ok", "no-usage", "cut", "503", "malformed", "stream", "endless", "gone", "unreachable"]
)
PLAN = st.lists(
    st.tuples(OUTCOMES, st.integers(1, 400), st.booleans(), st.integers(0, 3)), min_size=1, max_size=14
)


def _honest(call: ModelCall, outcome: str) -> Reply:
    """Play one outcome of a provider that respects the given limit (except for `endless`)."""
    limit = int(call.body["max_tokens"])
    usage = {"prompt_tokens": len(json.dumps(dict(call.body))) // 4, "completion_tokens": limit}
    replies = {
        "ok": Reply(pieces=[openai_whole(usage=usage)]),
        "no-usage": Reply(pieces=[openai_whole(usage=None)]),
        "cut": Reply(pieces=[b"{", UpstreamError("cut", code="upstream_cut")]),
        "503": Reply(status=503, pieces=[b"{}"]),
        "malformed": Reply(pieces=[b"<"]),
        "stream": Reply(headers=SSE, pieces=openai_stream("a", usage=usage)),
        "endless": Reply(headers=SSE, pieces=[chunk({"content": "a"})] * (limit + 50)),
        "gone": Reply(headers=SSE, pieces=[chunk({"content": "a"}), asyncio.Event()]),
        "unreachable": Reply(error=UpstreamError("none")),
    }
    return replies[outcome]


async def _play(directory: Path, plan: list[tuple[str, int, bool, int]], limit: float) -> None:
    outcomes = {str(number): outcome for number, (outcome, *_) in enumerate(plan)}
    ledger = Watching(limit)
    reply = lambda call: _honest(call, outcomes[call.body["user"]])  # noqa: E731
    async with gateway(directory, reply, ledger=ledger, retries=1) as running:

        async def ask(number: int, tokens: int, impatient: bool, delay: int) -> None:
            for _ in range(delay):
                await asyncio.sleep(0.0005)
            streamed = outcomes[str(number)] in ("stream", "endless", "gone")
            body = {**ASK, "max_tokens": tokens, "user": str(number), "stream": streamed}
            patience = 0.005 if impatient or outcomes[str(number)] == "gone" else 20
            try:
                async with asyncio.timeout(patience):
                    await running.post(body)
            except TimeoutError:
                pass

        await asyncio.gather(*(ask(number, *rest) for number, (_, *rest) in enumerate(plan)))
        await running.gateway.close()
        assert ledger.most <= limit + 1e-9
        assert ledger.booked <= limit + 1e-9
        assert sum(record.booked_usd for record in running.records) == pytest.approx(ledger.booked)
        ids = [record.call for record in running.records]
        assert len(ids) == len(set(ids))
        assert {call.id for call in running.upstream.calls} <= set(ids)
        assert running.upstream.open == 0


@settings(max_examples=examples(20), deadline=None)
@given(plan=PLAN, limit=st.sampled_from([0.0006, 0.003, 0.01, 1.0]))
def test_bookings_never_exceed_the_limit_and_are_all_recorded(
    plan: list[tuple[str, int, bool, int]], limit: float
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_play(Path(directory), plan, limit))


async def test_anthropic_usage_counts_the_cache_as_input(tmp_path: Path) -> None:
    async with gateway(tmp_path, Reply(pieces=[anthropic_whole()]), dialect="anthropic") as running:
        await running.post({**ASK, "max_tokens": 9}, MESSAGES)
    usage = running.records[0].usage
    assert (usage.input, usage.output, usage.cached, usage.cache_write) == (100, 3, 80, 10)


@pytest.mark.parametrize(
    ("dialect", "path", "asked"),
    [
        ("openai", "/v1/chat/completions", {"tools": [{"type": "web_search"}]}),
        ("openai", "/v1/chat/completions", {"n": "128"}),
        ("openai", "/v1/chat/completions", {"n": 1000}),
        ("anthropic", "/v1/messages", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
        ("anthropic", "/v1/messages", {"context_management": {"edits": [{"type": "compact_20260112"}]}}),
        (
            "anthropic",
            "/v1/messages",
            {"messages": [{"role": "user", "content": [{"type": "tool_addition", "tool": {}}]}]},
        ),
    ],
)
async def test_requests_with_costs_other_than_tokens_are_refused(
    tmp_path: Path, dialect: Any, path: str, asked: dict[str, Any]
) -> None:
    async with gateway(tmp_path, GOOD, dialect=dialect) as running:
        reply = await running.post({**ASK, **asked}, path)
    assert reply.status_code == 400
    assert running.upstream.calls == []


async def test_ways_past_the_price_and_the_list_of_models_are_dropped(tmp_path: Path) -> None:
    ways = {
        "service_tier": "priority",
        "models": ["dear"],
        "plugins": [{"id": "web"}],
        "api_base": "http://x",
        "speed": 1,
    }
    async with gateway(tmp_path, GOOD) as running:
        await running.post({**ASK, **ways, "max_tokens": 5})
    (call,) = running.upstream.calls
    assert not set(ways) & set(call.body)


async def test_a_proxy_that_gave_up_does_not_make_a_call_free(tmp_path: Path) -> None:
    ledger = Watching(10.0)
    async with gateway(tmp_path, Reply(status=504, pieces=[b"{}"]), ledger=ledger) as running:
        await running.post({**ASK, "max_tokens": 100})
    assert ledger.booked == pytest.approx(ledger.reserved[0], abs=1e-6)
    assert running.records[-1].cost_usd is None


async def test_recorded_refusals_of_a_connection_are_limited(tmp_path: Path) -> None:
    async with gateway(tmp_path, GOOD, ledger=Watching(0.0)) as running:
        for _ in range(30):
            assert (await running.post(ASK)).status_code == 402
    assert len(running.records) == 20
