"""One side of the benchmark `engine`, in a separate process because DBOS allows one instance per process.

`python -m benchmarks.engine_side SIDE URL COUNT` prints a JSON object with its measurements.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from chargehand.core.clock import SystemClock
from chargehand.core.mission_events import MissionCreated
from chargehand.core.records import MissionRequest
from chargehand.durable.engine import Engine
from chargehand.missions.journal import Journal
from chargehand.store.store import open_store

SLOTS = 8
POLL = 0.1
_OUTPUT = {"text": "x" * 300}
_SQLITE = "sqlite:///"


async def _work() -> dict[str, str]:
    return _OUTPUT


async def journal_steps(url: str, count: int) -> dict[str, float]:
    """Record steps in the event log; `url` only names the place."""
    place = Path(url.removeprefix(_SQLITE)).parent
    with tempfile.TemporaryDirectory(dir=place) as home, open_store(Path(home)) as store:
        request = MissionRequest(text="x", agent="a", command=(), slug="x")
        store.log.append("m-1", MissionCreated(project="p", repository="/r", request=request))
        journal = Journal(store, "m-1", clock=SystemClock())
        started = time.perf_counter()
        for number in range(count):
            await journal.step(f"s-{number}", {"number": number}, _work)
        return {"seconds": (time.perf_counter() - started) / count}


async def dbos_steps(url: str, count: int) -> dict[str, float]:
    """Record steps in one workflow of bare DBOS."""
    async with _bare(url) as dbos:
        seconds: list[float] = []

        @dbos.workflow()
        async def steps() -> None:
            started = time.perf_counter()
            for number in range(count):
                await dbos.run_step_async({"name": f"s-{number}"}, _work)
            seconds.append(time.perf_counter() - started)

        await (await dbos.start_workflow_async(steps)).get_result()
        return {"seconds": seconds[0] / count}


async def engine_missions(url: str, count: int) -> dict[str, float]:
    """Trigger missions and wait until the last one's body has begun."""
    seen = _Seen(count)
    async with _engine(url, seen.run) as engine:
        return await _measured(seen, lambda number: engine.trigger(f"m-{number}", 1))


async def dbos_missions(url: str, count: int) -> dict[str, float]:
    """Do the same with a queue of bare DBOS with the same slots and polling interval."""
    seen = _Seen(count)
    async with _bare(url) as dbos:

        @dbos.workflow()
        async def mission(name: str) -> None:
            await seen.run(name)

        await dbos.register_queue_async("missions", worker_concurrency=SLOTS, polling_interval_sec=POLL)
        await asyncio.sleep(1.5)  # until its manager has found the queue; not measured
        return await _measured(seen, lambda n: dbos.enqueue_workflow_async("missions", mission, f"m-{n}"))


async def engine_idle(url: str, count: int) -> dict[str, float]:
    """Hold missions that wait for a person: their turns have ended, and only their logs remain."""
    seen = _Seen(count)
    async with _engine(url, seen.run, slots=200) as engine:
        for number in range(count):
            await engine.trigger(f"m-{number}", 1)
        await seen.all.wait()
        while await engine.waiting():
            await asyncio.sleep(0.1)
    before = _resident()
    async with _engine(url, seen.run):
        return await _idle(before, count)


async def dbos_idle(url: str, count: int) -> dict[str, float]:
    """Hold as many workflows of bare DBOS that wait for a message."""
    async with _bare(url) as dbos:

        @dbos.workflow()
        async def mission() -> None:
            await dbos.recv_async("answer", timeout_seconds=3600)

        before = _resident()
        for _ in range(count):
            await dbos.start_workflow_async(mission)
        await asyncio.sleep(3)
        measured = await _idle(before, count)
        print(json.dumps(measured), flush=True)
        os._exit(0)  # exit without ending the thousand workflows that still wait


async def _idle(before: float, count: int, seconds: float = 5.0) -> dict[str, float]:
    started = time.process_time()
    await asyncio.sleep(seconds)
    resident = _resident()
    return {
        "seconds": (time.process_time() - started) / seconds,
        "megabytes": resident / 1e6,
        "kilobytes_each": (resident - before) / 1e3 / count,
    }


class _Seen:
    """Counts missions until all have run."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.left = count
        self.all = asyncio.Event()

    async def run(self, mission: str) -> None:
        self.left -= 1
        if not self.left:
            self.all.set()


async def _measured(seen: _Seen, trigger: Callable[[int], Awaitable[Any]]) -> dict[str, float]:
    started = time.perf_counter()
    for number in range(seen.count):
        await trigger(number)
    await seen.all.wait()
    return {"seconds": (time.perf_counter() - started) / seen.count}


def _engine(
    url: str, run: Callable[[str], Awaitable[None]], *, slots: int = SLOTS
) -> contextlib.AbstractAsyncContextManager[Engine]:
    return Engine.open(url, worker="k", slots=slots, run=run, is_live=lambda _: True, poll_seconds=POLL)


@contextlib.asynccontextmanager
async def _bare(url: str) -> AsyncIterator[Any]:
    from dbos import DBOS, DBOSPortableJSONSerializer

    logging.getLogger("dbos").addHandler(logging.NullHandler())
    config: dict[str, Any] = {"name": "bare", "application_version": "1", "executor_id": "k", "log_level": "ERROR"}
    if url.startswith(_SQLITE):
        # By default it waits for the disk at each step, which the event log does not: compare like with like.
        config["db_engine_kwargs"] = {"creator": partial(_connect, url.removeprefix(_SQLITE))}
    DBOS(config={**config, "system_database_url": url, "serializer": DBOSPortableJSONSerializer()})  # type: ignore[typeddict-item]
    DBOS.launch()
    try:
        yield DBOS
    finally:
        await asyncio.to_thread(DBOS.destroy)


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    return connection


def _resident() -> float:
    return float(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


_SIDES = {
    side.__name__: side
    for side in (journal_steps, dbos_steps, engine_missions, dbos_missions, engine_idle, dbos_idle)
}

if __name__ == "__main__":
    print(json.dumps(asyncio.run(_SIDES[sys.argv[1]](sys.argv[2], int(sys.argv[3])))))
