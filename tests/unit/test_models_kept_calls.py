"""The recorded calls of an attempt: each is replayed once, to the same request, after any crash."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway_kit import (
    DONE,
    JSON,
    SSE,
    USAGE,
    Reply,
    anthropic_stream,
    chunk,
    gateway,
    openai_stream,
    openai_whole,
)

from chargehand.core.errors import UpstreamError
from chargehand.models.contract import Usage
from chargehand.models.metering import MemoryLedger
from chargehand.models.replay_cache import ReplayCache, WholeReply, read_kept_calls
from chargehand.models.request_matching import Divergence

TOKEN = "cht-0123456789abcdef0123456789abcdef"
OTHER = "cht-fedcba9876543210fedcba9876543210"


class Life:
    """One life of an attempt, with its reported divergences."""

    def __init__(self, path: Path, *, token: str = TOKEN, strict: bool = True) -> None:
        self.told: list[Divergence] = []
        secrets = {"KEY": "not-to-be-kept-9"}
        self.log = ReplayCache(path, secrets=secrets, token=token, strict=strict, on_diverged=self.told.append)
        self.turn = 0

    def ask(self, *words: str, reply: str | None = None, **more: Any) -> str | None:
        """Ask, and return the recorded reply; without one record `reply`, or nothing if it is `None`."""
        self.turn += 1
        body = {"model": "m", "messages": [{"role": "user", "content": word} for word in words], **more}
        asked = self.log.fingerprint("openai", "reply", body, turn=self.turn)
        kept = self.log.find(asked)
        if kept is not None:
            return text(self.log.body(kept))
        if reply is not None:
            whole = WholeReply(
                call=f"c-{uuid.uuid4()}",
                model="m",
                upstream="up",
                status=200,
                headers=JSON,
                body=openai_whole(reply),
                usage=Usage(input=1, output=2),
            )
            self.log.keep(asked, whole)
        return None


def text(body: bytes) -> str:
    return str(json.loads(body)["choices"][0]["message"]["content"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "calls" / "a-1.jsonl"


def test_a_request_gets_its_reply_again_once(path: Path) -> None:
    first = Life(path)
    for word in ("one", "two", "two"):
        assert first.ask(word, reply=f"{word} heard") is None
    first.log.close()
    again = Life(path)
    assert [again.ask("one"), again.ask("two"), again.ask("two"), again.ask("two")] == [
        "one heard",
        "two heard",
        "two heard",
        None,
    ]
    assert (again.told, path.stat().st_mode & 0o777, again.log.waiting) == ([], 0o600, 0)


def test_run_specific_ids_times_and_tokens_do_not_prevent_a_cache_hit(path: Path) -> None:
    def asks(life: Life, token: str, run: str, seconds: str) -> str | None:
        said = f"session {run}\nChunk ID: {run[:6]}\nWall time: {seconds} seconds\nuse {token}"
        return life.ask(said, reply=f"work in /tmp/{run} with {token}", max_tokens=int(seconds[-1]), user=run)

    runs = [str(uuid.uuid4()), str(uuid.uuid4())]
    assert asks(Life(path), TOKEN, runs[0], "0.5011") is None
    again = Life(path, token=OTHER)
    assert asks(again, OTHER, runs[1], "2.4002") == f"work in /tmp/{runs[1]} with {OTHER}"
    held = path.read_text()
    assert TOKEN not in held
    assert runs[0] not in held


def test_commits_dates_and_durations_may_differ_but_other_numbers_not(path: Path) -> None:
    """A new listing, a new commit: the recorded reply contains the commit's current name."""

    def asks(life: Life, commit: str, day: str, seconds: str, number: str) -> str | None:
        said = [f"HEAD is {commit}", f"Today's date is {day}", f"{number} passed in {seconds}s"]
        return life.ask(*said, reply=f"I look at {commit}")

    today, yesterday = (f"{datetime.now(UTC) - timedelta(days=days):%Y-%m-%d}" for days in (0, 1))
    assert asks(Life(path), "8368f87", yesterday, "0.52", "3") is None
    again = Life(path)
    assert asks(again, "d2da67a", today, "11.04", "3") == "I look at d2da67a"
    assert again.told == []
    other = Life(path)
    assert asks(other, "d2da67a", today, "11.04", "4") is None
    assert other.told[0].pointer == "/messages/2/content"
    assert (other.told[0].recorded, other.told[0].sent) == ('"3 passed in 0.52s"', '"4 passed in 11.04s"')


