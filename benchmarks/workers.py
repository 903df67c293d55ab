"""Real workers as processes: how soon one takes over from another, and the cost of many open missions."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from tests.forked import ForkedProcess
from tests.workers_kit import WorkersKit

from benchmarks.measure import Result, Side, Taken, compare
from benchmarks.mission_kit import MissionKit
from chargehand.core.mission_events import MissionFinished
from chargehand.store.log import EventLog

TAKEOVER_AIM, RESUME_AIM, IDLE_AIM = 1.0, 3.0, 0.03
SLOTS = 5
_OPEN = 1000
_WAIT_SECONDS = 60.0
_IDLE_SECONDS = 10.0


async def run(kit: MissionKit, *, rounds: int) -> list[Result]:
    """Measure takeover, resuming and waiting, each over a separate state directory with an SQLite file."""
    empty = WorkersKit(kit.place / "empty")
    _probed(empty)
    return [
        await _takeover(empty, rounds=rounds),
        await _resume(empty, rounds=rounds),
        await _waiting(empty, rounds=rounds),
    ]


async def _takeover(like: WorkersKit, *, rounds: int) -> Result:
    taken = Taken(name="kill -9 to another worker's claim"), Taken(name="to the agent at work again")
    note = "takeover on one machine: its lock tells that a worker is dead, no lease has to end"
    return await _timed("takeover", taken, _one_takeover, like, rounds=rounds, aim=TAKEOVER_AIM, note=note)


async def _one_takeover(kit: WorkersKit) -> tuple[float, float]:
    """Kill the worker of a mission while another worker runs; the clock starts with the signal."""
    (mission,) = kit.order("held")
    with _worker(kit) as first, kit.app() as app:
        await _until(lambda: kit.at_work(mission))
        with _worker(kit):
            await _until(lambda: len(app.workers.members()) == 2)
            await asyncio.sleep(2.0)  # by then it has opened its engine
            killed, wall = time.perf_counter(), time.time()
            first.kill()
            await _until(lambda: app.store.log.get(mission).epoch == 2)
            claimed = time.perf_counter() - killed
            await _until(lambda: kit.began_after(mission, wall))
            return claimed, time.perf_counter() - killed


async def _resume(like: WorkersKit, *, rounds: int) -> Result:
    taken = Taken(name="start to the first claim"), Taken(name=f"to all {SLOTS} slots taken")
    note = "1,000 open missions: start of the process and of the interpreter included"
    return await _timed("1,000 open missions", taken, _one_resume, like, rounds=rounds, aim=RESUME_AIM, note=note)


async def _one_resume(kit: WorkersKit) -> tuple[float, float]:
    """Start a worker with 1,000 missions to resume."""
    kit.order(*["held"] * _OPEN)
    started = time.perf_counter()
    with _worker(kit), kit.app() as app:
        await _until(lambda: _held(app.store.log) >= 1)
        first = time.perf_counter() - started
        await _until(lambda: _held(app.store.log) >= SLOTS)
        return first, time.perf_counter() - started


async def _timed(
    case: str,
    taken: tuple[Taken, Taken],
    sample: Callable[[WorkersKit], Awaitable[tuple[float, float]]],
    like: WorkersKit,
    *,
    rounds: int,
    aim: float,
    note: str,
) -> Result:
    """Take two times for each of `rounds` fleets."""
    for _ in range(rounds):
        for side, seconds in zip(taken, await sample(_another(like)), strict=True):
            side.rounds.append([seconds])
    return Result(benchmark="workers", case=case, sides=taken, aim=aim, load=os.getloadavg(), note=note)


async def _waiting(like: WorkersKit, *, rounds: int) -> Result:
    """Let a worker idle while 1,000 missions wait for a person."""
    full, busy = _another(like), _another(like)
    waiting = full.order(*["held"] * _OPEN)
    with full.app() as app:
        for mission in waiting:
            app.store.log.append(mission, MissionFinished(status="waiting"))
    busy.order(*["held"] * _OPEN)
    memory: dict[str, float] = {}

    def side(name: str, kit: WorkersKit, *, holds: int) -> Side:
        async def sample() -> float:
            async with _settled_worker(kit, holds=holds) as worker:
                before = _cpu(worker.pid)
                await asyncio.sleep(_IDLE_SECONDS)
                memory[name] = _resident(worker.pid)
                return (_cpu(worker.pid) - before) / _IDLE_SECONDS

        return Side(name=name, sample=sample, most=max(1, rounds // 3))

    sides = [
        side("1,000 wait for a person", full, holds=0),
        side("no mission", like, holds=0),
        side(f"{SLOTS} agents idle, 995 wait for a slot", busy, holds=SLOTS),
    ]
    result = await compare("workers", "processor per idle second", sides, rounds=3, aim=IDLE_AIM)
    told = "; ".join(f"{name} {megabytes:.0f} MB" for name, megabytes in memory.items())
    return replace(result, note=f"resident memory of the worker's process: {told}")


@contextlib.asynccontextmanager
async def _settled_worker(kit: WorkersKit, *, holds: int) -> AsyncIterator[ForkedProcess]:
    with _worker(kit) as worker, kit.app() as app:
        await _until(lambda: app.workers.members() and _held(app.store.log) >= holds)
        await asyncio.sleep(5.0)  # all one-time work is done by then
        yield worker


def _probed(kit: WorkersKit) -> None:
    """Let the workers probe the machine, so that probing is not measured."""
    kit.order("mend")
    worker = kit.start("worker", "--until-idle", cwd=kit.place)
    if worker.wait() != 0:
        raise RuntimeError(kit.output())


def _another(like: WorkersKit) -> WorkersKit:
    return WorkersKit(like.place.parent / uuid4().hex, like=like)


@contextlib.contextmanager
def _worker(kit: WorkersKit) -> Iterator[ForkedProcess]:
    worker = kit.start("worker", "--slots", str(SLOTS), cwd=kit.place)
    try:
        yield worker
    finally:
        worker.terminate()
        worker.wait()


def _held(log: EventLog) -> int:
    return sum(row.owner is not None for row in log.takeable())


async def _until(holds: Callable[[], object]) -> None:
    limit = time.monotonic() + _WAIT_SECONDS
    while not holds():
        if time.monotonic() > limit:
            raise TimeoutError(f"it did not come to hold in {_WAIT_SECONDS:g} s")
        await asyncio.sleep(0.01)


def _cpu(pid: int) -> float:
    """Return the processor seconds of a process without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6
