"""The web server's time for a request, and for a hundred followers, against a page that needs no store."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx

from benchmarks.measure import Result, Side, compare, percentile_95, spend
from benchmarks.mission_kit import MissionKit
from chargehand.core.mission_events import MessageSent, MissionCreated
from chargehand.core.records import MissionRequest
from chargehand.identity.accounts import owner
from chargehand.identity.tokens import create_token
from chargehand.operations.table import OPERATIONS
from chargehand.reports.reading import StateReader

AIM = 0.030
_MISSIONS, _EVENTS = 1000, 1000
_CLIENTS, _FED = 100, 2000
_REPEAT = 10
# The server accepts a hundred requests a second from one caller.
_PAUSE = 0.011
_API = "/api/v1"
# A long mission of messages only, used for most routes; the others need a mission that ran.
_LONG = "m-00500"
_OF_A_CHANGE = (
    *("review", "rollback", "diff", "checkpoints"),
    *("artifacts", "report", "judgements", "audit/provenance"),
)
_PROGRAM = Path(sys.executable).with_name("chargehand")


async def run(kit: MissionKit, *, rounds: int) -> list[Result]:
    """Fill a state directory, serve it with `up`, request each route in turn, and run missions meanwhile."""
    place = kit.place / "server"
    place.mkdir()
    environ = {**kit.environ, **environment(place)}
    with StateReader.open(environ=environ, cwd=place) as reader:
        fill(reader, missions=_MISSIONS, events=_EVENTS)
        token = create_token(reader, "benchmark", scopes=("read",), days=1, by=owner(reader)).secret
    ran = json.loads(subprocess.run(_mission(), cwd=kit.repository, env=environ, capture_output=True).stdout)
    with up(environ, place) as url:
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
            floor = Side(name="/health", sample=_asking(client, "/health"), repeat=_REPEAT)
            results = []
            for path in _paths(ran["mission"]):
                if (await client.get(_API + path)).status_code != 200:
                    continue  # it needs more than a mission, such as a question or a plan
                sample = _asking(client, _API + path, after=functools.partial(_write, environ, place))
                side = Side(name=f"GET {path}", sample=sample, repeat=_REPEAT)
                found = await compare("server", path, [side, floor], rounds=rounds, aim=AIM, seconds=20)
                note = f"{path}: 95th percentile {1000 * percentile_95(found.sides[0].samples):.1f} ms"
                results.append(
                    replace(found, note=f"{note}; {_MISSIONS:,} missions, {_MISSIONS * _EVENTS:,} events")
                )
        fed = await _fan_out(url, token, environ, place)
        return [*results, fed, await _beside(kit, environ, url, token, rounds)]


def environment(place: Path) -> dict[str, str]:
    """Return the environment of a person whose home and state are in a directory."""
    return {**os.environ, "HOME": str(place), "CHARGEHAND_HOME": str(place / "state")}


def fill(reader: StateReader, *, missions: int, events: int) -> None:
    """Record missions that no worker runs, each with that many events."""
    project = reader.store.projects.register(reader.cwd)
    for number in range(missions):
        request = MissionRequest(text=f"mend it {number}", agent="command:true", command=("true",), slug="m")
        created = MissionCreated(project=project.id, repository=str(reader.cwd), request=request)
        said = [MessageSent(message=f"s-{n}", text="a word", identity="os:ada") for n in range(events - 1)]
        reader.store.log.append(f"m-{number:05}", created, *said)


@contextlib.contextmanager
def up(environ: dict[str, str], place: Path) -> Iterator[str]:
    """Serve a state directory with `chargehand up`, without a worker, and yield its address."""
    command = [sys.executable, "-m", "chargehand", "up", "--no-worker", "--port", "0", "--json"]
    process = subprocess.Popen(command, cwd=place, env=environ, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def _paths(ran: str) -> list[str]:
    """Return the routes that only read and need no parameter other than a mission."""
    found = ["/missions?q=mend%20it%207"]
    for route in OPERATIONS:
        if route.method == "GET":
            mission = ran if route.path.endswith(_OF_A_CHANGE) else _LONG
            path = route.path.replace("{mission}", mission)
            named = "mission" in route.takes.__struct_fields__ and "{mission}" not in route.path
            found.append(f"{path}?mission={mission}" if named else path)
    return [path for path in found if "{" not in path]


def _mission() -> list[str]:
    agent = "command:sh -c 'echo more >> changed.txt'"
    return [str(_PROGRAM), "run", "change a file", "--agent", agent, "--only-check", "true", "--json"]


async def _beside(kit: MissionKit, environ: dict[str, str], url: str, token: str, rounds: int) -> Result:
    """Measure the processor time of missions with one client that follows them, and with an idle server."""

    async def alone() -> float:
        return spend(_mission(), cwd=kit.repository, environment=environ).cpu

    async def followed() -> float:
        process = await asyncio.create_subprocess_exec(
            "curl", "-sN", "-H", f"Authorization: Bearer {token}", f"{url}{_API}/events", stdout=subprocess.DEVNULL
        )
        try:
            return (await asyncio.to_thread(spend, _mission(), cwd=kit.repository, environment=environ)).cpu
        finally:
            process.kill()
            await process.wait()

    sides = [Side(name="a mission that is followed", sample=followed), Side(name="by nobody", sample=alone)]
    return await compare("server", "a mission's own processor time", sides, rounds=2 * rounds, seconds=120)


def _asking(
    client: httpx.AsyncClient, path: str, *, after: Callable[[], None] = lambda: None
) -> Callable[[], Awaitable[float]]:
    """Return a sample that requests a path; every `_REPEAT`th time `after` runs first."""
    asked = itertools.count()

    async def ask() -> float:
        if next(asked) % _REPEAT == 0:
            await asyncio.to_thread(after)
        began = time.perf_counter()
        answer = await client.get(path)
        took = time.perf_counter() - began
        answer.raise_for_status()
        await asyncio.sleep(_PAUSE)
        return took

    return ask


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


def _write(environ: dict[str, str], place: Path) -> None:
    """Append a line to a mission that no request names, so that cached data about all missions becomes stale."""
    with StateReader.open(environ=environ, cwd=place) as reader:
        reader.store.log.append(
            "m-00007", MessageSent(message=f"w-{time.time_ns()}", text="a word", identity="os:ada")
        )


def _append(environ: dict[str, str], place: Path, mission: str) -> None:
    with StateReader.open(environ=environ, cwd=place) as reader:
        for batch in range(_FED // 100):
            said = [MessageSent(message=f"f-{batch}-{n}", text="a word", identity="os:ada") for n in range(100)]
            reader.store.log.append(mission, *said)
