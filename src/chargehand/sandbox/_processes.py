"""What runs in a sandbox, seen from the host: nothing inside takes part, so what hangs is seen as it hangs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MOST = 200
_COMMAND_BYTES = 500
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSeen:
    """One process: its ids as they are inside, its state as ps(1) has it, and its processor time in seconds.

    `waits_in` is the kernel's function that it sleeps in, `open_files` how many it has; `None` where the host does
    not tell us.
    """

    pid: int
    parent: int
    state: str
    command: str
    cpu_seconds: float
    waits_in: str | None = None
    open_files: int | None = None


@dataclass(frozen=True, slots=True)
class _Stat:
    pid: int
    parent: int
    name: str
    state: str
    ticks: int


def processes_below(first: int) -> tuple[ProcessSeen, ...]:
    """Return the descendants of a sandbox's process 1, the oldest first; 200 at most."""
    children: dict[int, list[_Stat]] = {}
    for stat in _stats():
        children.setdefault(stat.parent, []).append(stat)
    found = {stat.pid: stat for stat in _below(first, children)}
    inside = {pid: number for pid in found if (number := _inside_pid(pid)) is not None}
    return tuple(_seen(found[pid], inside) for pid in sorted(inside, key=inside.__getitem__)[:_MOST])


def _below(pid: int, children: dict[int, list[_Stat]]) -> Iterator[_Stat]:
    for child in children.get(pid, ()):
        yield child
        yield from _below(child.pid, children)


def _stats() -> Iterator[_Stat]:
    for name in os.listdir("/proc"):
        text = _read(f"/proc/{name}/stat") if name.isdecimal() else ""
        before, bracket, after = text.rpartition(")")
        if bracket:
            fields = after.split()
            comm = before.partition("(")[2]
            yield _Stat(int(name), int(fields[1]), comm, fields[0], int(fields[11]) + int(fields[12]))


def _seen(stat: _Stat, inside: dict[int, int]) -> ProcessSeen:
    words = _read(f"/proc/{stat.pid}/cmdline")[:_COMMAND_BYTES].replace("\0", " ").strip()
    waits_in = _read(f"/proc/{stat.pid}/wchan").strip()
    try:
        files = len(os.listdir(f"/proc/{stat.pid}/fd"))
    except OSError:
        files = None
    return ProcessSeen(
        pid=inside[stat.pid],
        parent=inside.get(stat.parent, 1),
        state=stat.state,
        command=words or f"[{stat.name}]",
        cpu_seconds=stat.ticks / _TICKS,
        waits_in=waits_in if waits_in not in ("", "0") else None,
        open_files=files,
    )


def _inside_pid(pid: int) -> int | None:
    """Return a process's id as it is inside, `None` where it ended since it was found."""
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return None


def _read(path: str) -> str:
    """Return a file of /proc, "" where its process is gone or not ours to look at."""
    try:
        return Path(path).read_bytes().decode(errors="replace")
    except OSError:
        return ""
