"""Tools of a `World`: programs that run inside, named points, a process to kill, checks of /proc."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from tests.promises_side import REFUSED

_ROOT = Path(__file__).parents[1]
EDITOR = r"""
import json, os, shutil, sys
for kind, path, *rest in json.load(sys.stdin):
    try:
        if kind == "write":
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            with open(path, "w") as file:
                file.write(rest[0])
        elif kind == "append":
            with open(path, "a") as file:
                file.write(rest[0])
        elif kind == "mkdir":
            os.makedirs(path)
        elif kind == "link":
            os.symlink(rest[0], path)
        elif kind == "mode" and os.path.isfile(path) and not os.path.islink(path):
            os.chmod(path, rest[0])
        elif kind == "remove":
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
        elif kind == "move":
            os.rename(path, rest[0])
    except OSError:
        pass
"""
WRITER = r"""
import os, time
if os.fork():
    os._exit(0)
os.setsid()
for number in range(3):
    os.dup2(os.open(os.devnull, os.O_RDWR), number)
for number in range(10**9):
    try:
        os.makedirs("noise", exist_ok=True)
        with open(f"noise/{number % 5}", "w") as file:
            file.write(str(number) * (number % 300))
        if number % 3 == 0:
            os.rename(f"noise/{number % 5}", f"noise/moved-{number % 2}")
        if number % 7 == 0:
            os.unlink(f"noise/moved-{number // 7 % 2}")
        with open("README.md", "a") as file:
            file.write(f"{number}\n")
    except OSError:
        pass
    time.sleep(0.001)
"""


class Seam:
    """A `Fault` that passes every point except those with a planned act, which runs once."""

    def __init__(self) -> None:
        self.plan: dict[str, Callable[[], None]] = {}

    def __call__(self, point: str) -> None:
        act = self.plan.pop(point, None)
        if act is not None:
            act()


class Side:
    """The other process, in which acts are killed half way; see `tests.promises_side`."""

    def __init__(self, process: subprocess.Popen[str], said: IO[str]) -> None:
        self._process = process
        self._said = said

    @classmethod
    @contextlib.contextmanager
    def begun(cls) -> Iterator[Side]:
        """Run one for the duration of the block."""
        words = [sys.executable, "-m", "tests.promises_side"]
        pipe = subprocess.PIPE
        with (
            tempfile.TemporaryFile("w+") as said,
            subprocess.Popen(words, cwd=_ROOT, stdin=pipe, stdout=pipe, stderr=said, text=True) as process,
        ):
            yield cls(process, said)
            process.communicate()

    def act(self, job: dict[str, Any]) -> int:
        """Perform one act there; return how it ended: 0, `REFUSED`, or killed at its point."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        if code not in (0, REFUSED, -signal.SIGKILL):
            self._said.seek(0)
            raise AssertionError(f"{job} ended with {code}: {self._said.read()}")
        return code


def bearing(mark: str) -> list[int]:
    """Return the processes whose command line contains a mark."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):
                if mark.encode() in Path(f"/proc/{entry}/cmdline").read_bytes():
                    found.append(int(entry))
    return found


def cgroups_of(name: str) -> list[str]:
    """Return the control groups of a sandbox."""
    return [place for place, _, _ in os.walk("/sys/fs/cgroup") if place.endswith(name)]


def settle(seconds: float) -> None:
    """Give processes that are not frozen time to act."""
    time.sleep(seconds)
