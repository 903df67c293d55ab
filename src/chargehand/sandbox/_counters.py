"""What the kernel counted in a control group, versions 1 and 2: nobody has to look while things run."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Of everything that ever ran in a group, `None` for what no controller of it counts.

    Memory in bytes, page cache and temporary files included; `memory_kills` and `refused_forks` say how often a
    limit was enforced.
    """

    cpu_seconds: float | None = None
    peak_memory: int | None = None
    peak_processes: int | None = None
    memory_kills: int | None = None
    refused_forks: int | None = None


NOTHING = Counters()


def read_counters(directories: Iterable[Path]) -> Counters:
    """Return what a group's directories tell; one that is gone tells nothing."""
    places = tuple(directories)
    return replace(
        read_enforced(places),
        cpu_seconds=_cpu(places),
        peak_memory=_first(places, ("memory.peak", "memory.max_usage_in_bytes")),
        peak_processes=_first(places, ("pids.peak",)),
    )


def read_enforced(directories: Iterable[Path]) -> Counters:
    """Return how often a group's limits were enforced, and nothing else: this is asked at every command."""
    places = tuple(directories)
    return Counters(
        memory_kills=_first(places, ("memory.events", "memory.oom_control"), "oom_kill"),
        refused_forks=_first(places, ("pids.events",), "max"),
    )


def _cpu(places: tuple[Path, ...]) -> float | None:
    nanoseconds = _first(places, ("cpuacct.usage",))
    if nanoseconds is not None:
        return nanoseconds / 1e9
    microseconds = _first(places, ("cpu.stat",), "usage_usec")
    return None if microseconds is None else microseconds / 1e6


def _first(places: tuple[Path, ...], names: tuple[str, ...], field: str = "") -> int | None:
    """Return the number that the first of these files holds, in the line of `field` where one is named."""
    path = _where(places, names, field)
    return None if path is None else _number(path, field)


@functools.lru_cache(maxsize=512)
def _where(places: tuple[Path, ...], names: tuple[str, ...], field: str) -> Path | None:
    # Looked for once: a command would pay for each file that is not there.
    paths = (place / name for place in places for name in names)
    return next((path for path in paths if _number(path, field) is not None), None)


def _number(path: Path, field: str) -> int | None:
    try:
        text = path.read_text()
    except OSError:
        return None
    found = re.search(rf"^{field} (\d+)$" if field else r"^(\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else None