def test_only_the_first_divergence_is_reported(path: Path) -> None:
    first = Life(path)
    for words in (("a",), ("a", "b"), ("a", "b", "c")):
        first.ask(*words, reply=words[-1])
    second = Life(path)
    assert [second.ask("a"), second.ask("a", "x", reply="y"), second.ask("a", "b", "c")] == ["a", None, None]
    (told,) = second.told
    assert (told.turn, told.pointer, told.recorded, told.sent) == (2, "/messages/1/content", '"b"', '"x"')
    third = Life(path)  # follows the path of the second
    assert [third.ask("a"), third.ask("a", "x"), third.told] == ["a", "y", []]


def test_without_strict_order_kept_calls_match_silently(path: Path) -> None:
    first = Life(path, strict=False)
    first.ask("a", reply="1")
    first.ask("b", reply="2")
    second = Life(path, strict=False)
    assert [second.ask("c"), second.ask("b"), second.ask("a"), second.told] == [None, "2", "1", []]


def test_an_unanswered_concurrent_call_is_sent_again(path: Path) -> None:
    first = Life(path)
    first.ask("a", reply="1")
    first.ask("b")
    first.ask("c", reply="3")
    second = Life(path)
    assert [second.ask("a"), second.ask("b"), second.ask("c"), second.told] == ["1", None, "3", []]


@settings(deadline=None)
@given(cut=st.integers(min_value=0, max_value=3_000))
def test_complete_calls_of_a_truncated_file_are_replayed(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cut") / "a.jsonl"
    first = Life(path)
    for words in (("a",), ("a", "b"), ("a", "b", "c")):
        first.ask(*words, reply=words[-1])
    first.log.close()
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - cut])
    whole = path.read_bytes().count(b'"call"') - (cut > 0)
    for _ in range(2):  # and a new request is recorded after the torn line
        life = Life(path)
        found = [life.ask(*words, reply=words[-1]) for words in (("a",), ("a", "b"), ("a", "b", "c"))]
        assert life.told == []
        assert found == [*"abc"[: sum(each is not None for each in found)], *[None] * found.count(None)]
        assert sum(each is not None for each in found) >= whole
        whole = 3
        life.log.close()


def test_a_reply_with_a_suspected_secret_is_not_kept(path: Path) -> None:
    first = Life(path)
    first.ask("a", reply="key = sk-0123456789abcdef0123 and not-to-be-kept-9")
    first.ask("b", reply="2")
    assert b"sk-0123456789" not in path.read_bytes()
    assert b"not-to-be-kept-9" not in path.read_bytes()
    second = Life(path)
    assert [second.ask("a"), second.ask("b")] == [None, None]
    assert "not stored" in second.told[0].recorded


def test_each_part_of_a_conversation_is_kept_once(path: Path) -> None:
    life, words = Life(path), [f"word {number} " * 100 for number in range(30)]
    for number in range(1, 31):
        life.ask(*words[:number], reply="go on")
    assert path.stat().st_size < 3 * sum(map(len, words))


# --- behind a gateway


async def asked(tmp_path: Path, *replies: Any, stream: bool = False, **more: Any) -> Any:
    """Ask once through a gateway that records its calls; return response, upstream calls, and records."""
    log = ReplayCache(tmp_path / "calls.jsonl", secrets={}, token=TOKEN)
    try:
        async with gateway(tmp_path, *replies, calls=log, **more) as running:
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
            found = await running.post(body)
            return found, len(running.upstream.calls), running.records
    finally:
        log.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_gateway_replays_a_kept_reply_without_cost(tmp_path: Path, stream: bool) -> None:
    pieces = openai_stream("hel", "lo") if stream else [openai_whole()]
    reply = Reply(headers=SSE if stream else JSON, pieces=pieces)
    first, sent, _ = await asked(tmp_path, reply, stream=stream)
    assert (first.status_code, sent) == (200, 1)
    again, sent, (record,) = await asked(tmp_path, reply, stream=stream, ledger=MemoryLedger(0.0))
    assert (again.status_code, sent) == (200, 0)
    assert events(again.content) == events(first.content)
    assert again.headers["content-type"] == first.headers["content-type"]
    assert (record.status, record.cost_usd, record.booked_usd) == ("replayed", 0.0, 0.0)
    assert (record.usage.input, record.usage.output) == (100, 3)
    assert (record.call, record.turn) == (first.headers["x-chargehand-call"], 1)


def events(body: bytes) -> list[Any]:
    return [json.loads(line) if line.startswith("{") else line for line in lines(body)]


def lines(body: bytes) -> list[str]:
    return [line.removeprefix("data: ") for line in body.decode().splitlines() if line]


