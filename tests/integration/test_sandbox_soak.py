"""Consecutive runs of every tier with every kind of end: nothing is left, and nothing grows."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from tests import container_kit
from tests.crash_kit import mounts
from tests.jail_kit import TIERS, tier_of

from chargehand.core.ports import MountPlan, sandbox_ids
from chargehand.sandbox.contract import Sandbox, SandboxLimits, SandboxSpec
from chargehand.sandbox.toolchain import discover

SAMPLE = {"process": 21, "container": 7, "vm": 3}
"""The suite's share: each end of a run at least once."""
LONG = int(os.environ.get("CHARGEHAND_SOAK_RUNS", "1000"))
GROWTH_KB = 6 * 1024
"""How much more memory a process of ours may hold at the end than when warm, for any number of runs."""
HUNG = "setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 1; done' {mark} >/dev/null 2>&1 &"
ENDS = ("alone", "daemons", "timed out", "killed", "cancelled", "frozen", "much output")


async def use(sandbox: Sandbox, end: str, mark: str) -> None:
    """Run a command in a sandbox that ends in the given way, or does not end."""
    hung = HUNG.format(mark=mark)
    if end == "alone":
        assert (await sandbox.exec(["sh", "-c", "echo x > file"])).exit_code == 0
    elif end == "daemons":
        assert (await sandbox.exec(["sh", "-c", f"{hung} mkfifo pipe"])).exit_code == 0
    elif end == "timed out":
        assert (await sandbox.exec(["sh", "-c", f"{hung} sleep 100"], timeout=0.3)).timed_out
    elif end == "killed":
        assert (await sandbox.exec(["sh", "-c", f"{hung} kill -9 -1; kill -9 $$"])).exit_code == 137
    elif end == "much output":
        assert len((await sandbox.exec(["head", "-c", "300000", "/dev/zero"])).stdout) == 300_000
    else:
        running = asyncio.create_task(sandbox.exec(["sh", "-c", f"{hung} sleep 100"]))
        await asyncio.sleep(0.05)
        if end == "frozen":
            await sandbox.freeze()
        running.cancel()
        await asyncio.wait([running], timeout=0 if end == "frozen" else None)


class Floor:
    """The state of this machine while a tier has no sandbox open."""

    def __init__(self, place: Path) -> None:
        self.place = place
        # A process that ended and that another test left unreaped no longer has a command line.
        self.services = {pid for pid in below(os.getpid()) if "postgres" not in (command_of(pid) or "postgres")}

    def seen(self) -> dict[str, Any]:
        counted = {pid: len(os.listdir(f"/proc/{pid}/fd")) for pid in (os.getpid(), *self.services)}
        return {
            "processes": below(os.getpid()),
            "descriptors": counted,
            "mounts": len(mounts()),
            "files": sorted(path.name for path in self.place.rglob("*") if "work/" not in str(path)),
        }

    def memory(self) -> dict[int, int]:
        """Return the resident memory of each of our processes in KiB, without garbage of earlier tests."""
        gc.collect()
        return {pid: resident(pid) for pid in (os.getpid(), *self.services)}


def below(pid: int) -> set[int]:
    """Return all unreaped descendants of a process."""
    parents: dict[int, int] = {}
    for number in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            parents[int(number)] = int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def command_of(pid: int) -> str:
    """Return a process's command line, to leave out the shared database server, which opens files as it likes."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def resident(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None, f"{pid} ended"
    return int(found[1])


def bearing(mark: str) -> list[int]:
    """Return the processes of this machine that have a mark in their command line."""
    found = []
    for number in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if mark.encode() in Path(f"/proc/{number}/cmdline").read_bytes():
                found.append(int(number))
    return found


async def until(what: Callable[[], object]) -> None:
    """Wait until `what` returns nothing; the kernel and engines need a moment to end killed processes."""
    limit = time.monotonic() + 30
    while left := what():
        assert time.monotonic() < limit, left
        await asyncio.sleep(0.01)


async def run(tier: Any, root: Path, end: str) -> None:
    """Open a sandbox on a new workspace, use it, and close it; check that nothing it held is left."""
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    for name in ("upper", "work"):
        (root / name).mkdir()
        os.chown(root / name, *sandbox_ids())
    plan = MountPlan(target="/workspace", lowers=(root / "base",), upper=root / "upper", work=root / "work")
    sandbox = await tier.open(SandboxSpec(mounts=plan, limits=SandboxLimits(memory_mb=512, tmp_mb=8)))
    group = sandbox._cgroup
    try:
        await use(sandbox, end, mark)
    finally:
        await sandbox.close()
    await until(lambda: bearing(mark))
    await until(lambda: [path for path in group.directories if path.exists()] if group is not None else [])
    for locked in root.glob("work/work"):
        locked.chmod(0o700)
        locked.rmdir()
    for path in (*root.glob("upper/*"), root / "upper", root / "work"):
        path.rmdir() if path.is_dir() else path.unlink()


async def many(kind: str, place: Path, runs: int) -> dict[str, Any]:
    """Return the state of the machine when the tier was warm, and after the last run."""
    for name in ("base", "scratch"):
        (place / name).mkdir()
    for path in (place, place / "base"):
        os.chown(path, *sandbox_ids())
    options = {"scratch": place / "scratch"} if kind == "container" else {}
    async with AsyncExitStack() as stack:
        tier = await stack.enter_async_context(tier_of(kind, discover(search=os.environ["PATH"]), **options))
        await run(tier, place, "alone")
        floor = Floor(place)
        before, warm = floor.seen(), floor.memory()
        for number in range(runs):
            await run(tier, place, ENDS[number % len(ENDS)])
            await until(lambda: {name: now for name, now in floor.seen().items() if now != before[name]})
            if number == min(runs // 2, 100):
                warm = floor.memory()
        after = floor.memory()
    assert {pid: after[pid] - warm[pid] for pid in after if after[pid] - warm[pid] > GROWTH_KB} == {}
    return {"warm": sorted(warm.values()), "after": sorted(after.values())}


@pytest.mark.parametrize("kind", TIERS)
@pytest.mark.parametrize("long", [False, pytest.param(True, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])])
def test_runs_leave_no_process_mount_or_file(tmp_path: Path, kind: str, long: bool) -> None:
    mounted, started = mounts(), below(os.getpid())
    runs, began = LONG if long else SAMPLE[kind], time.monotonic()
    held = asyncio.run(many(kind, tmp_path, runs))
    assert below(os.getpid()) <= started
    assert mounts() == mounted
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "scratch"]
    assert list((tmp_path / "scratch").iterdir()) == []
    if kind == "container":
        assert container_kit.containers("podman") == []
    print(f"{kind}: {runs} runs in {time.monotonic() - began:.0f} s; resident KiB {held}")


async def test_leftovers_are_detected(tmp_path: Path) -> None:
    """A leftover process, descriptor or file is reported."""
    floor = Floor(tmp_path)
    before = floor.seen()
    (tmp_path / "file").touch()
    with (tmp_path / "file").open():
        process = await asyncio.create_subprocess_exec("sleep", "100", start_new_session=True)
        now = floor.seen()
        process.kill()
        await process.wait()
    assert {name for name in now if now[name] != before[name]} == {"processes", "descriptors", "files"}
