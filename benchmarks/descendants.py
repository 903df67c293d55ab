"""Run a program and count the processor time of all its descendants, including detached ones; print JSON.

`python -m benchmarks.descendants PROGRAM ARG…`: orphans are reparented to this process, which waits for each.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.measure import Spent

_PR_SET_CHILD_SUBREAPER = 36


def spend_with_descendants(argv: list[str], *, cwd: Path, environment: dict[str, str]) -> Spent:
    """Return the wall time until a program ends, and the processor time of it and all its descendants.

    Raises `RuntimeError` with its output if it fails.
    """
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(root)!r})\n{_START}", *argv],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{argv!r} failed: {done.stdout.decode()} {done.stderr.decode()}")
    found = json.loads(done.stdout.splitlines()[-1])
    return Spent(wall=found["wall"], cpu=found["cpu"])


_START = "from benchmarks.descendants import main; sys.exit(main(sys.argv[1:]))"


def main(argv: list[str]) -> int:
    """Run the program, wait for it and its orphans, and print the seconds that they spent."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    started = time.perf_counter()
    ended = subprocess.run(argv, stdin=subprocess.DEVNULL, check=False)
    wall = time.perf_counter() - started
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"\n{json.dumps({'wall': wall, 'cpu': spent.ru_utime + spent.ru_stime})}")
    return ended.returncode
