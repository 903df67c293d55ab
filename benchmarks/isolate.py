"""A snippet of Python or JavaScript: the time of one, or of each of many, and the memory of its process."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from pathlib import Path
from typing import Literal

from benchmarks.command import bubblewrap_argv
from benchmarks.measure import Result, Sample, Side, compare, timed
from benchmarks.mission_kit import MissionKit
from chargehand.sandbox.snippet_pool import SnippetPool
from chargehand.sandbox.snippets import SnippetSpec

AIM = 0.05
_MANY = 16
_SOURCE: dict[Literal["python", "javascript"], str] = {
    "python": "sum(n * n for n in range(1000))",
    "javascript": "[...Array(1000).keys()].reduce((sum, n) => sum + n * n, 0)",
}
_WAIT: dict[Literal["python", "javascript"], str] = {"python": "while True: pass", "javascript": "for (;;);"}


async def run(kit: MissionKit, *, rounds: int) -> list[Result]:
    """Compare with the interpreter that a shell would start, and with that in a new bubblewrap."""
    results = []
    async with SnippetPool(size=2) as pool:
        for language in _SOURCE:
            fresh = _interpreter(language)
            if fresh is not None:
                results += [await _compare(pool, language, fresh, kit.repository, rounds=rounds)]
    return results


async def _compare(
    pool: SnippetPool, language: Literal["python", "javascript"], fresh: list[str], place: Path, *, rounds: int
) -> Result:
    spec = SnippetSpec(language=language, source=_SOURCE[language])
    held = await _resident(pool, SnippetSpec(language=language, source=_WAIT[language], seconds=0.5))
    sides = [
        Side(name="in the open pool", sample=_one(pool, spec), repeat=10),
        Side(name=f"each of {_MANY}, two at once", sample=_many(pool, spec)),
        Side(name="new interpreter", sample=_process(fresh), repeat=10),
        Side(name="in a new bubblewrap", sample=_process(bubblewrap_argv(place, fresh)), repeat=5),
    ]
    note = f"memory of one process: in the pool {held >> 20} MiB, new interpreter {_peak(fresh) >> 20} MiB"
    return await compare("isolate", language, sides, rounds=rounds, aim=AIM, note=note)


def _interpreter(language: Literal["python", "javascript"]) -> list[str] | None:
    """Return the peer's command, below /usr so that a sandbox has it too; `None` if it is missing."""
    name, flags = {"python": ("python3", ["-I", "-c"]), "javascript": ("node", ["-e"])}[language]
    found = shutil.which(name, path="/usr/bin:/usr/local/bin")
    return None if found is None else [found, *flags, _SOURCE[language]]


def _one(pool: SnippetPool, spec: SnippetSpec) -> Sample:
    async def sample() -> float:
        with timed() as seconds:
            result = await pool.run(spec)
        assert result.error is None, result.error
        return seconds[0]

    return sample


def _many(pool: SnippetPool, spec: SnippetSpec) -> Sample:
    async def sample() -> float:
        with timed() as seconds:
            await asyncio.gather(*(pool.run(spec) for _ in range(_MANY)))
        return seconds[0] / _MANY

    return sample


def _process(argv: list[str]) -> Sample:
    async def sample() -> float:
        with timed() as seconds:
            subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        return seconds[0]

    return sample


def _peak(argv: list[str]) -> int:
    """Return a fresh interpreter's peak memory in bytes, as it reports it: wait4(2) includes the parent's."""
    *start, _ = argv
    ask = {
        "-c": "print(open('/proc/self/status').read())",
        "-e": "console.log(require('fs').readFileSync('/proc/self/status', 'utf8'))",
    }[start[-1]]
    status = subprocess.run([*start, ask], check=True, capture_output=True, text=True).stdout
    found = re.search(r"VmHWM:\s+(\d+)", status)
    assert found is not None
    return int(found[1]) << 10


async def _resident(pool: SnippetPool, spec: SnippetSpec) -> int:
    """Return the memory in bytes of the process of a snippet that runs until it is stopped."""
    task = asyncio.create_task(pool.run(spec))
    most = 0
    while not task.done():
        most = max([most, *(_memory(status) for status in Path("/proc").glob("[0-9]*/status"))])
        await asyncio.sleep(0.05)
    assert (await task).error is not None
    return most


def _memory(status: Path) -> int:
    """Return the memory of a snippet's process, 0 for any other process."""
    try:
        command = status.with_name("cmdline").read_bytes()
        found = re.search(r"VmRSS:\s+(\d+)", status.read_text())
    except OSError:
        return 0
    ours = b"i=sys.stdin.buffer" in command
    return int(found[1]) << 10 if ours and found is not None else 0
