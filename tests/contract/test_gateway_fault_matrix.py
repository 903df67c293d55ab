"""Every fault of a provider over real HTTP: the client's view with a single model, and with a fallback model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from tests.gateway_kit import DONE, PRICE, chunk, openai_whole

from chargehand.core.clock import SteppedClock
from chargehand.models.contract import CallListeners, CallRecord, ServedModel
from chargehand.models.gateway import Gateway, GatewayLimits, ServedAttempt
from chargehand.models.http_upstream import HttpUpstream
from chargehand.models.metering import MemoryLedger
from chargehand.models.providers import ProviderHealth, ProviderLimits, Providers

Behave = Callable[[asyncio.StreamWriter], Awaitable[None]]
CHAT = "/v1/chat/completions"
BIG = openai_whole("x" * 1_000_000)
TWIN = {"id": "one", "type": "function", "function": {"name": "look", "arguments": "{}"}}
TWINS = openai_whole("", tool_calls=[TWIN, TWIN])
ODD = openai_whole().replace(b'"finish_reason": "stop"', b'"finish_reason": "because"')
WORD = chunk({"role": "assistant", "content": "half"})


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The client's view: status and error code, how often the provider was called, and after how many waits."""

    status: int
    code: str = ""
    asked: int = 1
    waits: int = 0
    by: str = "m"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fault; `kept`: the reserve stays booked, as the call may cost. `rests`: the breaker or pause in force."""

    behave: Behave | None
    one: Seen
    chain: Seen
    kept: bool = False
    rests: Literal["", "model", "model by its word", "address"] = "model"
    paid: bool = False
    path: str = CHAT
    stream: bool = False
    body: bytes | None = None
    alive: bool = True
    seconds: float = 60.0


def answer(status: int, body: bytes, headers: str = "", *, kind: str = "application/json") -> Behave:
    async def behave(writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
        writer.write(head.encode() + body)

    return behave


def broken(*pieces: bytes) -> Behave:
    """Write these pieces, then close."""

    async def behave(writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        writer.close()

    return behave


async def silence(_: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def drip(writer: asyncio.StreamWriter) -> None:
    body = openai_whole()
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
    for byte in body:
        writer.write(b"1\r\n%c\r\n" % byte)
        await asyncio.sleep(0)
    writer.write(b"0\r\n\r\n")


SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
HALF = b"%x\r\n%b\r\n" % (len(WORD), WORD)
LIES = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{"
NEXT = Seen(status=200, by="n")
CASES: dict[str, Case] = {
    "429 with Retry-After": Case(
        behave=answer(429, b"{}", "retry-after: 7\r\n"),
        one=Seen(status=429, asked=4, waits=3),
        chain=NEXT,
        rests="model by its word",
    ),
    "429 without": Case(
        behave=answer(429, b"{}"),
        one=Seen(status=429, asked=4, waits=3),
        chain=NEXT,
        rests="model by its word",
    ),
    "429 for five hours": Case(
        behave=answer(429, b"{}", "retry-after: 18000\r\n"),
        one=Seen(status=429, code="quota_exhausted"),
        chain=NEXT,
        rests="model by its word",
    ),
    "500": Case(behave=answer(500, b"{}"), one=Seen(status=500, asked=4, waits=3), chain=NEXT),
    "refused": Case(
        behave=None,
        one=Seen(status=502, code="upstream_unreachable", asked=0, waits=3),
        chain=Seen(status=200, asked=0, by="n"),
        rests="address",
    ),
    "silent, and at work": Case(
        behave=silence,
        one=Seen(status=504, code="upstream_timeout", asked=2, waits=1),
        chain=NEXT,
        kept=True,
        seconds=0.8,
    ),
    "silent, and gone": Case(
        behave=silence,
        one=Seen(status=504, code="upstream_timeout", asked=2, waits=1),
        chain=NEXT,
        kept=True,
        alive=False,
        seconds=0.8,
    ),
    "closed without a word": Case(
        behave=broken(), one=Seen(status=502, code="upstream_cut", asked=4, waits=3), chain=NEXT, kept=True
    ),
    "cut in a whole reply": Case(
        behave=broken(LIES), one=Seen(status=502, code="upstream_cut", asked=4, waits=3), chain=NEXT, kept=True
    ),
    "stream cut before its first byte": Case(
        behave=broken(SSE_HEAD),
        stream=True,
        one=Seen(status=502, code="upstream_cut", asked=4, waits=3),
        chain=NEXT,
        kept=True,
    ),
    "stream cut midway": Case(
        behave=broken(SSE_HEAD, HALF),
        stream=True,
        one=Seen(status=200, code="upstream_cut"),
        chain=Seen(status=200, code="upstream_cut"),
        kept=True,
    ),
    "no JSON": Case(
        behave=answer(200, b"hello"),
        one=Seen(status=502, code="upstream_malformed", asked=4, waits=3),
        chain=NEXT,
        kept=True,
    ),
    "no HTTP": Case(
        behave=broken(b"SSH-2.0-x\r\n\r\n"),
        one=Seen(status=502, code="upstream_malformed", asked=4, waits=3),
        chain=NEXT,
        kept=True,
    ),
    "503 with Retry-After": Case(
        behave=answer(503, b"{}", "retry-after: 7\r\n"),
        one=Seen(status=503, asked=4, waits=3),
        chain=NEXT,
        rests="model by its word",
    ),
    "unreadable": Case(
        behave=answer(200, b'{"choices": 1, "usage": {"prompt_tokens": 5, "completion_tokens": 1}}'),
        one=Seen(status=502, code="reply_unreadable"),
        chain=NEXT,
        paid=True,
        path="/v1/messages",
    ),
    "400": Case(behave=answer(400, b"{}"), one=Seen(status=400), chain=Seen(status=400), rests=""),
    "422": Case(behave=answer(422, b"{}"), one=Seen(status=422), chain=Seen(status=422), rests=""),
    "401": Case(behave=answer(401, b"{}"), one=Seen(status=401), chain=NEXT, rests=""),
    "404": Case(behave=answer(404, b"{}"), one=Seen(status=404), chain=NEXT, rests=""),
    "408": Case(behave=answer(408, b"{}"), one=Seen(status=408), chain=NEXT, rests="", kept=True),
    "a wrong word": Case(
        behave=answer(200, ODD), one=Seen(status=200), chain=Seen(status=200), body=ODD, rests=""
    ),
    "two calls with one id": Case(
        behave=answer(200, TWINS), one=Seen(status=200), chain=Seen(status=200), body=TWINS, rests=""
    ),
    "1 MB": Case(behave=answer(200, BIG), one=Seen(status=200), chain=Seen(status=200), body=BIG, rests=""),
    "byte by byte": Case(behave=drip, one=Seen(status=200), chain=Seen(status=200), body=openai_whole(), rests=""),
}


class Provider:
    """A provider on loopback; `asked` counts calls, `probes` requests for the list of models."""

    def __init__(self, behave: Behave, *, alive: bool = True) -> None:
        self._behave, self._alive = behave, alive
        self.asked = self.probes = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length or 0))
                if head.startswith(b"get "):
                    self.probes += 1
                    await answer(200 if self._alive else 500, b"{}")(writer)
                else:
                    self.asked += 1
                    await self._behave(writer)
        writer.close()
        self._tasks.discard(task)

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self.connected, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            await asyncio.sleep(0)  # a connection accepted at this moment has a task from now on
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await server.wait_closed()


@dataclass
class Run:
    reply: httpx.Response
    provider: Provider
    records: list[CallRecord]
    waits: list[float]
    health: ProviderHealth


async def run(case: Case, tmp_path: Path, *, chain: bool) -> Run:
    provider = Provider(case.behave or silence, alive=case.alive)
    good = Provider(answer(200, openai_whole("from the other")))
    if case.stream:
        event = chunk({"content": "from the other"}, finish="stop")
        good = Provider(answer(200, event + DONE, kind="text/event-stream"))
    records, waits, clock = list[CallRecord](), list[float](), SteppedClock()
    providers = Providers({"one": ProviderLimits(failures=1)}, clock=clock)

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock.advance(seconds)

    async with contextlib.AsyncExitStack() as stack:
        nobody = stack.enter_context(socket.socket())  # holds its port without listening
        nobody.bind(("127.0.0.1", 0))
        refusing = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        urls = [refusing if case.behave is None else await stack.enter_async_context(provider.served())]
        urls.append(await stack.enter_async_context(good.served()))
        ups = [HttpUpstream(url, "key", "openai") for url in urls]
        for up in ups:
            stack.push_async_callback(up.close)
        behind = ServedModel(name="n", dialect="openai", model="n", upstream=ups[1], price=PRICE, provider="two")
        served = ServedModel(
            name="m",
            dialect="openai",
            model="m",
            upstream=ups[0],
            price=PRICE,
            provider="one",
            fallback=(behind,) if chain else (),
        )
        gateway = Gateway(
            [served],
            ServedAttempt(id="a-1", ledger=MemoryLedger(1.0)),
            CallListeners(on_call=records.append),
            limits=GatewayLimits(
                call_seconds=60.0 if chain and not case.alive else case.seconds,
                quiet_seconds=0.02 if case.behave is silence else 60.0,
            ),
            providers=providers,
            clock=clock,
            sleep=sleep,
        )
        await stack.enter_async_context(gateway)
        await gateway.listen_unix(tmp_path / "gateway.sock")
        transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "gateway.sock"), verify=False)
        client = await stack.enter_async_context(httpx.AsyncClient(transport=transport, timeout=30))
        headers = {"authorization": f"Bearer {gateway.token}"}
        ask = {"model": "m", "messages": [], "max_tokens": 10, "stream": case.stream}
        reply = await client.post(f"http://gateway{case.path}", headers=headers, json=ask)
    return Run(reply, provider, records, waits, providers.of("one", "m"))


def error_code(reply: httpx.Response) -> str:
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if '"error"' in line]
    return json.loads(lines[-1])["error"]["code"] if lines else ""


@pytest.mark.parametrize("chain", [False, True], ids=["one", "chain"])
@pytest.mark.parametrize("name", CASES)
async def test_a_fault_of_a_provider(tmp_path: Path, name: str, chain: bool) -> None:
    case = CASES[name]
    seen = case.chain if chain else case.one
    done = await run(case, tmp_path, chain=chain)
    assert (done.reply.status_code, error_code(done.reply)) == (seen.status, seen.code)
    assert (done.provider.asked, len(done.waits)) == (seen.asked, seen.waits)
    assert done.reply.headers.get("x-chargehand-model", "m") == seen.by
    if seen.by == "n":
        assert "from the other" in done.reply.text
    elif case.body is not None:
        assert done.reply.content == case.body
    first = [record for record in done.records if record.model == "m"]
    assert {record.cost_usd is None and record.booked_usd > 0 for record in first} == {case.kept}
    if case.paid:
        assert sum(record.cost_usd or 0.0 for record in first) > 0
    health = done.health
    rests = [
        name for name, each in (("model", health.breaker), ("address", health.address.breaker)) if each.wait()
    ]
    rests += ["model by its word"] if health.resting else []
    assert case.rests in rests if case.rests else rests == []
    # A silent address counts against the model too: the model was sent the call.
    assert set(rests) <= {case.rests, *(("address",) if case.behave is silence else ())}
    assert [record.status for record in done.records if record.model == "n"] == ["ok"] * (seen.by == "n")


async def test_the_silent_are_probed_and_those_at_work_are_waited_for(tmp_path: Path) -> None:
    at_work = await run(CASES["silent, and at work"], tmp_path, chain=True)
    gone = await run(CASES["silent, and gone"], tmp_path, chain=True)
    alone = await run(CASES["silent, and gone"], tmp_path, chain=False)
    quick = await run(CASES["500"], tmp_path, chain=True)
    assert at_work.provider.probes >= 1
    assert "sent nothing for 0.8 seconds" in at_work.records[0].reason
    assert gone.provider.probes == 2
    assert "not even a probe" in gone.records[0].reason
    assert (alone.provider.probes, quick.provider.probes) == (0, 0)
