"""Removes the containers of a Chargehand process that has ended; also run as a program for each such process.

A container ends by itself when the socket to its owner closes, unless it is frozen at that moment. So one process
outlives the owner and removes the remaining containers. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

PREFIX = "chargehand-"
_ROOT = Path("/sys/fs/cgroup")
_SECONDS = 60.0
# The longest time that a removed container's monitor takes to end by itself.
_LEAVE_SECONDS = 2.0


def container_names(engine: Sequence[str], prefix: str) -> list[str]:
    """Return the names of the containers, running or not, that begin with `prefix`.

    Includes containers unknown to podman that still have a monitor.
    """
    said = _ask([*engine, "ps", "-a", "--filter", f"name={prefix}", "--format", "{{.Names}}"])
    return sorted({name for name in said.split() if name.startswith(prefix)} | _monitors(prefix).keys())


def remove(engine: Sequence[str], name: str) -> None:
    """Thaw, kill and remove one container; a missing one is not a failure."""
    pid = container_pid(engine, name)
    if pid:
        thaw(pid)
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    _ask([*engine, "rm", "-f", name])
    limit = time.monotonic() + _LEAVE_SECONDS
    while (monitor := _monitors(name).get(name)) is not None:
        if time.monotonic() > limit:
            for each in (*_below(monitor), monitor):
                with contextlib.suppress(OSError):
                    os.kill(each, signal.SIGKILL)
            return
        time.sleep(0.02)


def _monitors(prefix: str) -> dict[str, int]:
    """Return podman's monitors (conmon) by the names of their containers, those that begin with `prefix`.

    A client that is killed while it creates a container leaves a monitor and the container's first process, but
    the engine has not recorded them yet: `rm` ends neither.
    """
    found = {}
    # Not by glob: it fails on processes that end during its search.
    for pid in [entry for entry in os.listdir("/proc") if entry.isdigit()]:
        try:
            words = [os.fsdecode(word) for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]
        except OSError:  # it ended
            continue
        if os.path.basename(words[0]) == "conmon" and "-n" in words[:-1]:
            name = words[words.index("-n") + 1]
            if name.startswith(prefix):
                found[name] = int(pid)
    return found


def _below(pid: int) -> list[int]:
    """Return the descendants of a process."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                for child in map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split()):
                    found += [child, *_below(child)]
    return found


def container_pid(engine: Sequence[str], name: str) -> int:
    """Return the process id on this machine of a container's first process, 0 if it has no process."""
    said = _ask([*engine, "inspect", "--format", "{{.State.Pid}}", name]).strip()
    return int(said) if said.isdigit() else 0


def cgroup_directories(pid: int) -> tuple[dict[str, Path], bool]:
    """Return the directory per controller of a process's control groups, and whether they are of version 2."""
    try:
        lines = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    except OSError:
        return {}, False
    found = {
        name: _ROOT / name / place.lstrip("/")
        for _, controllers, place in lines
        for name in controllers.split(",")
        if name in ("memory", "pids", "freezer", "cpu", "cpuacct")
    }
    if found:
        return found, False
    unified = [_ROOT / place.lstrip("/") for _, controllers, place in lines if not controllers]
    return dict([("unified", path) for path in unified if (path / "cgroup.procs").exists()][:1]), True


def thaw(pid: int) -> None:
    """Let a frozen container continue, so that it can be killed: cgroups of version 1 hold SIGKILL back."""
    for directory in cgroup_directories(pid)[0].values():
        for name, order in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
            with contextlib.suppress(OSError):
                if (directory / name).exists():
                    (directory / name).write_text(order)


def sweep(engine: Sequence[str]) -> int:
    """Remove the containers whose owner is dead; return their number."""
    removed = 0
    for name in container_names(engine, PREFIX):
        owner, _, rest = name.removeprefix(PREFIX).partition("-")
        started = rest.partition("-")[0]
        ours = owner.isdigit() and started.isdigit()
        if ours and _start_time(owner) != started:
            remove(engine, name)
            removed += 1
    return removed


def owner_prefix() -> str:
    """Return the name prefix of this process's containers, which identifies one process for ever."""
    return f"{PREFIX}{os.getpid()}-{_start_time(str(os.getpid()))}-"


def _start_time(pid: str) -> str:
    # With the pid it identifies one process for ever: a reused pid has another start time.
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _ask(argv: Sequence[str]) -> str:
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def main() -> None:
    """Wait for the end of standard input; then remove every container with that prefix, and their directories."""
    prefix, roots, *engine = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 4096):
        pass
    for _ in range(3):  # a container that was just being started may appear meanwhile
        for name in container_names(engine, prefix):
            remove(engine, name)
        if not container_names(engine, prefix):
            break
    shutil.rmtree(roots, ignore_errors=True)


if __name__ == "__main__":
    main()
