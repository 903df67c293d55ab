"""The kind of machine that the figures are from, without names or paths."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path


def describe(place: Path) -> dict[str, str]:
    """Return the facts on which a figure depends; the file system is that of `place`."""
    git = subprocess.run(["git", "version"], capture_output=True, text=True, check=True).stdout
    bubblewrap = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=True).stdout
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cores": str(len(os.sched_getaffinity(0))),
        "kernel": ".".join(platform.release().split(".")[:2]),
        "file_system": _file_system(place),
        "user": "root" if os.geteuid() == 0 else "unprivileged",
        "git": git.split()[-1],
        "bubblewrap": bubblewrap.split()[-1],
        "python": platform.python_version(),
        "load": " ".join(f"{value:.1f}" for value in os.getloadavg()),
    }


def _file_system(place: Path) -> str:
    """Return the file system type of the mount with `place`: the longest mount point above it, see proc(5)."""
    found = ("", "unknown")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, *_ = line.split(" ")
        if place.is_relative_to(point) and len(point) >= len(found[0]):
            found = (point, kind)
    return found[1]
