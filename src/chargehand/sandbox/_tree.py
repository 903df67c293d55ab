"""What a tree of processes takes, read from /proc: for what no control group tells of a sandbox.

Processor time and bytes written are complete at any time: the kernel adds those of the dead to whoever waited for
them. Only a program that lets the kernel reap its children (SIGCHLD ignored) hides theirs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """One look: `tasks` counts threads; memory in bytes, shared pages counted in every process that has them.

    `written` is `None` where the kernel or its rules do not tell us.
    """

    pids: tuple[int, ...]
    cpu_seconds: float
    memory: int
    tasks: int
    written: int | None


def look_at(first: int) -> Tree | None:
    """Return what the process `first` and all its descendants take; `None` where it is gone."""
    pids, ticks, pages, tasks = [], 0, 0, 0
    written: int | None = 0
    for pid in _below(first):
        fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        if not fields:
            continue
        pids.append(pid)
        ticks += sum(map(int, fields[11:15]))  # its own and those of the children it has waited for
        tasks += int(fields[17])
        pages += int(fields[21])
        more = _written(pid)
        written = None if written is None or more is None else written + more
    if not pids:
        return None
    return Tree(pids=tuple(pids), cpu_seconds=ticks / _TICKS, memory=pages * _PAGE, tasks=tasks, written=written)


def proportional_memory(tree: Tree) -> int:
    """Return the memory of a tree in bytes, shared pages divided; slow, so only for one that seems large."""
    return sum(_proportional(pid) for pid in tree.pids)


def first_child(pid: int) -> int | None:
    """Return the oldest child of a process, `None` where it has none or is gone."""
    return next(iter(_children(pid)), None)


def _proportional(pid: int) -> int:
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * _PAGE if fields else 0


def _written(pid: int) -> int | None:
    for line in _read(f"/proc/{pid}/io").splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    return None


def _below(first: int) -> Iterator[int]:
    waiting = [first]
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += _children(pid)


def _children(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [int(child) for task in tasks for child in _read(f"/proc/{pid}/task/{task}/children").split()]


def _read(path: str) -> str:
    """Return a file of /proc, "" where its process is gone or not ours to look at."""
    try:
        return Path(path).read_bytes().decode(errors="replace")
    except OSError:
        return ""
