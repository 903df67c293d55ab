"""What the web server takes for a request, and for a hundred who follow; beside a page that needs no store."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx

from benchmarks.measure import Result, Side, compare
from benchmarks.shop import Shop
from chargehand.app.accounts import create_token, owner
from chargehand.app.reading import StateReader
from chargehand.core.mission_events import MessageSent, MissionCreated
from chargehand.core.records import MissionRequest

AIM = 0.030
_MISSIONS, _EVENTS = 1000, 100
_CLIENTS, _FED = 100, 2000
_REPEAT = 20
_API = "/api/v1"
_ROUTES = {
    "a page of 50 missions": "/missions",
    "a search": "/missions?q=mend%20it%207",
    "one mission": "/missions/m-00500",
    "a page of its log": "/missions/m-00500/events",
    "workers, queue, disk": "/system",
    "statistics": "/stats",
}


async def run(shop: Shop, *, rounds: int) -> list[Result]:
    """Fill a state directory, serve it by `up`, and ask each route in turn."""
    place = shop.place / "server"
    place.mkdir()
    environ = environment(place)
    with StateReader.open(environ=environ, cwd=place) as reader:
        fill(reader, missions=_MISSIONS, events=_EVENTS)
        token = create_token(reader, "benchmark", scopes=("read",), days=1, by=owner(reader)).secret
    with up(environ, place) as url:
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
            floor = Side(name="/health", sample=_asking(client, "/health"), repeat=_REPEAT)
            results = []
            for case, path in _ROUTES.items():
                side = Side(name=f"GET {path}", sample=_asking(client, _API + path), repeat=_REPEAT)
                found = await compare("server", case, [side, floor], rounds=rounds, aim=AIM)
                note = f"95th percentile {1000 * _percentile(found.sides[0].samples):.1f} ms"
                results.append(
                    replace(found, note=f"{note}; {_MISSIONS:,} missions, {_MISSIONS * _EVENTS:,} events")
                )
        return [*results, await _fan_out(url, token, environ, place)]


def environment(place: Path) -> dict[str, str]:
    """Return the environment of a person whose home and state lie in a directory."""
    return {**os.environ, "HOME": str(place), "CHARGEHAND_HOME": str(place / "state")}


def fill(reader: StateReader, *, missions: int, events: int) -> None:
    """Record missions that nobody runs, each with so many events."""
    project = reader.store.projects.register(reader.cwd)
    for number in range(missions):
        request = MissionRequest(text=f"mend it {number}", agent="command:true", command=("true",), slug="m")
        created = MissionCreated(project=project.id, repository=str(reader.cwd), request=request)
        said = [MessageSent(message=f"s-{n}", text="a word", identity="os:ada") for n in range(events - 1)]
        reader.store.log.append(f"m-{number:05}", created, *said)


@contextlib.contextmanager
def up(environ: dict[str, str], place: Path) -> Iterator[str]:
    """Serve a state directory by `chargehand up`, without a worker, and give its address."""
    command = [sys.executable, "-m", "chargehand", "up", "--no-worker", "--port", "0", "--json"]
    process = subprocess.Popen(command, cwd=place, env=environ, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def _asking(client: httpx.AsyncClient, path: str) -> Callable[[], Awaitable[float]]:
    async def ask() -> float:
        began = time.perf_counter()
        answer = await client.get(path)
        took = time.perf_counter() - began
        answer.raise_for_status()
        return took

    return ask


def _percentile(samples: list[float]) -> float:
    return statistics.quantiles(samples, n=20)[-1]


async def _fan_out(url: str, token: str, environ: dict[str, str], place: Path) -> Result:
    """Let a hundred clients follow while lines are appended; a sample is the time of one line to one client."""
    port = int(url.rpartition(":")[2])
    head = f"GET {_API}/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n\r\n"
    number = 0

    async def one() -> float:
        nonlocal number
        number += 1
        connected = asyncio.Barrier(_CLIENTS + 1)

        async def follow() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head.encode())
            await reader.readuntil(b": connected")
            await connected.wait()
            for _ in range(_FED):
                await reader.readuntil(b"\nevent: message\n")
            writer.close()

        following = [asyncio.create_task(follow()) for _ in range(_CLIENTS)]
        await connected.wait()
        began = time.perf_counter()
        await asyncio.to_thread(_append, environ, place, f"m-{number:05}")
        await asyncio.gather(*following)
        return (time.perf_counter() - began) / (_FED * _CLIENTS)

    side = Side(name=f"{_FED} lines to {_CLIENTS} clients, each", sample=one)
    found = await compare("server", "feed", [side], rounds=3)
    per_second = 1 / found.sides[0].median
    return replace(found, note=f"{per_second:,.0f} lines handed on a second", load=os.getloadavg())


def _append(environ: dict[str, str], place: Path, mission: str) -> None:
    with StateReader.open(environ=environ, cwd=place) as reader:
        for batch in range(_FED // 100):
            said = [MessageSent(message=f"f-{batch}-{n}", text="a word", identity="os:ada") for n in range(100)]
            reader.store.log.append(mission, *said)
