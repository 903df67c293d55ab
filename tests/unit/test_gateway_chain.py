"""Several models behind one name: the order of calls, models left out, and the client's view."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway_kit import (
    JSON,
    PRICE,
    SSE,
    Reply,
    Scripted,
    anthropic_stream,
    anthropic_whole,
    chunk,
    openai_stream,
    openai_whole,
)

from chargehand.core.clock import SteppedClock
from chargehand.core.errors import UpstreamError
from chargehand.models.contract import CallListeners, CallRecord, QuotaRest, ServedModel
from chargehand.models.gateway import Gateway, ServedAttempt
from chargehand.models.metering import MemoryLedger
from chargehand.models.providers import ProviderLimits, Providers

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
ASK: dict[str, Any] = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
GONE = Reply(error=UpstreamError("nobody there", code="upstream_unreachable"))
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


@dataclass
class Bench:
    client: httpx.AsyncClient
    first: Scripted
    second: Scripted
    records: list[CallRecord]
    providers: Providers
    clock: SteppedClock
    waits: list[float]

    async def ask(self, body: dict[str, Any] = ASK, path: str = CHAT) -> httpx.Response:
        return await self.client.post(path, content=json.dumps(body).encode())


class Probed(Scripted):
    """An upstream that can also be probed."""

    def __init__(self, *replies: Any, alive: bool = True) -> None:
        super().__init__(*replies)
        self.alive, self.probes = alive, 0

    async def probe(self, seconds: float) -> bool:
        self.probes += 1
        return self.alive


@asynccontextmanager
async def bench(
    tmp_path: Path,
    first: Scripted,
    second: Scripted | None,
    *,
    limits: ProviderLimits | None = None,
    rests: list[QuotaRest] | None = None,
    place: str = "two",
    **more: Any,
) -> AsyncIterator[Bench]:
    """Serve `m` by `first` (chat completions), with `second` (messages) as fallback, at the address `place`."""
    records: list[CallRecord] = []
    clock, waits = SteppedClock(), list[float]()
    providers = Providers({"one": limits or ProviderLimits()}, clock=clock)

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock.advance(seconds)

    other = second or Scripted(GONE)
    behind = ServedModel(
        name="n", dialect="anthropic", model="claude", upstream=other, price=PRICE, provider=place
    )
    model = ServedModel(
        name="m",
        dialect="openai",
        model="up",
        upstream=first,
        price=PRICE,
        provider="one",
        fallback=() if second is None else (behind,),
        **more,
    )
    path = tmp_path / "gateway.sock"
    async with Gateway(
        [model],
        ServedAttempt(id="a-1", ledger=MemoryLedger(1.0)),
        CallListeners(on_call=records.append, on_quota=(rests if rests is not None else []).append),
        providers=providers,
        clock=clock,
        sleep=sleep,
    ) as gateway:
        await gateway.listen_unix(path)
        transport = httpx.AsyncHTTPTransport(uds=str(path), verify=False)
        headers = {"authorization": f"Bearer {gateway.token}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers) as client:
            yield Bench(client, first, other, records, providers, clock, waits)


CLAUDE = Reply(pieces=[anthropic_whole()])
GOOD = Reply(pieces=[openai_whole()])
CUT = UpstreamError("it broke", code="upstream_cut")


@pytest.mark.parametrize(
    "fault",
    [
        GONE,
        Reply(error=UpstreamError("silent", code="upstream_timeout")),
        Reply(error=CUT),
        Reply(pieces=[b"{", CUT]),
        Reply(pieces=[b'{"half": ']),
        Reply(status=500, pieces=[b"{}"]),
        Reply(status=529, pieces=[b"{}"]),
        Reply(status=429, pieces=[b"{}"]),
        Reply(status=429, headers={"retry-after": "18000", **JSON}, pieces=[b"{}"]),
        Reply(status=401, pieces=[b"{}"]),
        Reply(status=404, pieces=[b"{}"]),
    ],
)
async def test_the_next_model_answers_at_once_in_the_dialect_of_the_client(tmp_path: Path, fault: Reply) -> None:
    async with bench(tmp_path, Scripted(fault), Scripted(CLAUDE)) as chained:
        reply = await chained.ask()
    assert reply.status_code == 200
    assert reply.json()["choices"][0]["message"]["content"] == "hello"
    assert reply.headers["x-chargehand-model"] == "n"
    assert chained.waits == []
    assert [(record.model, record.status) for record in chained.records] == [("m", "failed"), ("n", "ok")]
    # 10 plain, 80 cached at a tenth, 10 written at 1.25, 3 out: counted as by its own provider.
    assert chained.records[1].cost_usd == pytest.approx(60.5e-6)


@pytest.mark.parametrize("status", [400, 422])
async def test_an_invalid_request_is_not_sent_to_the_next_model(tmp_path: Path, status: int) -> None:
    wrong = Reply(status=status, pieces=[b'{"error": {"message": "no"}}'])
    async with bench(tmp_path, Scripted(wrong), Scripted(CLAUDE)) as chained:
        assert (await chained.ask()).status_code == status
    assert chained.second.calls == []


async def test_a_started_stream_is_not_retried_with_the_next_model(tmp_path: Path) -> None:
    cut = Reply(headers=SSE, pieces=[chunk({"content": "he"}), CUT])
    async with bench(tmp_path, Scripted(cut), Scripted(CLAUDE)) as chained:
        reply = await chained.ask({**ASK, "stream": True})
    assert "upstream_cut" in reply.text
    assert "[DONE]" not in reply.text
    assert chained.second.calls == []


async def test_a_stream_is_translated_both_ways(tmp_path: Path) -> None:
    streamed = Reply(headers=SSE, pieces=anthropic_stream("he", "llo"))
    async with bench(tmp_path, Scripted(GONE), Scripted(streamed)) as chained:
        reply = await chained.ask({**ASK, "stream": True})
    assert reply.text.endswith("data: [DONE]\n\n")
    assert [json.loads(line[6:])["choices"][0]["delta"].get("content") for line in _chunks(reply.text)][:2] == [
        "he",
        "llo",
    ]
    sent = chained.second.calls[0]
    assert (sent.dialect, sent.body["model"], sent.body["max_tokens"]) == ("anthropic", "claude", 50)
    async with bench(tmp_path, Scripted(Reply(headers=SSE, pieces=openai_stream("hi"))), None) as chained:
        reply = await chained.ask({**ASK, "stream": True}, MESSAGES)
    assert "event: message_stop" in reply.text
    assert '"text":"hi"' in reply.text


def _chunks(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("data: {") and '"choices":[{' in line]


async def test_a_translated_stream_that_breaks_off_never_looks_whole(tmp_path: Path) -> None:
    cut = Reply(headers=SSE, pieces=openai_stream("he", "llo")[:2])
    async with bench(tmp_path, Scripted(cut), None) as chained:
        reply = await chained.ask({**ASK, "stream": True}, MESSAGES)
    assert "message_stop" not in reply.text
    assert "upstream_cut" in reply.text
    assert chained.records[-1].cost_usd is None
    assert chained.records[-1].usage.input is None  # no provider counted the zero of the client's dialect


async def test_a_model_that_takes_no_pictures_is_left_out_with_a_reason(tmp_path: Path) -> None:
    seen = {**ASK, "messages": [{"role": "user", "content": [PICTURE]}]}
    async with bench(tmp_path, Scripted(GOOD), Scripted(CLAUDE), images=False, files=False) as chained:
        reply = await chained.ask(seen)
        assert (reply.headers["x-chargehand-model"], reply.headers["x-chargehand-skipped"]) == ("n", "1")
        assert chained.second.calls[0].body["messages"][0]["content"][0]["source"]["data"] == "AA=="
    async with bench(tmp_path, Scripted(GOOD), None, images=False, files=False) as chained:
        refused = await chained.ask(seen)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "uncarried")
    assert "takes no images" in refused.json()["error"]["message"]
    assert chained.records == []


async def test_hints_of_another_dialect_are_named_in_the_reply(tmp_path: Path) -> None:
    async with bench(tmp_path, Scripted(GONE), Scripted(CLAUDE)) as chained:
        reply = await chained.ask({**ASK, "seed": 7, "logit_bias": {"1": 2}})
    assert reply.headers["x-chargehand-left-out"] == "logit_bias, seed"


async def test_a_group_of_tools_is_left_out_for_other_dialects(tmp_path: Path) -> None:
    plain = {"type": "function", "name": "run", "parameters": {"type": "object"}}
    group = {"type": "namespace", "name": "agents", "tools": [{**plain, "name": "spawn"}]}
    async with bench(tmp_path, Scripted(GOOD), None) as chained:
        reply = await chained.ask({"model": "m", "input": "hi", "tools": [plain, group]}, "/v1/responses")
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-chargehand-left-out"] == "tools.namespace"
    assert [tool["function"]["name"] for tool in chained.first.calls[0].body["tools"]] == ["run"]


async def test_a_provider_is_skipped_after_three_faults_until_a_probe_succeeds(tmp_path: Path) -> None:
    first = Probed(GONE, GONE, GONE, GOOD, alive=False)
    async with bench(tmp_path, first, Scripted(CLAUDE)) as chained:
        for _ in range(5):
            assert (await chained.ask()).headers["x-chargehand-model"] == "n"
        assert len(first.calls) == 3
        assert chained.providers.of("one", "up").state == "open"
        chained.clock.advance(15)
        assert chained.providers.of("one", "up").state == "half_open"
        # The client does not wait for a model that may still be down.
        assert (await chained.ask()).headers["x-chargehand-model"] == "n"
        await asyncio.sleep(0)
        assert (first.probes, len(first.calls), chained.providers.of("one", "up").state) == (1, 3, "open")
        first.alive = True
        chained.clock.advance(30)
        await chained.ask()
        async with asyncio.timeout(60):
            while chained.providers.of("one", "up").state != "closed":
                await asyncio.sleep(0.01)
        assert (await chained.ask()).headers["x-chargehand-model"] == "m"
    assert first.probes == 2


ENDLESS = Reply(pieces=[json.dumps({**json.loads(openai_whole()), "choices": []}).encode()])


@pytest.mark.parametrize("reply", [ENDLESS], ids=["no end"])
async def test_a_reply_that_cannot_be_translated_is_paid_once_and_is_its_models_fault(
    tmp_path: Path, reply: Reply
) -> None:
    async with bench(tmp_path, Scripted(reply), Scripted(CLAUDE), place="one") as chained:
        # The second model speaks the client's dialect, but is only called if the first one fails.
        answered = [await chained.ask(path=MESSAGES) for _ in range(4)]
        assert [one.status_code for one in answered] == [200] * 4
        assert {one.headers["x-chargehand-model"] for one in answered} == {"n"}
        # After three failures it is left out; the other model at the same address never is.
        assert (len(chained.first.calls), len(chained.second.calls), chained.waits) == (3, 4, [])
        assert chained.providers.of("one", "up").state == "open"
        assert chained.providers.of("one", "claude").state == "closed"
    failed = [record for record in chained.records if record.model == "m"]
    assert [(record.status, record.reason.partition(":")[0]) for record in failed] == [
        ("failed", "reply_unreadable")
    ] * 3
    assert [record.cost_usd for record in failed] == pytest.approx([130e-6] * 3), "it is whole: its cost is known"


async def test_a_reply_that_cannot_be_translated_is_not_asked_for_again(tmp_path: Path) -> None:
    async with bench(tmp_path, Scripted(ENDLESS), None) as chained:
        reply = await chained.ask(path=MESSAGES)
    assert (reply.status_code, reply.json()["error"]["code"]) == (502, "reply_unreadable")
    assert reply.headers["x-should-retry"] == "false"
    assert (len(chained.first.calls), chained.waits) == (1, [])


@pytest.mark.parametrize(
    ("fault", "alone"),
    [
        (Reply(status=500, pieces=[b"{}"]), True),
        (Reply(error=CUT), True),
        (Reply(pieces=[b"<html>"]), True),
        (Reply(error=UpstreamError("silent", code="upstream_timeout")), True),
        (Reply(status=429, headers={"retry-after": "40", **JSON}, pieces=[b"{}"]), True),
        (Reply(headers=SSE, pieces=[chunk({"content": "a"}), b'data: {"error": {"message": "over"}}\n\n']), True),
        (GONE, False),
    ],
)
async def test_only_a_connection_that_fails_shuts_the_other_models_of_an_address(
    tmp_path: Path, fault: Reply, alone: bool
) -> None:
    other = CLAUDE if alone else GONE
    async with bench(tmp_path, Scripted(fault), Scripted(other), place="one") as chained:
        for _ in range(3):
            await chained.ask({**ASK, "stream": True})
        assert chained.providers.of("one", "up").wait() > 0
        assert (chained.providers.of("one", "claude").wait() == 0) is alone


async def test_faults_of_calls_that_were_under_way_do_not_lengthen_the_rest(tmp_path: Path) -> None:
    go = asyncio.Event()
    late = Reply(status=500, pieces=[b"{}"], wait=go)
    async with bench(tmp_path, Scripted(late), Scripted(CLAUDE)) as chained:
        asked = [asyncio.create_task(chained.ask()) for _ in range(12)]
        while len(chained.first.calls) < 12:
            await asyncio.sleep(0.001)
        go.set()
        assert {(await one).status_code for one in asked} == {200}
        assert chained.providers.of("one", "up").wait() == pytest.approx(15.0)


async def test_the_only_model_is_probed_without_cost_before_a_paid_call(tmp_path: Path) -> None:
    first = Probed(*[GONE] * 4, GOOD, alive=False)
    async with bench(tmp_path, first, None) as chained:
        assert (await chained.ask()).status_code == 502
        assert len(first.calls) == 4
        refused = await chained.ask()
        assert (refused.status_code, refused.json()["error"]["code"]) == (502, "upstream_unreachable")
        assert (len(first.calls), first.probes) == (4, 1)
        first.alive = True
        assert (await chained.ask()).status_code == 200
    assert (len(first.calls), first.probes) == (5, 2)
    assert max(chained.waits) <= 60


async def test_a_model_that_fails_at_its_trial_rests_again_at_once(tmp_path: Path) -> None:
    first = Probed(Reply(status=500, pieces=[b"{}"]))
    async with bench(tmp_path, first, Scripted(CLAUDE)) as chained:
        for _ in range(4):
            await chained.ask()
        chained.clock.advance(15)
        for _ in range(2):
            assert (await chained.ask()).headers["x-chargehand-model"] == "n"
        # A list of models says nothing about a failing one: the call itself is its trial.
        assert (len(first.calls), first.probes) == (4, 0)
        assert chained.providers.of("one", "up").wait() == pytest.approx(30.0)


async def test_an_exhausted_quota_is_reported_without_further_calls(tmp_path: Path) -> None:
    spent = Reply(status=429, headers={"retry-after": "18000", **JSON}, pieces=[b'{"error": {}}'])
    async with bench(tmp_path, Scripted(spent, GOOD), None) as chained:
        for _ in range(3):
            reply = await chained.ask()
            assert (reply.status_code, reply.json()["error"]["code"]) == (429, "quota_exhausted")
            assert reply.headers["retry-after"] == "18000"
            assert reply.headers["x-should-retry"] == "false"
        assert len(chained.first.calls) == 1
        chained.clock.advance(18_001)
        assert (await chained.ask()).status_code == 200


@pytest.mark.parametrize(
    ("headers", "body", "seconds"),
    [
        ({"retry-after-ms": "1500"}, b"{}", 1.5),
        ({}, b'{"error": {"details": [{"retryDelay": "34s"}]}}', 34.0),
        ({}, b'{"error": {"code": "insufficient_quota"}}', 300.0),
        ({"anthropic-ratelimit-unified-reset": "RESET"}, b"{}", 18_000.0),
    ],
)
async def test_every_way_to_ask_for_a_rest_is_understood(
    tmp_path: Path, headers: dict[str, str], body: bytes, seconds: float
) -> None:
    async with bench(tmp_path, Scripted(CLAUDE), Scripted(CLAUDE)) as chained:
        moment = int(chained.clock.now().timestamp()) + 18_000
        headers = {name: value.replace("RESET", str(moment)) for name, value in headers.items()}
        chained.first.replies[:] = [Reply(status=429, headers={**headers, **JSON}, pieces=[body])]
        await chained.ask()
        assert chained.providers.of("one", "up").resting == pytest.approx(seconds, abs=1.0)


async def test_a_short_rest_of_the_only_model_is_waited_out(tmp_path: Path) -> None:
    async with bench(tmp_path, Scripted(GOOD), None) as chained:
        chained.providers.of("one", "up").note_rest(7)
        assert (await chained.ask()).status_code == 200
    assert chained.waits == pytest.approx([7.0])


async def test_calls_to_a_provider_keep_to_its_share(tmp_path: Path) -> None:
    most, running = 0, 0

    class Counting(Scripted):
        async def send(self, call: Any) -> Any:
            nonlocal most, running
            running += 1
            most = max(most, running)
            for _ in range(3):
                await asyncio.sleep(0)
            running -= 1
            return await super().send(call)

    async with bench(tmp_path, Counting(GOOD), None, limits=ProviderLimits(concurrency=2)) as chained:
        replies = await asyncio.gather(*(chained.ask() for _ in range(6)))
    assert [reply.status_code for reply in replies] == [200] * 6
    assert most <= 2
    async with bench(tmp_path, Scripted(GOOD), None, limits=ProviderLimits(per_minute=30)) as chained:
        for _ in range(3):
            await chained.ask()
    assert sum(chained.waits) == pytest.approx(4.0)


def spent(seconds: float) -> Reply:
    return Reply(status=429, headers={"retry-after": str(seconds), **JSON}, pieces=[b'{"error": {}}'])


@pytest.mark.parametrize(
    ("first", "second", "wait", "provider"),
    [
        (spent(18_000), spent(7_200), 7_200, "two"),
        (spent(3_600), spent(7_200), 3_600, "one"),
        (spent(18_000), GONE, 18_000, "one"),  # no model answers, one of them only for lack of quota
        (spent(18_000), Reply(status=401, headers=JSON, pieces=[b"{}"]), 18_000, "one"),
    ],
)
async def test_the_earliest_end_of_several_quotas_is_reported(
    tmp_path: Path, first: Reply, second: Any, wait: int, provider: str
) -> None:
    rests: list[QuotaRest] = []
    async with bench(tmp_path, Scripted(first), Scripted(*[second] * 4), rests=rests) as chained:
        reply = await chained.ask()
        moment = chained.clock.now()
    assert (reply.status_code, reply.json()["error"]["code"]) == (429, "quota_exhausted")
    assert float(reply.headers["retry-after"]) == pytest.approx(wait, abs=5)
    assert [(rest.model, rest.provider) for rest in rests] == [("m", provider)]
    assert (rests[0].until - moment).total_seconds() == pytest.approx(wait, abs=5)


async def test_no_quota_is_reported_if_the_next_model_answers(tmp_path: Path) -> None:
    rests: list[QuotaRest] = []
    async with bench(tmp_path, Scripted(spent(18_000)), Scripted(CLAUDE, CLAUDE), rests=rests) as chained:
        for _ in range(2):
            assert (await chained.ask()).headers["x-chargehand-model"] == "n"
    assert rests == []
