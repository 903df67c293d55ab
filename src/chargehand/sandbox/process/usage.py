"""A sandbox's resource usage and processes, read from the host: nothing inside takes part.

The kernel's counters in a control group cost commands nothing. Other values are sampled from /proc: processor time
and bytes written are complete at any time, since the kernel adds those of dead processes to the process that
waited for them. Only a program that lets the kernel reap its children (SIGCHLD ignored) hides theirs.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from chargehand.sandbox.contract import ExecResult, LimitName, RunningProcess, SandboxLimits, SandboxUsage
from chargehand.sandbox.process.cgroups import NOT_COUNTED, Cgroup

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
# Seconds between samples: near a limit; if only samples count; at first and later if the kernel counts.
_SHORTEST, _USUAL, _FIRST, _LONGEST = 0.05, 0.25, 1.0, 5.0
# Sampling takes at most this part of the time.
_SHARE = 20
_FILE_TOO_LARGE = 128 + signal.SIGXFSZ
# Processes that a limit may count in addition to those below process 1: bubblewrap itself, or one that just ended.
_BESIDE = 2
_MOST_PROCESSES = 200
_COMMAND_BYTES = 500


class UsageMeter:
    """The meter of one sandbox; `first` returns the host pid of its process 1, `None` if unknown.

    Not for several threads at once. `use` gives it a control group; samples then serve only for values that the
    group does not count.
    """

    def __init__(self, limits: SandboxLimits, *, first: Callable[[], int | None]) -> None:
        self._limits = limits
        self._first = first
        self._group: Cgroup | None = None
        self._counted = self._before = NOT_COUNTED
        self._tree: TreeUsage | None = None
        self._looks = 0
        self._was_full = False
        # The last two readings, for the last may have been taken while everything was being killed.
        self._stuck: deque[bool] = deque(maxlen=2)
        self._peak_memory = self._peak_tasks = 0
        self._samples = 0
        self._cost = 0.0
        self._output = 0

    def use(self, group: Cgroup | None) -> None:
        """Read this group's counters from now on."""
        self._group = group
        self.refresh()

    @property
    def _kernel_counts(self) -> bool:
        return self._counted.peak_memory is not None and self._counted.peak_processes is not None

    @property
    def pause(self) -> float:
        """Seconds until the next sample: soon near a limit, but never so often that it slows the sandbox."""
        wanted = min(_FIRST * 2**self._looks, _LONGEST) if self._kernel_counts else _USUAL
        if self._limits.cpu_seconds is not None:
            left = self._limits.cpu_seconds - (self._cpu_seconds or 0.0)
            wanted = min(wanted, left / (os.cpu_count() or 1))
        return max(_SHORTEST, wanted, self._cost * _SHARE)

    @property
    def _cpu_seconds(self) -> float | None:
        if self._counted.cpu_seconds is not None:
            return self._counted.cpu_seconds
        return self._tree.cpu_seconds if self._tree is not None else None

    def find_passed_limit(self) -> LimitName | None:
        """Sample; return a passed limit of those that only samples enforce. Blocks for a moment."""
        last = self._tree
        refused = self._counted.refused_forks
        self._looks += 1
        if self._group is not None and self._kernel_counts and self._limits.cpu_seconds is None:
            self._counted = self._group.read_enforced().or_else(self._counted)
            if self._refused_forks == 0:
                return None  # nothing to look for, so /proc need not be read
        self.refresh()
        limits = self._limits
        tree = self._tree
        full = tree is not None and tree.tasks >= limits.processes - _BESIDE
        self._was_full = self._was_full or full
        stuck = full and last is not None and tree is not None and last.pids == tree.pids
        self._stuck.append(stuck)
        if limits.cpu_seconds is not None and (self._cpu_seconds or 0.0) >= limits.cpu_seconds:
            return "cpu_time"
        most = limits.memory_mb << 20
        if self._counted.peak_memory is None and tree is not None and tree.memory > most:
            # Count pages shared between processes once: slow to read, so only for a tree that seems too large.
            return "memory" if sum(map(_proportional_memory, tree.pids)) > most else None
        # A fork bomb has used up all its processes, no process ends, and all keep asking for more. Programs that
        # make do with their processes ask less often; programs that make progress start others after some have
        # ended.
        counted = self._counted.refused_forks
        bomb = stuck and counted != refused and self._refused_forks > limits.processes
        return "processes" if bomb else None

    @property
    def _refused_forks(self) -> int:
        """How often the kernel refused the command a process; 0 if not counted."""
        return (self._counted.refused_forks or 0) - (self._before.refused_forks or 0)

    def refresh(self) -> None:
        """Read present counters and processes; values that are gone keep their last reading."""
        if self._group is not None:
            self._counted = self._group.read_counters().or_else(self._counted)
        # The cost of this sample sets how soon the next one may come, see `pause`.
        began = time.perf_counter()
        first = self._first()
        tree = sample_tree(first) if first is not None else None
        if tree is not None:
            self._tree = tree
            self._peak_memory = max(self._peak_memory, tree.memory)
            self._peak_tasks = max(self._peak_tasks, tree.tasks)
            self._samples += 1
        self._cost = time.perf_counter() - began

    def begin_command(self) -> None:
        """Start counting refusals for one command; called before each command, so it has to be cheap."""
        # Before each command and not after the last: a daemon may reach a limit in between.
        self._before = self._group.read_enforced() if self._group is not None else NOT_COUNTED
        self._looks = 0
        self._was_full = False
        self._stuck.clear()

    def name_limit(self, result: ExecResult, stopped: LimitName | None) -> ExecResult:
        """Return a command's result with the limit that ended it; `stopped` is the limit we had it killed for."""
        self._output += result.written
        if result.limit not in (None, "wall_time") or (stopped is None and result.exit_code == 0):
            return result
        if self._group is not None:
            self._counted = self._group.read_enforced().or_else(self._counted)
        counts = self._counted.refused_forks is not None
        if result.limit == "wall_time":
            # Killed at its time limit because it could not continue: it did not lack time.
            stuck = any(self._stuck) and (self._refused_forks > 0 or not counts)
            return replace(result, limit="processes", timed_out=False) if stuck else result
        limit = stopped
        if limit is None and result.exit_code == _FILE_TOO_LARGE:
            limit = "file_size"
        # Only for a command that failed: one that is refused a resource and continues has not ended by a limit.
        elif limit is None and (self._counted.memory_kills or 0) > (self._before.memory_kills or 0):
            limit = "memory"
        elif limit is None and (self._refused_forks > 0 or (self._was_full and not counts)):
            limit = "processes"
        return replace(result, limit=limit)

    @property
    def memory_ran_out(self) -> bool:
        """Whether the kernel ever killed a process of the sandbox because its memory was used up."""
        return bool(self._counted.memory_kills)

    def usage(self, freezes: tuple[float, ...]) -> SandboxUsage:
        """Return the last reading."""
        counted = self._counted
        tree = self._tree
        sampled = self._samples > 0 and not self._kernel_counts
        peak_memory, peak_processes = counted.peak_memory, counted.peak_processes
        if sampled and peak_memory is None:
            peak_memory = self._peak_memory
        if sampled and peak_processes is None:
            peak_processes = self._peak_tasks
        return SandboxUsage(
            peak_memory=peak_memory,
            cpu_seconds=self._cpu_seconds,
            peak_processes=peak_processes,
            disk_written=tree.written if tree is not None else None,
            output=self._output,
            sampled=sampled,
            freezes=freezes,
        )


