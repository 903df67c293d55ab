"""The memory of processes: private pages, and their share of the shared ones."""

from __future__ import annotations

import os
from pathlib import Path


def held(*names: str) -> float:
    """Return the KiB of this process and its descendants, and of all that name one of `names`, with descendants.

    An engine's processes are not our children: they are found by the name of their container.
    """
    below: dict[int, list[int]] = {}
    todo = [os.getpid()]
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
            words = Path(f"/proc/{number}/cmdline").read_text(errors="replace")
        except OSError:
            continue
        below.setdefault(parent, []).append(int(number))
        if any(name in words for name in names):
            todo.append(int(number))
    seen: set[int] = set()
    while todo:
        pid = todo.pop()
        if pid not in seen:
            seen.add(pid)
            todo += below.get(pid, [])
    return sum(_share(pid) for pid in seen)


def _share(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(float(line.split()[1]) for line in lines if line.startswith("Pss:"))
