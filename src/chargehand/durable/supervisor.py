"""Runs a host program, streams its output, kills its process tree at exit."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from chargehand.core.errors import InfrastructureError

OutputStream = Literal["stdout", "stderr"]
# Receives each line without its end; bytes that are not UTF-8 are replaced.
OnLine = Callable[[OutputStream, str], None]
_PROGRAM = Path(__file__).with_name("_supervisor_process.py")
_READ_BYTES = 65536
_LONGEST_LINE = 10_000
# The supervisor kills after one second; a process in an uninterruptible wait of the kernel dies only after that.
_SUPERVISOR_SECONDS = 60.0


class ProgramExit(Struct, frozen=True, kw_only=True):
    """The end of a program: its exit code as in a shell, 128 plus the signal for a killed one."""

    exit_code: int
    seconds: float


async def run_supervised(
    command: Sequence[str], *, environment: Mapping[str, str], cwd: Path, on_line: OnLine
) -> ProgramExit:
    """Run a program to its end, without a terminal or input, then end all processes that it left running.

    If the caller is cancelled (a time limit included), every process below the program gets SIGTERM, and SIGKILL a
    second later; none is alive when this returns. If the calling process is killed, the same happens.
    """
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        # Isolated (-I) and without site (-S): nothing of the user's environment runs in it.
        *(sys.executable, "-I", "-S", str(_PROGRAM), "--", *command),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=dict(environment),
        cwd=cwd,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    reading = asyncio.gather(_lines(process.stdout, "stdout", on_line), _lines(process.stderr, "stderr", on_line))
    try:
        await process.wait()
        await reading
    finally:
        await asyncio.shield(_put_down(process, reading))
    return ProgramExit(exit_code=process.returncode or 0, seconds=time.monotonic() - began)


async def _put_down(process: Process, reading: asyncio.Future[tuple[None, None]]) -> None:
    """Have the supervisor end everything; kill a supervisor that is itself stopped."""
    assert process.stdin is not None
    process.stdin.close()  # the pipe's end is the order to end; it comes by itself if this process is killed
    try:
        async with asyncio.timeout(_SUPERVISOR_SECONDS):
            await process.wait()
    except TimeoutError as problem:
        process.kill()
        await process.wait()
        reading.cancel()
        raise InfrastructureError(
            f"the processes below {process.pid} could not be killed", code="keeper_stuck", hint="`ps` shows them"
        ) from problem
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await reading
        with contextlib.suppress(OSError):
            await process.stdin.wait_closed()


async def _lines(stream: asyncio.StreamReader, name: OutputStream, on_line: OnLine) -> None:
    lines = LineSplitter(name, on_line)
    while piece := await stream.read(_READ_BYTES):
        lines.feed(piece)
    lines.end()


class LineSplitter:
    """Splits a program's output into lines; a carriage return also ends a line, as in progress output."""

    def __init__(self, stream: OutputStream, on_line: OnLine) -> None:
        self._stream: OutputStream = stream
        self._on_line = on_line
        self._left = b""

    def feed(self, piece: bytes) -> None:
        """Report each complete line; an overlong one is reported in pieces."""
        held = self._left + piece
        waits = held.endswith(b"\r")  # the newline of this line may come with the next piece
        text = (held[:-1] if waits else held).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *whole, left = text.split(b"\n")
        for line in whole:
            self._tell(self._tell_beginnings(line))
        self._left = self._tell_beginnings(left) + (b"\r" if waits else b"")

    def end(self) -> None:
        """Report a last line without an end."""
        if self._left:
            self._tell(self._left.removesuffix(b"\r"))
        self._left = b""

    def _tell_beginnings(self, line: bytes) -> bytes:
        """Report an overlong line piece by piece without splitting a character; return the remainder."""
        while len(line) > _LONGEST_LINE:
            ends = (n for n in range(_LONGEST_LINE, _LONGEST_LINE - 4, -1) if line[n] & 0xC0 != 0x80)
            end = next(ends, _LONGEST_LINE)  # bytes that are not UTF-8 may be split anywhere
            self._tell(line[:end])
            line = line[end:]
        return line

    def _tell(self, line: bytes) -> None:
        self._on_line(self._stream, line.decode(errors="replace"))