class TreeUsage(Struct, frozen=True, kw_only=True):
    """One sample of a process tree: `tasks` counts threads; memory in bytes, shared pages counted per process.

    `written` counts bytes, `None` if the kernel or its rules do not reveal it.
    """

    pids: tuple[int, ...]
    cpu_seconds: float
    memory: int
    tasks: int
    written: int | None


def sample_tree(first: int) -> TreeUsage | None:
    """Return the usage of the process `first` and all its descendants; `None` if it is gone."""
    pids, ticks, pages, tasks = [], 0, 0, 0
    written: int | None = 0
    for pid in _walk(first, _children):
        fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        if not fields:
            continue
        pids.append(pid)
        ticks += sum(map(int, fields[11:15]))  # its time and that of the children it has waited for
        tasks += int(fields[17])
        pages += int(fields[21])
        more = _read_field(f"/proc/{pid}/io", "write_bytes:")
        written = None if written is None or more is None else written + int(more)
    if not pids:
        return None
    return TreeUsage(
        pids=tuple(pids), cpu_seconds=ticks / _TICKS, memory=pages * _PAGE, tasks=tasks, written=written
    )


def first_child(pid: int) -> int | None:
    """Return the oldest child of a process, `None` if it has no child or is gone."""
    return next(iter(_children(pid)), None)