@pytest.mark.parametrize(
    "pieces",
    [
        [chunk({"content": "hel"}), UpstreamError("gone", code="upstream_cut")],
        [chunk({"content": "hel"})],
        [chunk({"content": "hel"}), chunk({}, finish="stop", usage=USAGE)[:20]],
    ],
)
async def test_half_a_reply_is_not_given_again(tmp_path: Path, pieces: list[Any]) -> None:
    cut = Reply(headers=SSE, pieces=pieces)
    _, _, records = await asked(tmp_path, cut, stream=True)
    assert records[-1].status == "cut"
    whole = Reply(headers=SSE, pieces=[*openai_stream("hello")[:-1], DONE])
    again, sent, records = await asked(tmp_path, whole, stream=True)
    assert (again.status_code, sent, records[-1].status) == (200, 1, "ok")


async def test_the_reply_is_on_the_disk_before_its_call_is_settled(tmp_path: Path) -> None:
    """And before the client has the end of it: the client's next step may kill the worker."""
    seen: list[int] = []

    class Looking(MemoryLedger):
        def settle(self, call: str, usd: float | None, *, most: float | None = None) -> None:
            seen.append((tmp_path / "calls.jsonl").read_bytes().count(b'"call"'))
            super().settle(call, usd, most=most)

    for stream in (False, True):
        pieces = openai_stream("hel", "lo") if stream else [openai_whole()]
        reply = Reply(headers=SSE if stream else JSON, pieces=pieces)
        await asked(tmp_path, reply, stream=stream, ledger=Looking(1.0))
    assert seen == [1, 2]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_kept_reply_records_its_cost(tmp_path: Path, stream: bool) -> None:
    pieces = openai_stream("hel", "lo") if stream else [openai_whole()]
    reply = Reply(headers=SSE if stream else JSON, pieces=pieces)
    _, _, (record,) = await asked(tmp_path, reply, stream=stream)
    (kept,) = read_kept_calls(tmp_path / "calls.jsonl").replies.values()
    assert (kept.call, kept.cost_usd) == (record.call, record.cost_usd)
    assert record.cost_usd == pytest.approx(130e-6)


async def test_the_cost_bound_of_a_stream_is_recorded_once_input_usage_is_known(tmp_path: Path) -> None:
    log = ReplayCache(tmp_path / "calls.jsonl", secrets={}, token=TOKEN)
    free = asyncio.Event()
    start, *rest = anthropic_stream("hello")
    reply = Reply(headers=SSE, pieces=[start, free, *rest])
    async with gateway(tmp_path, reply, dialect="anthropic", calls=log) as running:
        body = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}], "stream": True}
        asking = asyncio.create_task(running.post(body, "/v1/messages"))
        while not (bounds := read_kept_calls(tmp_path / "calls.jsonl").bounds):
            await asyncio.sleep(0.01)
        # 10 tokens read at 1 USD per million, 80 cached at 0.1, 10 written at 1.25; at most 50 of output at 10.
        assert list(bounds.values()) == [pytest.approx(530.5e-6)]
        asking.cancel()
        record = await running.settled()
    assert (record.call, record.cost_usd) == (next(iter(bounds)), None)
    assert (record.booked_usd, running.ledger.left()) == (pytest.approx(530.5e-6), pytest.approx(1 - 530.5e-6))
    log.close()


async def test_the_cost_bound_is_zero_while_a_call_waits_for_its_retry(tmp_path: Path) -> None:
    log, waits = ReplayCache(tmp_path / "calls.jsonl", secrets={}, token=TOKEN), []

    async def sleep(_: float) -> None:
        waits.append(dict(read_kept_calls(tmp_path / "calls.jsonl").bounds))

    def send(_: Any) -> Reply:
        (call,) = waits[0]
        assert read_kept_calls(tmp_path / "calls.jsonl").bounds[call] > 0.1, "it may cost something again"
        return Reply(pieces=[openai_whole()])

    unreachable = UpstreamError("gone", code="upstream_unreachable")
    for first in (Reply(status=500, pieces=[b"{}"]), Reply(error=unreachable)):
        waits.clear()
        async with gateway(tmp_path, first, send, calls=log, sleep=sleep) as running:
            body = {"model": "m", "messages": [{"role": "user", "content": str(first.status)}]}
            assert (await running.post(body)).status_code == 200
        assert [list(each.values()) for each in waits] == [[0.0]]
        (tmp_path / "calls.jsonl").write_bytes(b"")
    log.close()


async def test_only_a_kept_reply_can_be_asked_for(tmp_path: Path) -> None:
    log = ReplayCache(tmp_path / "calls.jsonl", secrets={}, token=TOKEN, strict=False)
    async with gateway(tmp_path, Reply(pieces=[openai_whole()]), calls=log) as running:
        body: Mapping[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        missing = await running.post(body, headers={"x-chargehand-kept": "only"})
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_kept")
        await running.post(body)
        assert [record.turn for record in running.records] == [1]
        assert len(running.upstream.calls) == 1
    log.close()
