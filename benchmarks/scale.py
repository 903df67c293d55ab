"""Many workspaces at once, and freezing an agent that writes without a pause."""

from __future__ import annotations

import asyncio
import os
import statistics
from dataclasses import replace
from pathlib import Path

from benchmarks.measure import Result, Side, compare, percentile_95, timed
from benchmarks.memory import held
from benchmarks.mission_kit import MissionKit, Opened
from chargehand.sandbox.contract import Sandbox
from chargehand.workspace.workspace import Workspace

AT_ONCE = 200
AIM_FREEZE = 0.050
_FREEZES = 40
_WRITER = """
import os, time
os.makedirs("written", exist_ok=True)
number, began = 0, time.monotonic()
while True:
    with open(f"written/{number % 5000}", "w") as file:
        file.write(str(number))
    number += 1
    ahead = number / 1000 - (time.monotonic() - began)
    if ahead > 0:
        time.sleep(ahead)
"""


async def run(kit: MissionKit, opened: Opened, *, rounds: int) -> list[Result]:
    """Open many at once and report the memory of each; freeze one while it writes 1,000 files a second."""
    return [await _at_once(kit, opened, rounds=rounds), await _freezing(kit, opened, rounds=rounds)]


async def _at_once(kit: MissionKit, opened: Opened, *, rounds: int) -> Result:
    memory: list[float] = []

    async def one() -> tuple[Workspace, Sandbox]:
        workspace = await asyncio.to_thread(opened.workspace)
        sandbox = await opened.sandbox(workspace)
        await sandbox.exec(["true"])
        return workspace, sandbox

    async def all_of_them() -> float:
        before = held()
        with timed() as seconds:
            made = await asyncio.gather(*(one() for _ in range(AT_ONCE)))
        memory.append((held() - before) / AT_ONCE)
        await asyncio.gather(*(sandbox.close() for _, sandbox in made))
        for workspace, _ in made:
            workspace.discard()
        return seconds[0] / AT_ONCE

    async def alone() -> float:
        with timed() as seconds:
            workspace, sandbox = await one()
        await sandbox.close()
        workspace.discard()
        return seconds[0]

    sides = [Side(name=f"each of {AT_ONCE} at once", sample=all_of_them), Side(name="one alone", sample=alone)]
    result = await compare("scale", "ready workspaces", sides, rounds=min(rounds, 3), files=kit.files)
    each = statistics.median(memory) / 1024
    note = f"{each:.1f} MiB each: what all processes of ours hold, shared pages in equal parts"
    return replace(result, note=note)


async def _freezing(kit: MissionKit, opened: Opened, *, rounds: int) -> Result:
    slowest: list[float] = []
    async with opened.both() as (workspace, sandbox):
        writing = asyncio.ensure_future(sandbox.exec(["python3", "-c", _WRITER], timeout=3600))
        root = workspace.scan_root() / "written"
        while not root.is_dir():
            await asyncio.sleep(0.01)

        async def frozen() -> float:
            took = []
            for _ in range(_FREEZES):
                await asyncio.sleep(0.02)
                with timed() as seconds:
                    await sandbox.freeze()
                took.append(seconds[0])
                before = _newest(root)
                await asyncio.sleep(0.005)
                assert _newest(root) == before, "something was written while it was frozen"
                await sandbox.thaw()
            slowest.append(percentile_95(took))
            return statistics.median(took)

        sides = [Side(name="freeze", sample=frozen)]
        result = await compare(
            "scale",
            "freeze under 1,000 files a second",
            sides,
            rounds=min(rounds, 5),
            files=kit.files,
            aim=AIM_FREEZE,
        )
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    return replace(
        result, note=f"p95 {1000 * statistics.median(slowest):.1f} ms; nothing was written while frozen"
    )


def _newest(root: Path) -> tuple[int, int]:
    """Return the number of files and the time of the last write."""
    times = [entry.stat().st_mtime_ns for entry in os.scandir(root)]
    return len(times), max(times)
