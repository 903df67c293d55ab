"""Control groups, versions 1 and 2, if this process may make them: limits, freezing and counters of a sandbox.

Otherwise rlimits bind memory per process and the process count per sandbox, and the exec server freezes by
signals; `limits_in_force` shows which limits apply.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from chargehand.core.errors import InfrastructureError
from chargehand.sandbox.contract import SandboxLimits

_FREEZE_SECONDS = 5.0
_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "chargehand-"
_V1 = ("memory", "pids", "freezer", "cpu", "cpuacct")
_V2 = ("memory", "pids", "cpu")
# Files that limit memory, and swap in addition to it.
_MEMORY_V1, _MEMORY_V2 = (
    ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    ("memory.max", "memory.swap.max"),
)
# The kernel's default.
_PERIOD_MICROSECONDS = 100_000
_REMOVE_ROUNDS = 1000
_COUNTER_BYTES = 4096


class Counters(Struct, frozen=True, kw_only=True):
    """The kernel's counters for everything that ever ran in a group; `None` if no controller counts it.

    Memory in bytes, page cache and temporary files included; `memory_kills` and `refused_forks` count how often a
    limit was enforced.
    """

    cpu_seconds: float | None = None
    peak_memory: int | None = None
    peak_processes: int | None = None
    memory_kills: int | None = None
    refused_forks: int | None = None

    def or_else(self, before: Counters) -> Counters:
        """Return these counters, unknown values taken from `before`: a group may vanish between two readings."""
        known = {name: value for name, value in asdict(self).items() if value is not None}
        return replace(before, **known)


NOT_COUNTED = Counters()


class Cgroup(Struct, frozen=True):
    """The group of one sandbox: its directories (one per controller in version 1)."""

    directories: tuple[Path, ...]
    unified: bool
    limits_in_force: dict[str, str] = field(default_factory=dict)

    @property
    def exists(self) -> bool:
        """Whether any of its directories is left."""
        return any(directory.exists() for directory in self.directories)

    @property
    def freezer(self) -> Path | None:
        """The file that orders a freeze, `None` if this group has no freezer."""
        name = "cgroup.freeze" if self.unified else "freezer.state"
        files = (directory / name for directory in self.directories)
        return next((file for file in files if file.exists()), None)

    def freeze(self, wanted: bool) -> None:
        """Freeze or thaw every process of the group and wait until the kernel confirms it.

        Raises `InfrastructureError` (`freeze_unavailable`, `freeze_timeout`).
        """
        control = self.freezer
        if control is None:
            raise InfrastructureError("this control group cannot freeze", code="freeze_unavailable")
        order = str(int(wanted)) if self.unified else ("FROZEN" if wanted else "THAWED")
        state = control.with_name("cgroup.events") if self.unified else control
        goal = f"frozen {order}" if self.unified else order
        # A write to the freezer returns before the last process has stopped.
        limit = time.monotonic() + _FREEZE_SECONDS
        control.write_text(order)
        while goal not in state.read_text():
            if time.monotonic() > limit:
                control.write_text("0" if self.unified else "THAWED")
                raise InfrastructureError(f"not frozen after {_FREEZE_SECONDS} s", code="freeze_timeout")
            time.sleep(0.0005)
            control.write_text(order)  # version 1 may stay at FREEZING until asked again

    def read_counters(self) -> Counters:
        """Return the kernel's counters up to now; nothing if the group is gone."""
        nanoseconds = self._read(("cpuacct.usage",))
        microseconds = self._read(("cpu.stat",), b"usage_usec") if nanoseconds is None else None
        seconds = None if nanoseconds is None else nanoseconds / 1e9
        return replace(
            self.read_enforced(),
            cpu_seconds=seconds if microseconds is None else microseconds / 1e6,
            peak_memory=self._read(("memory.peak", "memory.max_usage_in_bytes")),
            peak_processes=self._read(("pids.peak",)),
        )

    def read_enforced(self) -> Counters:
        """Return only how often limits were enforced: this is read before every command."""
        return Counters(
            memory_kills=self._read(("memory.events", "memory.oom_control"), b"oom_kill"),
            refused_forks=self._read(("pids.events",), b"max"),
        )

    def _read(self, names: tuple[str, ...], label: bytes = b"") -> int | None:
        """Return the number in the first of these files that exists; with `label`, the number in that line."""
        path = _find_counter(self.directories, names, label)
        return None if path is None else _read_number(path, label)

    def kill(self) -> None:
        """Send SIGKILL to every process of the group; a frozen one dies at the thaw, before it continues."""
        # Every controller's group has the same members.
        _kill_members(self.directories[0])

    def remove(self) -> None:
        """Remove the directories once the kernel has released the last process; kill remaining processes."""
        # Not by rmtree: the files of a group cannot be removed, its directory can once it is empty.
        for directory in self.directories:
            _remove_group(directory)


@functools.lru_cache(maxsize=512)
def _find_counter(directories: tuple[Path, ...], names: tuple[str, ...], label: bytes) -> str | None:
    # Searched once: a command would pay for each missing file.
    paths = (str(directory / name) for directory in directories for name in names)
    return next((path for path in paths if _read_number(path, label) is not None), None)


