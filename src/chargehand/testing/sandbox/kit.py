"""Shared by the conformance suite and its users: an opened sandbox, programs for inside, ways to wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from chargehand.sandbox.contract import ExecResult, Sandbox

# The variables that `SandboxSpec.environment` promises.
KNOWN_VARIABLES = {
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR"),
    *("PYTHONDONTWRITEBYTECODE", "CARGO_HOME", "GOPATH", "GOTOOLCHAIN", "JAVA_HOME"),
}


class OpenedSandbox(Struct, frozen=True):
    """A sandbox, the host directory with new files of its workspace, and a function to kill it."""

    sandbox: Sandbox
    written: Path
    kill: Callable[[], None]


Open = Callable[..., Awaitable[OpenedSandbox]]

# Forked twice and in a new session, like a daemon: neither a process group nor a parent leads to it.
DAEMON = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
os.closerange(0, 64)
while True:
    time.sleep(0.01)
    with open(sys.argv[1], "a") as file:
        file.write("x")
"""

# By processes, threads and short-lived children: each needs its own care to be stopped.
WRITERS = """
import os, threading
def write(name):
    fd = os.open(name, os.O_CREAT | os.O_WRONLY)
    count = 0
    while True:
        count += 1
        os.pwrite(fd, b"%020d" % count, 0)
for number in range(6):
    if os.fork() == 0:
        threading.Thread(target=write, args=(f"thread-{number}",)).start()
        write(f"process-{number}")
def breed():
    # children are born and die all the time, each writes once
    while True:
        pid = os.fork()
        if pid == 0:
            with open("bred", "w") as file:
                file.write(str(os.getpid()))
            os._exit(0)
        os.waitpid(pid, 0)
breed()
"""

# clone(2) by ctypes: Python itself never leaves a child in vfork() long enough to observe.
VFORK = """
import ctypes, sys
libc = ctypes.CDLL(None)
stack = ctypes.create_string_buffer(1 << 16)
top = (ctypes.addressof(stack) + len(stack)) & ~0xFFFF
open("ready", "w").close()
CLONE_VM, CLONE_VFORK, SIGCHLD = 0x100, 0x4000, 17
libc.clone(ctypes.cast(libc.sleep, ctypes.c_void_p), ctypes.c_void_p(top + (1 << 15)),
           CLONE_VM | CLONE_VFORK | SIGCHLD, ctypes.c_void_p(1000))
"""


async def until(condition: Callable[[], bool], *, seconds: float = 60.0) -> None:
    """Wait for a condition that must become true."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 -- what is waited for happens in another process
            await asyncio.sleep(0.005)


def snapshot(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Return the content and the change time of every file."""
    # Both: a write of the same bytes is a change too.
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(directory.iterdir())}


@asynccontextmanager
async def running(sandbox: Sandbox, *argv: str, **options: Any) -> AsyncIterator[asyncio.Task[ExecResult]]:
    """Run a command in parallel to the block and cancel it afterwards."""
    task = asyncio.create_task(sandbox.exec(argv, **options))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            # Retrieved: otherwise asyncio would report an unretrieved exception.
            task.exception()


def python(program: str, *arguments: str) -> list[str]:
    """Return the command that runs a Python program inside, isolated from the environment."""
    return ["python3", "-I", "-c", program, *arguments]


class SandboxFixtures:
    """The fixtures of the suite; a tier provides `open_sandbox`.

    `pace` is how much longer than usual its programs may take to start, for emulated machines.
    """

    pace = 1.0

    @pytest.fixture
    async def open_sandbox(self) -> Open:
        """Return a function that opens sandboxes, and close them all afterwards; a subclass provides it."""
        raise NotImplementedError("a tier gives the factory")

    @pytest.fixture
    async def opened(self, open_sandbox: Open) -> OpenedSandbox:
        """A sandbox with the means for the host to inspect and kill it."""
        return await open_sandbox()

    @pytest.fixture
    async def sandbox(self, opened: OpenedSandbox) -> Sandbox:
        """A sandbox on a fresh, empty workspace."""
        return opened.sandbox

    async def nothing_else_runs(self, opened: OpenedSandbox) -> None:
        """Assert that the next command works and finds itself alone, and that no process writes any more."""
        count = (
            "import os; print(sorted(p for p in os.listdir('/proc') if p.isdigit()) == ['1', str(os.getpid())])"
        )
        assert (await opened.sandbox.exec(python(count))).stdout == b"True\n"
        before = snapshot(opened.written)
        # Ten times as long as a daemon of the suite pauses between two writes.
        await asyncio.sleep(0.1)
        assert snapshot(opened.written) == before
