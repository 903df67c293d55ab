"""The usage of one sandbox and the limits that only a sample of it can enforce."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from chargehand.sandbox.contract import ExecResult, LimitName, SandboxLimits, SandboxUsage
from chargehand.sandbox.process.cgroups import NOTHING, Cgroup, Counters

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeUsage:
    """One look: `tasks` counts threads; memory in bytes, shared pages counted in every process that has them.

    `written` is `None` where the kernel or its rules do not tell us.
    """

    pids: tuple[int, ...]
    cpu_seconds: float
    memory: int
    tasks: int
    written: int | None


def sample_tree(first: int) -> TreeUsage | None:
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
    return TreeUsage(
        pids=tuple(pids), cpu_seconds=ticks / _TICKS, memory=pages * _PAGE, tasks=tasks, written=written
    )


def proportional_memory(tree: TreeUsage) -> int:
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


_SHORTEST, _USUAL, _LONGEST = 0.05, 0.25, 5.0
_SHARE = 20
"""Looking at processes takes at most this part of the time."""
_FILE_TOO_LARGE = 128 + signal.SIGXFSZ


class UsageMeter:
    """The meter of one sandbox; `first` tells its process 1 as this machine numbers it, `None` where it cannot.

    Not for several threads at once. `use` gives it a control group, after which it looks at processes only where
    that does not count.
    """

    def __init__(self, limits: SandboxLimits, *, first: Callable[[], int | None]) -> None:
        self._limits = limits
        self._first = first
        self._group: Cgroup | None = None
        self._counted = NOTHING
        self._tree: TreeUsage | None = None
        self._peak_memory = self._peak_tasks = 0
        self._looks = 0
        self._cost = 0.0
        self._output = 0

    def use(self, group: Cgroup | None) -> None:
        """Read this group's counters from now on."""
        self._group = group
        self.refresh()

    @property
    def minds(self) -> bool:
        """Whether somebody has to look while a command runs: for processor time, or where nobody else counts."""
        return self._limits.cpu_seconds is not None or not self._kernel_counts

    @property
    def _kernel_counts(self) -> bool:
        return self._counted.peak_memory is not None and self._counted.peak_processes is not None

    @property
    def pause(self) -> float:
        """Seconds until the next look: soon where a limit may be met, never so often that it slows anything."""
        wanted = _LONGEST if self._kernel_counts else _USUAL
        if self._limits.cpu_seconds is not None:
            left = self._limits.cpu_seconds - (self._cpu_seconds or 0.0)
            wanted = min(wanted, left / (os.cpu_count() or 1))
        return max(_SHORTEST, wanted, self._cost * _SHARE)

    @property
    def _cpu_seconds(self) -> float | None:
        if self._counted.cpu_seconds is not None:
            return self._counted.cpu_seconds
        return self._tree.cpu_seconds if self._tree is not None else None

    def look(self) -> LimitName | None:
        """Read everything; return the limit that only a look can enforce, where one is passed. Blocks a moment."""
        self.refresh()
        limits = self._limits
        if limits.cpu_seconds is not None and (self._cpu_seconds or 0.0) >= limits.cpu_seconds:
            return "cpu_time"
        if self._counted.peak_memory is None and self._over_memory():
            return "memory"
        return None

    def _over_memory(self) -> bool:
        most, tree = self._limits.memory_mb << 20, self._tree
        return tree is not None and tree.memory > most and proportional_memory(tree) > most

    def refresh(self) -> None:
        """Read counters and processes as they are now; what is gone leaves what was last read."""
        if self._group is not None:
            self._counted = _latest(self._counted, self._group.counters)
        began = time.perf_counter()
        first = self._first()
        tree = sample_tree(first) if first is not None else None
        if tree is not None:
            self._tree = tree
            self._peak_memory = max(self._peak_memory, tree.memory)
            self._peak_tasks = max(self._peak_tasks, tree.tasks)
            self._looks += 1
        self._cost = time.perf_counter() - began

    def mark(self) -> Counters:
        """Return how often limits were enforced before a command."""
        return self._group.enforced if self._group is not None else NOTHING

    def judged(self, result: ExecResult, before: Counters, stopped: LimitName | None) -> ExecResult:
        """Return how a command ended with the limit that ended it; `stopped` is what we had it killed for."""
        self._output += result.written
        if result.limit is not None:
            return result
        return replace(result, limit=stopped or self._met(result, before))

    def _met(self, result: ExecResult, before: Counters) -> LimitName | None:
        if result.exit_code == 0:
            return None
        if result.exit_code == _FILE_TOO_LARGE:
            return "file_size"
        now = self.mark()
        if _more(now.memory_kills, before.memory_kills):
            return "memory"
        return "processes" if _more(now.refused_forks, before.refused_forks) else None

    @property
    def memory_ran_out(self) -> bool:
        """Whether the kernel ever killed something of the sandbox because its memory was used up."""
        return bool(self._counted.memory_kills)

    def usage(self, freezes: tuple[float, ...]) -> SandboxUsage:
        """Return what was last read."""
        counted, tree = self._counted, self._tree
        sampled = self._looks > 0 and not self._kernel_counts
        return SandboxUsage(
            peak_memory=_either(counted.peak_memory, self._peak_memory if sampled else None),
            cpu_seconds=self._cpu_seconds,
            peak_processes=_either(counted.peak_processes, self._peak_tasks if sampled else None),
            disk_written=tree.written if tree is not None else None,
            output=self._output,
            sampled=sampled,
            freezes=freezes,
        )


def _either(counted: int | None, seen: int | None) -> int | None:
    return seen if counted is None else counted


def _more(now: int | None, before: int | None) -> bool:
    return now is not None and now > (before or 0)


def _latest(before: Counters, now: Counters) -> Counters:
    """Return each counter as it was last read: a group may go between two looks."""
    return Counters(
        cpu_seconds=before.cpu_seconds if now.cpu_seconds is None else now.cpu_seconds,
        peak_memory=_either(now.peak_memory, before.peak_memory),
        peak_processes=_either(now.peak_processes, before.peak_processes),
        memory_kills=_either(now.memory_kills, before.memory_kills),
        refused_forks=_either(now.refused_forks, before.refused_forks),
    )