def _read_number(path: str, label: bytes) -> int | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # a file object costs five more system calls
    except OSError:
        return None
    try:
        lines = os.read(fd, _COUNTER_BYTES).splitlines()
    except OSError:
        return None
    finally:
        os.close(fd)
    pairs = (line.rpartition(b" ") for line in lines)
    return next((int(value) for name, _, value in pairs if name == label and value.isdigit()), None)


class Cgroups:
    """Makes groups below that of this process; `available` is proven by making one."""

    def __init__(self) -> None:
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        # A writable parent directory for each controller.
        self._parents: dict[str, Path] = {}
        for _, controllers, place in lines:
            for name in controllers.split(","):
                directory = Path(os.path.realpath(_ROOT / name)) / place.lstrip("/")
                if name in _V1 and os.access(directory, os.W_OK):
                    self._parents[name] = directory
        self._unified = False
        for _, controllers, place in lines if not self._parents else ():
            directory = _ROOT / place.lstrip("/")
            if not controllers and (directory / "cgroup.procs").exists() and os.access(directory, os.W_OK):
                delegate_controllers(directory)
                self._parents = {"unified": directory}
                self._unified = True
                break
        self._prefix = f"{_PREFIX}{os.getpid()}-{_start_time(str(os.getpid()))}-"
        self.reason = ""
        self.available = False
        if not self._parents:
            self.reason = "no control group of this process can be written to"
            return
        try:
            # By making one: permissions on the directory say nothing about a read-only or a namespaced mount.
            self.create("probe", SandboxLimits()).remove()
            self.available = True
        except OSError as error:
            self.reason = f"control groups cannot be made here: {error}"

    def create(self, name: str, limits: SandboxLimits) -> Cgroup:
        """Make the group of one sandbox and set its limits; raises `OSError`."""
        directories: list[Path] = []
        in_force: dict[str, str] = {}
        version = f"cgroup v{2 if self._unified else 1}"
        most = str(limits.memory_mb << 20)
        for parent in dict.fromkeys(self._parents.values()):  # version 1 may join controllers in one place
            directory = parent / f"{self._prefix}{name}"
            directory.mkdir()
            directories.append(directory)
            # A directory has files only for the limits of its controllers.
            if (directory / ("cgroup.freeze" if self._unified else "freezer.state")).exists():
                in_force["freeze"] = version
            memory, swap = (directory / file for file in (_MEMORY_V2 if self._unified else _MEMORY_V1))
            if memory.exists():
                memory.write_text(most)
                with contextlib.suppress(OSError):  # if the kernel counts swap, no swap in addition
                    swap.write_text("0" if self._unified else most)
                in_force["memory"] = f"{limits.memory_mb} MiB for the sandbox ({version})"
            if (directory / "pids.max").exists():
                (directory / "pids.max").write_text(str(limits.processes))
                in_force["processes"] = f"{limits.processes} for the sandbox ({version})"
            share = directory / ("cpu.max" if self._unified else "cpu.cfs_quota_us")
            if limits.cpu_percent is not None and share.exists():
                quota = limits.cpu_percent * _PERIOD_MICROSECONDS // 100
                if not self._unified:
                    (directory / "cpu.cfs_period_us").write_text(str(_PERIOD_MICROSECONDS))
                share.write_text(f"{quota} {_PERIOD_MICROSECONDS}" if self._unified else str(quota))
                in_force["cpu_share"] = f"{limits.cpu_percent} % of a processor ({version})"
        return Cgroup(tuple(directories), self._unified, in_force)

    def sweep(self) -> int:
        """Thaw, kill and remove the groups whose owner is dead; return the number of directories removed."""
        removed = 0
        for parent in self._parents.values():
            for directory in parent.glob(f"{_PREFIX}*"):
                # The start time too: the process id may belong to another process by now.
                owner, started = directory.name.removeprefix(_PREFIX).split("-")[:2]
                if _start_time(owner) != started:
                    _remove_group(directory)
                    removed += 1
        return removed


def _start_time(pid: str) -> str:
    """Return a process's start time in the kernel's ticks: with the pid it identifies one process for ever."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _remove_group(directory: Path) -> None:
    for _ in range(_REMOVE_ROUNDS):
        try:
            directory.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            for name, order in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
                with contextlib.suppress(OSError):
                    if (directory / name).exists():
                        (directory / name).write_text(order)
            _kill_members(directory)
            time.sleep(0.002)  # the kernel releases a dead process only after its last file and page
        else:
            return


def _kill_members(directory: Path) -> None:
    with contextlib.suppress(OSError):
        for pid in (directory / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def delegate_controllers(directory: Path) -> None:
    """Give groups below a group of version 2 its controllers, as far as the kernel allows.

    The kernel refuses while processes live in the group itself, unless that is the root: then the groups below
    count processor time and freeze, but limit nothing, which `limits_in_force` shows.
    """
    try:
        offered = (directory / "cgroup.controllers").read_text().split()
        given = (directory / "cgroup.subtree_control").read_text().split()
    except OSError:
        return
    for name in _V2:
        if name in offered and name not in given:
            with contextlib.suppress(OSError):
                (directory / "cgroup.subtree_control").write_text(f"+{name}")
