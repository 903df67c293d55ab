"""A worker process for tests that kill it: `python -m tests.engine_kit URL HOME SLOTS`.

It prints one line for each event: `ready ID`, `start MISSION`, `end MISSION`, `rescued MISSION…`, `triggered
MISSION…`. A mission named `hang…` runs until the process dies, one named `bad…` fails. It reads the orders
`rescue` and `trigger MISSION…` from stdin, and ends when stdin closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path

from chargehand.durable.engine import Engine
from chargehand.durable.workers import LocalWorkers
from tests.forked import ForkedPopen

ROOT = Path(__file__).parents[1]
WAIT = 120.0


class Worker:
    """The test's handle on such a process."""

    def __init__(self, process: subprocess.Popen[bytes], said: asyncio.StreamReader) -> None:
        self.id = ""
        self._process = process
        self._said = said
        self._unread: deque[str] = deque()

    async def line(self) -> str:
        """Return its next line, or an empty string at the end of its output."""
        return self._unread.popleft() if self._unread else await self._heard()

    async def _heard(self) -> str:
        return (await asyncio.wait_for(self._said.readline(), WAIT)).decode().strip()

    async def ask(self, order: str) -> str:
        """Send an order and return its reply; lines of missions that arrive before it are kept for `line`."""
        assert self._process.stdin
        self._process.stdin.write(f"{order}\n".encode())
        while (said := await self._heard()).startswith(("start ", "end ")):
            self._unread.append(said)
        return said

    async def end(self) -> str:
        """Close its stdin, and return the rest of its output."""
        assert self._process.stdin
        self._process.stdin.close()
        out = await asyncio.wait_for(self._said.read(), WAIT)
        await asyncio.to_thread(self._process.wait, WAIT)
        return out.decode()

    async def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._process.kill()
        await asyncio.to_thread(self._process.wait, WAIT)


@contextlib.asynccontextmanager
async def worker(
    url: str, home: Path, *, slots: int = 2, environment: dict[str, str] | None = None
) -> AsyncIterator[Worker]:
    """Run a worker process; kill it at the end if it still runs."""
    # A fork would ignore variables that are read when the engine is imported.
    start = subprocess.Popen if environment else ForkedPopen
    process = start(
        [sys.executable, "-m", "tests.engine_kit", url, str(home), str(slots)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env=os.environ | (environment or {}),
    )
    said = asyncio.StreamReader()
    reading, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(said), process.stdout
    )
    started = Worker(process, said)
    try:
        word, _, started.id = (await started.line()).partition(" ")
        assert word == "ready"
        yield started
    finally:
        process.kill()
        await asyncio.to_thread(process.wait, WAIT)
        reading.close()
        if process.stdin is not None:
            process.stdin.close()


def say(text: str) -> None:
    """Print a line for the test."""
    print(text, flush=True)


async def body(mission: str) -> None:
    """Run a mission by its name."""
    say(f"start {mission}")
    if mission.startswith("hang"):
        await asyncio.Event().wait()
    if mission.startswith("bad"):
        raise ValueError(mission)
    say(f"end {mission}")


async def main(url: str, home: Path, slots: int) -> None:
    """Work until stdin ends."""
    workers = LocalWorkers(home, version="1")
    membership = workers.join("worker")
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with Engine.open(url, worker=membership.id, slots=slots, run=body, is_live=workers.live) as engine:
        say(f"ready {membership.id}")
        while line := (await reader.readline()).decode().strip():
            order, *names = line.split()
            if order == "rescue":
                say(" ".join(["rescued", *await engine.rescue()]))
            else:
                say(" ".join(["triggered", *[name for name in names if await engine.trigger(name, 1)]]))
    membership.leave()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
