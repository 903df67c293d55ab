"""Reporting a sandboxed program's writes as they happen: completeness, delay, and cost."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Result, Taken, percentile_95
from benchmarks.mission_kit import MissionKit, Opened
from benchmarks.throwaway import environment_with

A_SECOND, SECONDS, BURST = 100, 60, 5000
AIM_DELAY = 0.2
_SIDE = Path(__file__).with_name("watching_side.py")
_PROGRAM = """
import os, sys, time
number, rate = int(sys.argv[1]), int(sys.argv[2])
for directory in range(20):
    os.makedirs(f"written/{directory}", exist_ok=True)
time.sleep(0.5)
names, began = [], time.monotonic()
for made in range(number):
    name = f"{made}-{time.monotonic_ns()}"
    with open(f"written/{made % 20}/{name}", "w") as file:
        file.write(name)
    names.append(name)
    ahead = made / rate - (time.monotonic() - began) if rate else 0
    if ahead > 0:
        time.sleep(ahead)
print("\\n".join(names))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """A watcher: the interpreter that runs it, and its name for the side process."""

    name: str
    kind: str
    python: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The reports of one watcher in one run; seconds and bytes."""

    made: int
    delays: list[float]
    cpu: float
    memory: int
    gaps: tuple[str, ...]

    def said(self, way: str) -> str:
        """Return the result as text."""
        gaps = f", gaps named: {', '.join(self.gaps)}" if self.gaps else ""
        told = f"{way} told {len(self.delays):,} of {self.made:,}{gaps}"
        slowest, memory = 1000 * percentile_95(self.delays), self.memory / 1e6
        return f"{told}, p95 {slowest:.1f} ms, {self.cpu:.2f} s processor, {memory:.1f} MB"


async def run(kit: MissionKit, opened: Opened, *, rounds: int) -> list[Result]:
    """Write 100 files a second for a minute, then 5,000 at once; each watcher has a separate workspace."""
    ways = [_Way(name="Watcher", kind="watcher", python=Path(sys.executable)), *_peers(kit)]
    seconds = max(3, round(SECONDS * rounds / 5))
    steady = [await _watched(kit, opened, way, number=A_SECOND * seconds, rate=A_SECOND) for way in ways]
    case = f"{A_SECOND} files a second for {seconds} s"
    bursts: list[list[_Seen]] = [[] for _ in ways]
    for _ in range(min(rounds, 5)):
        for way, taken in zip(ways, bursts, strict=True):
            taken.append(await _watched(kit, opened, way, number=BURST, rate=0))
    return [
        _result(kit, f"{case}, delay", ways, [[seen.delays] for seen in steady], said=steady, aim=AIM_DELAY),
        _result(kit, f"{case}, processor in all", ways, [[[seen.cpu]] for seen in steady]),
        _result(
            kit,
            f"burst of {BURST:,}, last one told after",
            ways,
            [[[max(seen.delays)] for seen in taken] for taken in bursts],
            said=[taken[-1] for taken in bursts],
        ),
        _result(kit, f"burst of {BURST:,}, processor", ways, [[[seen.cpu] for seen in taken] for taken in bursts]),
    ]


def _result(
    kit: MissionKit,
    case: str,
    ways: Sequence[_Way],
    rounds: Sequence[list[list[float]]],
    *,
    said: Sequence[_Seen] = (),
    aim: float | None = None,
) -> Result:
    words = (seen.said(way.name) for way, seen in zip(ways, said, strict=False))
    return Result(
        benchmark="watching",
        case=case,
        sides=tuple(Taken(name=way.name, rounds=taken) for way, taken in zip(ways, rounds, strict=True)),
        files=kit.files,
        aim=aim,
        load=os.getloadavg(),
        note=f"{case}: {'; '.join(words)}" if said else "",
    )


def _peers(kit: MissionKit) -> list[_Way]:
    """Return the peers that this machine has or can install."""
    peers = []
    own = kit.place / "watchfiles"
    made = environment_with("watchfiles", own)
    if made is None:
        print("watching: no watchfiles to be had, it is left out", file=sys.stderr)
    else:
        peers.append(_Way(name="watchfiles", kind="watchfiles", python=made / "python"))
    if shutil.which("inotifywait"):
        peers.append(_Way(name="inotifywait", kind="inotifywait", python=Path(sys.executable)))
    return peers


async def _watched(kit: MissionKit, opened: Opened, way: _Way, *, number: int, rate: int) -> _Seen:
    """Let a program write into a new workspace; compare the reported writes with those that it claims."""
    async with opened.both() as (workspace, sandbox):
        place = {
            "depot": str(opened.depot.root),
            "repository": str(kit.repository),
            "workspace": workspace.id,
            "root": str(workspace.scan_root()),
        }
        argv = [str(way.python), str(_SIDE), way.kind, json.dumps(place)]
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=1 << 26
        )
        assert process.stdout is not None
        try:
            began = await process.stdout.readline()
            if began != b"watching\n":
                raise RuntimeError(f"{way.name} does not watch: {began!r}")
            words = ["python3", "-c", _PROGRAM, str(number), str(rate)]
            done = await sandbox.exec(words, timeout=3600, output_limit=1 << 24)
            assert done.exit_code == 0, done.stderr
            told, _ = await process.communicate(b"stop\n")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    return _held_against(json.loads(told), done.stdout.decode().split(), way)


def _held_against(told: dict[str, object], made: list[str], way: _Way) -> _Seen:
    seen, gaps = told["seen"], told["gaps"]
    cpu, memory = told["cpu"], told["memory"]
    assert isinstance(seen, dict)
    assert isinstance(gaps, list)
    assert isinstance(cpu, float)
    assert isinstance(memory, int)
    delays = [(seen[name] - int(name.partition("-")[2])) / 1e9 for name in made if name in seen]
    if way.kind == "watcher" and len(delays) < len(made) and not gaps:
        raise RuntimeError(f"the watcher told {len(delays)} of {len(made)} and named no gap")
    return _Seen(made=len(made), delays=delays, cpu=cpu, memory=memory, gaps=tuple(gaps))
