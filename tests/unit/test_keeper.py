"""A host program ends with all its descendants, however they hide: in time, or when its owner dies."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.conftest import examples

from chargehand.durable.supervisor import LineSplitter, OutputStream, ProgramExit, run_supervised

STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def hide(depth):
    if os.fork() == 0:
        os.setsid()
        if depth:
            hide(depth - 1)
        with open(os.path.join(sys.argv[1], str(os.getpid())), "w"):
            pass
        while True:
            time.sleep(60)
for _ in range(2):
    hide(2)
while len(os.listdir(sys.argv[1])) < 6:
    time.sleep(0.01)
print("ready", flush=True)
{then}
"""
LIMIT = 300.0
Line = tuple[OutputStream, str]


def stubborn(pids: Path, then: str = "time.sleep(600)") -> list[str]:
    """Return a program that ignores SIGTERM, as do its six descendants, each in a separate session."""
    pids.mkdir(exist_ok=True)
    return [sys.executable, "-c", STUBBORN.replace("{then}", then), str(pids)]


def alive(pids: Path) -> list[str]:
    found = []
    for name in os.listdir(pids):
        try:
            state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            found.append(name)
    return found


def gone(pids: Path) -> bool:
    until = time.monotonic() + LIMIT
    while alive(pids) and time.monotonic() < until:
        time.sleep(0.02)
    return not alive(pids)


def kept(command: list[str], lines: list[Line]) -> ProgramExit:
    def take(stream: OutputStream, line: str) -> None:
        lines.append((stream, line))

    return asyncio.run(run_supervised(command, environment=dict(os.environ), cwd=Path("/"), on_line=take))


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_the_exit_code_is_the_programs(script: str, code: int) -> None:
    lines: list[Line] = []
    assert kept(["sh", "-c", f"echo out; echo err >&2; {script}"], lines).exit_code == code
    assert sorted(lines) == [("stderr", "err"), ("stdout", "out")]


def test_a_missing_program_exits_with_code_127() -> None:
    lines: list[Line] = []
    assert kept(["no-such-program-here"], lines).exit_code == 127
    assert lines == [("stderr", "no-such-program-here: not found")]


def test_a_program_has_no_input() -> None:
    assert kept(["cat"], []).exit_code == 0


def test_descendants_of_a_program_end_with_the_program(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    assert kept(stubborn(pids, "sys.exit(3)"), []).exit_code == 3
    assert len(os.listdir(pids)) == 6
    assert not alive(pids)


def test_a_time_limit_ends_the_whole_tree(tmp_path: Path) -> None:
    pids, ready = tmp_path / "pids", asyncio.Event()

    async def run() -> None:
        def start(stream: OutputStream, line: str) -> None:
            ready.set()

        running = asyncio.create_task(
            run_supervised(stubborn(pids), environment=dict(os.environ), cwd=Path("/"), on_line=start)
        )
        async with asyncio.timeout(LIMIT):
            await ready.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await running

    asyncio.run(run())
    assert not alive(pids)


OWNER = """
import asyncio, os, sys
from pathlib import Path
from chargehand.durable.supervisor import run_supervised
asyncio.run(run_supervised(sys.argv[1:], environment=dict(os.environ), cwd=Path("/"),
                     on_line=lambda stream, line: print(line, flush=True)))
"""


def test_the_tree_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    owner = subprocess.Popen([sys.executable, "-c", OWNER, *stubborn(pids)], stdout=subprocess.PIPE)
    with owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        assert len(alive(pids)) == 6
        owner.send_signal(signal.SIGKILL)
    assert gone(pids)


@example([b"a\r", b"\nb"])  # the end of a line that comes in two pieces
@given(st.lists(st.binary(max_size=6), max_size=12))
@settings(max_examples=examples(200), deadline=None)
def test_line_splitting_does_not_depend_on_the_pieces(pieces: list[bytes]) -> None:
    def cut(parts: list[bytes]) -> list[str]:
        lines: list[str] = []
        cutter = LineSplitter("stdout", lambda _, line: lines.append(line))
        for part in parts:
            cutter.feed(part)
        cutter.end()
        return lines

    whole = b"".join(pieces)
    assert cut(pieces) == cut([whole])
    text = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    expected = text.split(b"\n")
    assert cut([whole]) == [
        line.decode(errors="replace") for line in (expected if expected[-1] else expected[:-1])
    ]
