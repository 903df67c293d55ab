"""The gateway's reactions to unexpected behaviour of its provider, its client or its owner."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway_kit import (
    DONE,
    JSON,
    SSE,
    Reply,
    anthropic_stream,
    anthropic_whole,
    chunk,
    event,
    gateway,
    openai_stream,
    openai_whole,
)

from chargehand.core.errors import UpstreamError
from chargehand.models.contract import Dialect

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 100}
STREAM = {**ASK, "stream": True}
MESSAGES = "/v1/messages"
GOOD = Reply(pieces=[openai_whole()])


def cut(code: str = "upstream_cut") -> UpstreamError:
    return UpstreamError("it broke", code=code)


def error_code(reply: httpx.Response) -> str:
    return str(reply.json()["error"]["code"])


@pytest.mark.parametrize("status", [429, 500, 502, 503, 529])
async def test_a_passing_fault_is_tried_again(tmp_path: Path, status: int) -> None:
    async with gateway(tmp_path, Reply(status=status, pieces=[b"{}"]), GOOD) as running:
        reply = await running.post(ASK)
        record = await running.settled()
    assert reply.status_code == 200
    assert (record.status, record.retried, len(running.upstream.calls)) == ("ok", (str(status),), 2)
    assert 0.5 <= running.waits[0] <= 0.625
    assert len({call.id for call in running.upstream.calls}) == 1


async def test_the_last_fault_is_returned_after_retries_without_cost(tmp_path: Path) -> None:
    async with gateway(tmp_path, Reply(status=503, pieces=[b'{"error":{"message":"later"}}'])) as running:
        reply = await running.post(ASK)
        record = await running.settled()
    assert (reply.status_code, reply.json()) == (503, {"error": {"message": "later"}})
    assert len(running.upstream.calls) == 4
    assert [round(wait / base) for wait, base in zip(running.waits, (0.5, 1, 2), strict=True)] == [1, 1, 1]
    assert (record.status, record.http_status, record.cost_usd, record.booked_usd) == ("failed", 503, 0.0, 0.0)
    assert record.retried == ("503", "503", "503")


@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_a_lasting_fault_is_passed_on_at_once_without_secrets(tmp_path: Path, status: int) -> None:
    wrong = Reply(status=status, pieces=[b'{"error":{"message":"bad key sk-secret"}}'])
    hide = {"redact": lambda text: text.replace("sk-secret", "[redacted]")}
    async with gateway(tmp_path, wrong, **hide) as running:
        reply = await running.post(ASK)
    assert (reply.status_code, reply.json()["error"]["message"]) == (status, "bad key [redacted]")
    assert len(running.upstream.calls) == 1


@pytest.mark.parametrize("given", ["7", "Thu, 01 Jan 2026 00:00:07 GMT"])
async def test_retry_after_is_honoured(tmp_path: Path, given: str) -> None:
    busy = Reply(status=429, headers={"Retry-After": given}, pieces=[b"{}"])
    async with gateway(tmp_path, busy, GOOD) as running:
        assert (await running.post(ASK)).status_code == 200
    assert running.waits == [7.0]


async def test_a_long_retry_after_is_the_clients_to_wait(tmp_path: Path) -> None:
    busy = Reply(status=429, headers={"Retry-After": "61", **JSON}, pieces=[b'{"error":{}}'])
    async with gateway(tmp_path, busy, GOOD) as running:
        reply = await running.post(ASK)
    assert (reply.status_code, reply.headers["retry-after"], reply.content) == (429, "61", b'{"error":{}}')
    assert running.waits == []


async def test_an_invalid_retry_after_is_ignored(tmp_path: Path) -> None:
    async with gateway(tmp_path, Reply(status=429, headers={"retry-after": "soon"}), GOOD) as running:
        assert (await running.post(ASK)).status_code == 200
    assert 0.5 <= running.waits[0] <= 0.625


@pytest.mark.parametrize("body", [ASK, STREAM])
async def test_an_unreachable_provider_is_tried_again_then_reported(tmp_path: Path, body: object) -> None:
    async with gateway(tmp_path, Reply(error=cut("upstream_unreachable"))) as running:
        reply = await running.post(body)
        record = await running.settled()
    assert (reply.status_code, error_code(reply)) == (502, "upstream_unreachable")
    assert len(running.upstream.calls) == 4
    assert (record.status, record.booked_usd, record.retried) == ("failed", 0.0, ("unreachable",) * 3)


@pytest.mark.parametrize(
    "broken",
    [
        Reply(pieces=[b'{"choices"', cut()]),
        Reply(pieces=[b'{"choices"']),
        Reply(error=cut()),
    ],
    ids=["cut", "malformed", "no-head"],
)
async def test_an_incomplete_reply_is_retried_with_a_separate_booking(tmp_path: Path, broken: Reply) -> None:
    async with gateway(tmp_path, broken, GOOD) as running:
        reply = await running.post(ASK)
    lost, good = running.records
    assert reply.json()["choices"][0]["message"]["content"] == "hello"
    assert (lost.status, lost.cost_usd, lost.turn) == ("failed", None, 1)
    assert (good.status, good.turn) == ("ok", 1)
    # The provider may charge for both.
    assert lost.booked_usd > 0
    assert lost.call != good.call


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (Reply(pieces=[b'{"cho', cut()]), "upstream_cut"),
        (Reply(pieces=[b"hello"]), "upstream_malformed"),
    ],
)
async def test_half_a_reply_again_and_again_is_a_fault(tmp_path: Path, broken: Reply, code: str) -> None:
    async with gateway(tmp_path, broken, retries=2) as running:
        reply = await running.post(ASK)
    assert (reply.status_code, error_code(reply)) == (502, code)
    assert len(running.upstream.calls) == len(running.records) == 3


async def test_a_web_page_is_not_asked_for_again(tmp_path: Path) -> None:
    async with gateway(tmp_path, Reply(pieces=[b"<html>"]), retries=2) as running:
        reply = await running.post(ASK)
    assert (reply.status_code, error_code(reply)) == (502, "upstream_page")
    assert len(running.upstream.calls) == len(running.records) == 1


async def test_a_retry_without_budget_returns_the_first_fault(tmp_path: Path) -> None:
    async with gateway(tmp_path, Reply(pieces=[b"hello"]), limit=0.0015) as running:
        reply = await running.post({**ASK, "max_tokens": 100})
    assert error_code(reply) == "upstream_malformed"
    assert [record.status for record in running.records] == ["failed", "refused"]


async def test_a_redirect_is_not_followed_and_not_passed_on(tmp_path: Path) -> None:
    async with gateway(tmp_path, Reply(status=307, headers={"location": "http://evil"})) as running:
        reply = await running.post(ASK)
    assert (reply.status_code, error_code(reply)) == (502, "upstream_malformed")
    assert "location" not in reply.headers


async def test_a_cut_stream_ends_in_an_error_event_and_is_not_retried(tmp_path: Path) -> None:
    broken = Reply(headers=SSE, pieces=[chunk({"content": "he"}), b'data: {"half', cut()])
    async with gateway(tmp_path, broken) as running:
        reply = await running.post(STREAM)
        record = await running.settled()
    first, last = [line for line in reply.text.split("\n\n") if line]
    assert json.loads(first[6:])["choices"][0]["delta"]["content"] == "he"
    assert json.loads(last[6:])["error"]["code"] == "upstream_cut"
    assert (record.status, record.http_status, record.cost_usd) == ("cut", 200, None)
    assert record.booked_usd == pytest.approx(running.ledger.booked)
    assert "after 1 pieces" in record.reason


async def test_a_stream_that_just_ends_is_cut_too(tmp_path: Path) -> None:
    async with gateway(
        tmp_path, Reply(headers=SSE, pieces=anthropic_stream("he")[:5]), dialect="anthropic"
    ) as running:
        reply = await running.post(STREAM, MESSAGES)
        record = await running.settled()
    assert reply.text.rstrip().rpartition("\n\n")[2].startswith("event: error\n")
    assert (record.status, record.usage.input, record.usage.output) == ("cut", 100, None)


async def test_a_stream_cut_before_its_first_event_is_retried(tmp_path: Path) -> None:
    good = Reply(headers=SSE, pieces=openai_stream("hello"))
    async with gateway(tmp_path, Reply(headers=SSE, pieces=[b"data: {", cut()]), good) as running:
        reply = await running.post(STREAM)
    assert reply.text.endswith("data: [DONE]\n\n")
    assert [record.status for record in running.records] == ["failed", "ok"]


async def test_a_stream_without_its_last_word_is_whole_when_the_model_was_done(tmp_path: Path) -> None:
    pieces = [*openai_stream("hello")[:-1], b"data: [DONE]"]
    async with gateway(
        tmp_path, Reply(headers=SSE, pieces=pieces), Reply(headers=SSE, pieces=pieces[:-1])
    ) as running:
        assert (await running.post(STREAM)).text.endswith("data: [DONE]\n\n")
        assert "error" not in (await running.post(STREAM)).text
    assert [record.status for record in running.records] == ["ok", "ok"]
    assert running.records[0].cost_usd == pytest.approx(130e-6)


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_an_error_inside_a_stream_passes_and_leaves_the_cost_unknown(
    tmp_path: Path, dialect: Dialect
) -> None:
    last = {
        "openai": b'data: {"error": {"message": "overloaded"}}\n\n',
        "anthropic": event("error", error={"type": "overloaded_error", "message": "overloaded"}),
    }[dialect]
    first = chunk({"content": "he"}) if dialect == "openai" else anthropic_stream()[0]
    async with gateway(tmp_path, Reply(headers=SSE, pieces=[first, last]), dialect=dialect) as running:
        path = "/v1/chat/completions" if dialect == "openai" else MESSAGES
        reply = await running.post(STREAM, path)
        record = await running.settled()
    assert reply.content.endswith(last)
    assert (record.status, record.cost_usd, record.reason) == ("cut", None, "upstream_error: overloaded")


@pytest.mark.parametrize("stalled", ["head", "body", "stream"])
async def test_a_stall_is_a_timeout(tmp_path: Path, stalled: str) -> None:
    never = asyncio.Event()
    replies = {
        "head": Reply(wait=never),
        "body": Reply(pieces=[b"{", never]),
        "stream": Reply(headers=SSE, pieces=[chunk({"content": "he"}), never]),
    }
    status = 200 if stalled == "stream" else 504
    for number, seconds in enumerate((0.03, 1, 10)):  # a busy machine may miss the first limit
        (place := tmp_path / str(number)).mkdir()
        async with gateway(place, replies[stalled], call_seconds=seconds) as running:
            reply = await running.post(STREAM if stalled == "stream" else ASK)
        if reply.status_code == status:
            break
    assert "upstream_timeout" in reply.text
    assert reply.status_code == status
    # The provider is asked once more as long as the client has received nothing of the reply.
    ends = ["cut"] if stalled == "stream" else ["failed", "failed"]
    assert [(record.status, record.cost_usd) for record in running.records] == [(end, None) for end in ends]
    assert running.upstream.open == 0
    assert len(running.upstream.calls) == len(ends)


async def test_a_drip_is_no_stall(tmp_path: Path) -> None:
    body, loop = openai_whole("x" * 40), asyncio.get_running_loop()
    pieces: list[bytes | asyncio.Event] = []
    size = len(body) // 12 + 1
    for at in range(0, len(body), size):
        pieces += [body[at : at + size], asyncio.Event()]
    # The whole reply takes longer than the limit, but no single piece does.
    for number, each in enumerate(pieces[1::2], 1):
        loop.call_later(0.1 * number, each.set)
    async with gateway(tmp_path, Reply(pieces=pieces), call_seconds=1.0) as running:
        assert (await running.post(ASK)).content == body


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_a_provider_that_ignores_the_limit_is_cut(tmp_path: Path, dialect: Dialect) -> None:
    words = [str(i) for i in range(50)]
    pieces = openai_stream(*words) if dialect == "openai" else anthropic_stream(*words)
    path = "/v1/chat/completions" if dialect == "openai" else MESSAGES
    async with gateway(tmp_path, Reply(headers=SSE, pieces=pieces), dialect=dialect) as running:
        reply = await running.post({**STREAM, "max_tokens": 20}, path)
        record = await running.settled()
    assert "limit of 20 output tokens" in reply.text
    assert "[DONE]" not in reply.text
    assert "message_stop" not in reply.text
    assert reply.text.count('"delta"') == 20
    code = json.loads(reply.text.rstrip().rpartition("data: ")[2])["error"]["code"]
    assert code == "budget_exhausted"
    assert (record.status, record.cost_usd) == ("cut", None)
    assert record.booked_usd <= 1.0
    assert (running.upstream.open, running.upstream.closed_early) == (0, 1)


async def test_a_provider_that_keeps_the_limit_is_not_cut(tmp_path: Path) -> None:
    words = [str(i) for i in range(20)]
    async with gateway(tmp_path, Reply(headers=SSE, pieces=openai_stream(*words))) as running:
        assert (await running.post({**STREAM, "max_tokens": 20})).text.endswith("[DONE]\n\n")


async def test_revoking_cuts_a_running_stream_and_later_calls(tmp_path: Path) -> None:
    never = asyncio.Event()
    async with gateway(tmp_path, Reply(headers=SSE, pieces=[chunk({"content": "he"}), never])) as running:
        async with running.client.stream("POST", "/v1/chat/completions", json=STREAM) as stream:
            lines = stream.aiter_lines()
            assert "he" in await anext(lines)
            running.gateway.revoke()
            rest = "".join([line async for line in lines])
        assert json.loads(rest.partition("data: ")[2])["error"]["code"] == "token_revoked"
        record = await running.settled()
        later = await running.post(ASK)
        messages = await running.post(ASK, MESSAGES)
    assert (record.status, record.reason.partition(":")[0]) == ("cut", "token_revoked")
    assert (later.status_code, error_code(later)) == (401, "token_revoked")
    assert messages.json()["error"]["type"] == "authentication_error"
    assert running.upstream.open == 0
    assert len(running.upstream.calls) == 1


async def test_revoking_answers_a_call_that_still_waits(tmp_path: Path) -> None:
    async with gateway(tmp_path, Reply(wait=asyncio.Event())) as running:
        waiting = asyncio.create_task(running.post(ASK))
        while not running.upstream.calls:
            await asyncio.sleep(0.001)
        running.gateway.revoke()
        reply = await waiting
    assert (reply.status_code, error_code(reply)) == (401, "token_revoked")


@pytest.mark.parametrize("body", [ASK, STREAM])
async def test_a_disconnected_client_closes_the_upstream(tmp_path: Path, body: object) -> None:
    never = asyncio.Event()
    pieces = [chunk({"content": "he"}), never] if body is STREAM else [b"{", never]
    headers = SSE if body is STREAM else JSON
    async with gateway(tmp_path, Reply(headers=headers, pieces=pieces)) as running:
        call = asyncio.create_task(running.post(body))
        while not running.upstream.open:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        record = await running.settled()
        assert running.upstream.open == 0
    assert record.reason.startswith("client_gone")
    assert (record.cost_usd, record.status) == (None, "cut" if body is STREAM else "failed")
    assert record.booked_usd > 0


async def test_closing_settles_running_calls(tmp_path: Path) -> None:
    async with gateway(tmp_path, Reply(wait=asyncio.Event())) as running:
        call = asyncio.create_task(running.post(ASK))
        while not running.upstream.calls:
            await asyncio.sleep(0.001)
        await running.gateway.close()
        (record,) = running.records
        assert (await call).status_code == 401
        await running.gateway.close()
    assert record.status == "failed"
    assert not (tmp_path / "gateway.sock").exists()


async def test_a_megabyte_passes_whole_and_streamed(tmp_path: Path) -> None:
    text = "x" * 1_000_000
    large = [chunk({"content": text}), chunk({}, finish="stop"), DONE]
    joined = b"".join(large)
    pieces = [joined[i : i + 65_536] for i in range(0, len(joined), 65_536)]
    async with gateway(tmp_path, Reply(pieces=[openai_whole(text)]), Reply(headers=SSE, pieces=pieces)) as running:
        assert (await running.post(ASK)).json()["choices"][0]["message"]["content"] == text
        assert (await running.post(STREAM)).content == joined


async def test_the_usage_chunk_is_sent_only_on_request(tmp_path: Path) -> None:
    async with gateway(tmp_path, Reply(headers=SSE, pieces=openai_stream("hello"))) as running:
        assert "prompt_tokens" not in (await running.post(STREAM)).text
        assert "prompt_tokens" in (await running.post({**STREAM, "stream_options": {"include_usage": True}})).text
    assert [record.usage.input for record in running.records] == [100, 100]


async def test_events_with_windows_line_ends_are_passed_unchanged(tmp_path: Path) -> None:
    plain = b"".join(piece for piece in openai_stream("a", "b", usage=None) if isinstance(piece, bytes))
    windows = b": comment\r\n\r\n" + plain.replace(b"\n", b"\r\n")
    pieces = [windows[i : i + 1] for i in range(len(windows))]
    async with gateway(tmp_path, Reply(headers=SSE, pieces=pieces)) as running:
        assert (await running.post(STREAM)).content == windows
        record = await running.settled()
    # No usage arrived, so the reserve stays booked.
    assert (record.status, record.cost_usd) == ("ok", None)
    assert record.booked_usd > 0


async def test_two_hundred_streams_at_once(tmp_path: Path) -> None:
    start = asyncio.Event()
    async with gateway(
        tmp_path, Reply(headers=SSE, pieces=[chunk({"content": "a"}), start, *openai_stream("b")]), limit=None
    ) as running:
        body = json.dumps(STREAM).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nx-api-key: {running.gateway.token}\r\n"
        head += f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"

        async def ask() -> bytes:
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "gateway.sock"))
            writer.write(head.encode() + body)
            reply = await reader.read()
            writer.close()
            await writer.wait_closed()
            return reply

        calls = [asyncio.create_task(ask()) for _ in range(200)]
        while running.upstream.open < 200:
            await asyncio.sleep(0.005)
        start.set()
        replies = await asyncio.gather(*calls)
    assert all(reply.count(b"[DONE]") == 1 for reply in replies)
    assert len(running.records) == 200
    assert {record.turn for record in running.records} == set(range(1, 201))


async def test_anthropic_replies_pass_whole(tmp_path: Path) -> None:
    async with gateway(tmp_path, Reply(pieces=[anthropic_whole()]), dialect="anthropic") as running:
        reply = await running.post(
            ASK, "/messages", headers={"anthropic-beta": "context-1m-2025, effort-2025", "anthropic-version": "y"}
        )
    assert reply.content == anthropic_whole()
    assert running.upstream.calls[0].headers == {"anthropic-beta": "effort-2025", "anthropic-version": "y"}
    assert reply.headers["x-chargehand-left-out"] == "context-1m-2025"
