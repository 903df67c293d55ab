"""Workspaces for the sandboxes of tests, and the processes and groups that these leave on this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.toolchain_kit import host_toolchain

from chargehand.core.ports import MountPlan, sandbox_ids
from chargehand.sandbox.contract import SandboxLimits, SandboxSpec
from chargehand.sandbox.toolchain import Toolchain

needs_bwrap = pytest.mark.skipif(
    shutil.which("bwrap") is None and not os.environ.get("CI"), reason="needs bubblewrap"
)


def toolchain() -> Toolchain:
    # With its packages: the tests try pip and HTTP clients inside.
    return host_toolchain("all")


@contextmanager
def workspace(root: Path, *, plain: bool = False, **limits: int) -> Iterator[SandboxSpec]:
    """Make an empty workspace below `root`; new files appear in its `upper`, in `base` if plain."""
    root.mkdir()
    for name in ("base", "upper", "work"):
        (root / name).mkdir()
    for path in (root, *root.iterdir()):
        os.chown(path, *sandbox_ids())
    plan = MountPlan(target="/workspace", lowers=(root / "base",), upper=root / "upper", work=root / "work")
    if plain:
        plan = MountPlan(target="/workspace", plain=root / "base")
    try:
        yield SandboxSpec(mounts=plan, limits=SandboxLimits(**{"memory_mb": 512, "tmp_mb": 16, **limits}))
    finally:
        for locked in root.glob("work/work"):
            locked.chmod(0o700)  # overlayfs leaves it without any permission


def descendants(pid: int) -> dict[int, str]:
    """Return the process ids and command lines of all descendants of `pid`."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(entry)] = int(fields[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return {child: _command(child) for child in found - {pid}}


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def running_with(marker: str) -> list[int]:
    """Return this machine's processes whose command line holds `marker`, except ourselves."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and marker in _command(pid)]


def our_mounts() -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if "chargehand" in line.split(" - ")[1].split()[1]]


def our_cgroups() -> list[Path]:
    """Return the control groups that Chargehand made anywhere on this machine."""
    return [Path(place) for place, _, _ in os.walk("/sys/fs/cgroup") if Path(place).name.startswith("chargehand-")]
