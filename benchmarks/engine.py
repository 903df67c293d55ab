"""The machinery behind missions: recorded steps, turns through the engine, and waiting, against bare DBOS."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from tests.postgres import cluster, programs

from benchmarks.measure import Result, Sample, Side, compare
from benchmarks.mission_kit import MissionKit

_ROOT = Path(__file__).parents[1]
_STEPS, _MISSIONS, _WAITING = 300, 80, 1000
Place = Callable[[], str]
"""Creates an empty database and returns its URL."""


async def run(kit: MissionKit, *, rounds: int) -> list[Result]:
    """Compare with DBOS's defaults, except for SQLite: there with our pragmas, which are faster than its own."""

    def sqlite() -> str:
        return f"sqlite:///{kit.place / uuid4().hex}.db"

    with _postgres() as postgres:
        steps = [_side("Journal.step, SQLite", "journal_steps", sqlite, _STEPS)]
        steps += [_side("DBOS step, SQLite", "dbos_steps", sqlite, _STEPS)]
        missions = [_side("Engine, SQLite", "engine_missions", sqlite, _MISSIONS)]
        missions += [_side("DBOS queue, SQLite", "dbos_missions", sqlite, _MISSIONS)]
        if postgres:
            steps += [_side("DBOS step, PostgreSQL", "dbos_steps", postgres, _STEPS)]
            missions += [_side("Engine, PostgreSQL", "engine_missions", postgres, _MISSIONS)]
            missions += [_side("DBOS queue, PostgreSQL", "dbos_missions", postgres, _MISSIONS)]
        results = [
            await compare("engine", "recorded step of 300 bytes", steps, rounds=rounds, note=_STEP_NOTE),
            await compare("engine", "mission, trigger to body", missions, rounds=rounds, note=_MISSION_NOTE),
        ]
    return [*results, await _waiting(sqlite)]


_STEP_NOTE = (
    "one after another; PostgreSQL waits for the disk at each, SQLite (WAL, synchronous=NORMAL) on no side"
)
_MISSION_NOTE = "80 at once, 8 slots, a look each 0.1 s: 12.5 ms each is what the looks alone allow"


async def _waiting(sqlite: Place) -> Result:
    memory: dict[str, dict[str, float]] = {}
    names = {"Engine": "engine_idle", "DBOS workflows in recv": "dbos_idle"}
    sides = [_side(name, names[name], sqlite, _WAITING, keep=memory, most=1) for name in names]
    result = await compare("engine", "1,000 waiting missions, processor per idle second", sides, rounds=1)
    told = [f"{name} {m['megabytes']:.0f} MB, {m['kilobytes_each']:.1f} kB each" for name, m in memory.items()]
    return replace(result, note="resident memory of the whole process: " + "; ".join(told))


def _side(
    name: str,
    side: str,
    place: Place,
    count: int,
    *,
    keep: dict[str, dict[str, float]] | None = None,
    most: int | None = None,
) -> Side:
    async def sample() -> float:
        program = [sys.executable, "-m", "benchmarks.engine_side", side, place(), str(count)]
        done = subprocess.run(program, cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=True)
        measured: dict[str, float] = json.loads(done.stdout)
        if keep is not None:
            keep[name] = measured
        return measured["seconds"]

    took: Sample = sample
    return Side(name=name, sample=took, most=most)


@contextlib.contextmanager
def _postgres() -> Iterator[Place | None]:
    """Run a server that waits for the disk like a real one, if PostgreSQL is installed."""
    if programs() is None:
        yield None
        return
    with cluster(quick=False) as server:
        yield server.database
