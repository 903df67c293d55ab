"""A worker as a process of its own, for tests that kill it: `python -m tests.engine_kit URL HOME SLOTS`.

It says on stdout what it does, one line each: `ready ID`, `start MISSION`, `end MISSION`, `rescued MISSION…`,
`triggered MISSION…`. A mission named `hang…` runs until the process dies, one named `bad…` fails. On stdin it
takes `rescue` and `trigger MISSION…`, and ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path

from chargehand.durable.engine import Engine
from chargehand.durable.workers import LocalWorkers

ROOT = Path(__file__).parents[1]
WAIT = 120.0


class Worker:
    """The other end of such a process."""

    def __init__(self, process: Process, id: str) -> None:
        self.process = process
        self.id = id
        self._unread: deque[str] = deque()

    async def line(self) -> str:
        """Return the next thing it says, an empty string at its end."""
        return self._unread.popleft() if self._unread else await self._heard()

    async def _heard(self) -> str:
        assert self.process.stdout
        return (await asyncio.wait_for(self.process.stdout.readline(), WAIT)).decode().strip()

    async def ask(self, order: str) -> str:
        """Give an order, and return what it says to that; what a mission said meanwhile is kept for `line`."""
        assert self.process.stdin
        self.process.stdin.write(f"{order}\n".encode())
        while (said := await self._heard()).startswith(("start ", "end ")):
            self._unread.append(said)
        return said

    async def end(self) -> str:
        """Let it end, and return all that it still says."""
        assert self.process.stdin
        self.process.stdin.close()
        out, _ = await asyncio.wait_for(self.process.communicate(), WAIT)
        return out.decode()

    async def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.process.kill()
        await self.process.wait()


@contextlib.asynccontextmanager
async def worker(
    url: str, home: Path, *, slots: int = 2, environment: dict[str, str] | None = None
) -> AsyncIterator[Worker]:
    """Run a worker process; it is killed at the end where it still runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.engine_kit", url, str(home), str(slots)),
        cwd=ROOT,
        stdin=PIPE,
        stdout=PIPE,
        env=os.environ | (environment or {}),
    )
    started = Worker(process, "")
    try:
        word, _, started.id = (await started.line()).partition(" ")
        assert word == "ready"
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


def say(text: str) -> None:
    """Tell the test."""
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