def processes_below(first: int) -> tuple[RunningProcess, ...]:
    """Return the descendants of a sandbox's process 1, the oldest first; 200 at most."""
    stats: dict[int, list[str]] = {}
    names: dict[int, str] = {}
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        # A name may contain anything, brackets too: the fields follow the last bracket.
        before, bracket, after = (_read(f"/proc/{entry}/stat") if entry.isdecimal() else "").rpartition(")")
        if bracket:
            pid = int(entry)
            stats[pid], names[pid] = after.split(), before.partition("(")[2]
            children.setdefault(int(stats[pid][1]), []).append(pid)
    # From one reading of all processes and not from each one's list of children: the tree is of one moment.
    below = [pid for pid in _walk(first, lambda pid: children.get(pid, [])) if pid != first]
    inside = {pid: int(ids.split()[-1]) for pid in below if (ids := _read_field(f"/proc/{pid}/status", "NSpid:"))}
    # By their ids inside, which count up from 1: those of the host may have wrapped.
    found = []
    for pid in sorted(inside, key=inside.__getitem__)[:_MOST_PROCESSES]:
        stat = stats[pid]
        words = _read(f"/proc/{pid}/cmdline")[:_COMMAND_BYTES].replace("\0", " ").strip()
        waits_in = _read(f"/proc/{pid}/wchan").strip()
        try:
            open_files = len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            open_files = None
        found.append(
            RunningProcess(
                pid=inside[pid],
                parent=inside.get(int(stat[1]), 1),
                state=stat[0],
                command=words or f"[{names[pid]}]",
                cpu_seconds=(int(stat[11]) + int(stat[12])) / _TICKS,
                waits_in=waits_in if waits_in not in ("", "0") else None,
                open_files=open_files,
            )
        )
    return tuple(found)


def _walk(first: int, children: Callable[[int], list[int]]) -> Iterator[int]:
    """Yield a process and all its descendants, each before its children."""
    waiting = [first]
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children(pid)


def _children(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [int(child) for task in tasks for child in _read(f"/proc/{pid}/task/{task}/children").split()]


def _proportional_memory(pid: int) -> int:
    """Return the memory of a process in bytes, each shared page divided by its number of sharers."""
    kilobytes = _read_field(f"/proc/{pid}/smaps_rollup", "Pss:")
    if kilobytes:
        return int(kilobytes.split()[0]) << 10
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * _PAGE if fields else 0


def _read_field(path: str, label: str) -> str | None:
    """Return the text after the label of a line."""
    lines = (line for line in _read(path).splitlines() if line.startswith(label))
    return next((line.removeprefix(label).strip() for line in lines), None)


def _read(path: str) -> str:
    """Return the content of a file of /proc, "" if its process is gone or may not be read."""
    try:
        with open(path, "rb", 0) as file:
            return file.read().decode(errors="replace")
    except OSError:
        return ""
