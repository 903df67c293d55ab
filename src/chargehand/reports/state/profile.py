"""Derives defaults from the machine's size, so that concurrent sandboxes cannot exhaust it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from chargehand.configuration.records import SourcedValue
from chargehand.core.config import EngineConfig, SandboxConfig

# The share of memory for sandboxes: the rest is for the system, its caches and Chargehand.
SHARE = 0.8
# Temporary file systems of one sandbox, relative to `sandbox.tmp_mb`: /tmp, the home, a quarter for /dev/shm.
SCRATCH = 2.25
_WANTED_MB = 2048
_LEAST_MB = 256
_LEAST_TMP_MB = 32
_STEP_MB = 64
_TMP_STEP_MB = 16
_UNLIMITED_BYTES = 1 << 50
_SMALL_MB = 8192
_LARGE_MB = 57_344


class MachineSize(Struct, frozen=True, kw_only=True):
    """Memory in MiB, processors, and whether the memory is bounded by our control group."""

    memory_mb: int
    cores: int
    grouped: bool = False


class MachineProfile(Struct, frozen=True, kw_only=True):
    """Defaults for one machine; `memory_mb` and `tmp_mb` of one sandbox are defined as in [sandbox].

    `budget_mb` is the memory for all sandboxes together. `fits` is false if even one sandbox after the other may
    exceed it: on a machine of less than about 1 GiB.
    """

    name: str
    machine: MachineSize
    budget_mb: int
    memory_mb: int
    tmp_mb: int
    attempts_at_once: int
    checks_at_once: int

    @property
    def most_mb(self) -> float:
        """The most that all concurrent sandboxes can take in MiB, temporary files in addition to memory."""
        return (self.attempts_at_once + self.checks_at_once) * (self.memory_mb + SCRATCH * self.tmp_mb)

    @property
    def fits(self) -> bool:
        """Whether that never exceeds the budget."""
        return self.most_mb <= self.budget_mb

    @property
    def origin(self) -> str:
        """The displayed origin of its values."""
        return f"profile {self.name}: {self.machine.memory_mb} MiB, {self.machine.cores} processors"

    def said(self) -> dict[str, SourcedValue]:
        """Return the keys with a value that differs from the product's default."""
        sandbox = SandboxConfig()
        engine = EngineConfig()
        values = {
            "sandbox.memory_mb": (self.memory_mb, sandbox.memory_mb),
            "sandbox.tmp_mb": (self.tmp_mb, sandbox.tmp_mb),
            "engine.attempts_at_once": (self.attempts_at_once, engine.attempts_at_once),
            "engine.checks_at_once": (self.checks_at_once, self.machine.cores),
        }
        changed = {name: value for name, (value, default) in values.items() if value != default}
        return {
            name: SourcedValue(value=value, origin=self.origin, place=self.origin)
            for name, value in changed.items()
        }


def profile_for(machine: MachineSize, *, budget_mb: int | None = None) -> MachineProfile:
    """Return the defaults of a machine; `budget_mb` is the user's limit for all sandboxes together.

    The number of agents, from five down to one, is the largest with 2 GiB for each; remaining memory makes them
    larger, up to the product's default.
    """
    most = SandboxConfig()
    budget = budget_mb or int(machine.memory_mb * SHARE)
    attempts = EngineConfig().attempts_at_once
    checks = machine.cores
    while (attempts, checks) != (1, 1) and _memory_of_each(budget, attempts, checks) < _WANTED_MB:
        if checks > attempts:
            checks -= 1
        else:
            attempts -= 1
            checks = min(checks, attempts)
    memory = max(_LEAST_MB, min(most.memory_mb, _memory_of_each(budget, attempts, checks)))
    left = budget / (attempts + checks) - memory
    tmp = max(_LEAST_TMP_MB, min(most.tmp_mb, int(left / SCRATCH) // _TMP_STEP_MB * _TMP_STEP_MB))
    return MachineProfile(
        name="small" if budget < _SMALL_MB else "large" if budget >= _LARGE_MB * SHARE else "medium",
        machine=machine,
        budget_mb=budget,
        memory_mb=memory,
        tmp_mb=tmp,
        attempts_at_once=attempts,
        checks_at_once=checks,
    )


def _memory_of_each(budget: int, attempts: int, checks: int) -> int:
    """Return the memory of one sandbox in MiB if the size of its /tmp is an eighth of it."""
    return int(budget / (attempts + checks) / (1 + SCRATCH / 8)) // _STEP_MB * _STEP_MB


def read_machine(*, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> MachineSize:
    """Return the resources of this process: the machine's memory, or a lower limit of its control groups."""
    said = (proc / "meminfo").read_text().splitlines()
    total = next((int(line.split()[1]) << 10 for line in said if line.startswith("MemTotal:")), _UNLIMITED_BYTES)
    # The memory limits of our control group and its ancestors, versions 1 and 2.
    limits: list[int] = []
    for line in (proc / "self/cgroup").read_text().splitlines():
        _, controllers, place = line.split(":", 2)
        if not controllers:
            limits += _read_limits_upwards(groups, groups / place.lstrip("/"), "memory.max")
        elif "memory" in controllers.split(","):
            limits += _read_limits_upwards(
                groups / "memory", groups / "memory" / place.lstrip("/"), "memory.limit_in_bytes"
            )
    limit = min(limits, default=_UNLIMITED_BYTES)
    # Not os.cpu_count(), which ignores taskset(1) and cpusets.
    cores = len(os.sched_getaffinity(0))
    return MachineSize(memory_mb=min(total, limit) >> 20, cores=cores, grouped=limit < total)


def free_memory(*, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return the free share of the memory under the tightest bound; `None` if the system does not report it."""
    shares = []
    with contextlib.suppress(OSError, ValueError, KeyError):
        lines = (line.split(":") for line in (proc / "meminfo").read_text().splitlines())
        found = {name: int(value.split()[0]) for name, value in lines}
        shares.append(found["MemAvailable"] / found["MemTotal"])
    with contextlib.suppress(OSError, ValueError):
        # The free share of each control group that bounds us (version 2): cached files can be reclaimed.
        for line in (proc / "self/cgroup").read_text().splitlines():
            number, _, place = line.split(":", 2)
            if number != "0":
                continue
            directory = groups / place.lstrip("/")
            for group in (directory, *directory.parents):
                with contextlib.suppress(OSError, ValueError, KeyError):  # "max", or missing
                    limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
                    stat = dict(row.split() for row in (group / "memory.stat").read_text().splitlines())
                    shares.append(1 - max(0, used - int(stat["inactive_file"])) / limit)
                if group == groups:
                    break
    return min(shares, default=None)


def _read_limits_upwards(root: Path, directory: Path, name: str) -> Iterator[int]:
    # Each ancestor bounds this process, too. In a container the path may be the host's and not exist here.
    for place in (directory, *directory.parents):
        with contextlib.suppress(OSError, ValueError):  # "max", or missing
            yield int((place / name).read_text())
        if place == root:
            return
