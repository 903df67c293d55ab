"""When an attempt ends, in any way, nothing of it is left: no process, no mount, no cgroup, no file."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.toolchain_kit import host_toolchain

from chargehand.core.errors import ChargehandError, SandboxDiedError
from chargehand.core.ports import MountPlan, sandbox_ids
from chargehand.sandbox.contract import SandboxLimits, SandboxSpec
from chargehand.sandbox.process.session import START_SECONDS
from chargehand.sandbox.process_tier import ProcessTier

pytestmark = [
    pytest.mark.needs_bwrap,
    pytest.mark.skipif(shutil.which("bwrap") is None and not os.environ.get("CI"), reason="needs bubblewrap"),
]
HUNG = """
import os, signal, sys, time
for number in range(1, 32):
    if number not in (9, 17, 19):
        signal.signal(number, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 64)
        open(f"ready-{os.getpid()}", "w").close()
        time.sleep(100000)
        os._exit(0)
time.sleep(100000)
"""
OWNER = """
import asyncio, os, sys
from pathlib import Path
from chargehand.core.ports import MountPlan
from chargehand.sandbox.process_tier import ProcessTier
from chargehand.sandbox.contract import SandboxSpec
from chargehand.sandbox.toolchain import discover
HUNG = sys.argv[3]
async def main(root, frozen):
    plan = MountPlan(target="/workspace", lowers=(root / "base",), upper=root / "upper", work=root / "work")
    async with ProcessTier(discover(search=os.environ["PATH"])) as tier:
        sandbox = await tier.open(SandboxSpec(mounts=plan))
        task = asyncio.create_task(sandbox.exec(["python3", "-I", "-c", HUNG, "MARK-" + root.name]))
        while len(list((root / "upper").iterdir())) < 6:
            await asyncio.sleep(0.01)
        if frozen:
            await sandbox.freeze()
        print("ready", flush=True)
        await task
asyncio.run(main(Path(sys.argv[1]), sys.argv[2] == "frozen"))
"""


@contextmanager
def place(root: Path) -> Iterator[SandboxSpec]:
    for path in (root, *(root / name for name in ("base", "upper", "work"))):
        path.mkdir()
        os.chown(path, *sandbox_ids())
    plan = MountPlan(target="/workspace", lowers=(root / "base",), upper=root / "upper", work=root / "work")
    try:
        yield SandboxSpec(mounts=plan, limits=SandboxLimits(memory_mb=512, tmp_mb=8))
    finally:
        for locked in root.glob("work/work"):
            locked.chmod(0o700)


def processes() -> dict[int, tuple[int, str]]:
    """Return parent and command line of every process of this machine except zombies."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            command = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if fields[0] != "Z":
            found[int(entry)] = int(fields[1]), command
    return found


def descendants(pid: int) -> dict[int, str]:
    """Return the descendants of a process, except those that tests share: a database server, the fork server."""
    table = processes()
    found = {pid}
    while more := {child for child, (parent, _) in table.items() if parent in found} - found:
        found |= more
    below = {child: table[child][1] for child in found - {pid} if child in table}
    others = ("postgres", "tests.forked")
    return {child: command for child, command in below.items() if not any(each in command for each in others)}


def bearing(mark: str) -> list[int]:
    return [pid for pid, (_, command) in processes().items() if mark in command and pid != os.getpid()]


def cgroups() -> set[str]:
    return {place for place, _, _ in os.walk("/sys/fs/cgroup") if Path(place).name.startswith("chargehand-")}


def mounts() -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "chargehand" in line]


def gone(condition: Callable[[], object], *, seconds: float = 120.0) -> None:
    """Wait until nothing is left; the kernel needs a moment to end killed processes."""
    limit = time.monotonic() + seconds
    while condition():
        assert time.monotonic() < limit, condition()
        time.sleep(0.01)


def orphaned_cgroups() -> set[str]:
    """Return the groups of this process and of dead processes; other processes may run during this test."""
    owners = {name: Path(name).name.split("-")[1] for name in cgroups()}
    return {name for name, pid in owners.items() if int(pid) == os.getpid() or not Path("/proc", pid).exists()}


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that mounts, groups and temporary files are the same after each test as before."""
    before, mounted = orphaned_cgroups(), mounts()
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield
    gone(lambda: orphaned_cgroups() - before)
    gone(lambda: set(mounts()) ^ set(mounted))
    assert list(temporary.iterdir()) == []


async def test_attempts_with_hung_grandchildren_leave_no_process(tmp_path: Path) -> None:
    await attempts(tmp_path, 60)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_a_thousand_attempts_leave_no_process(tmp_path: Path) -> None:
    await attempts(tmp_path, 1000)


async def attempts(tmp_path: Path, count: int) -> None:
    """End attempts in every way: closed, cancelled, timed out, frozen, failed to open."""
    descriptors = len(os.listdir("/proc/self/fd"))
    mark = f"MARK-{os.getpid()}-{tmp_path.name}"
    async with ProcessTier(host_toolchain()) as tier:
        for number in range(count):
            root = tmp_path / str(number)
            with place(root) as spec:
                await one_attempt(tier, spec, number, mark)
            shutil.rmtree(root)
            assert bearing(mark) == []
            assert not [name for name in cgroups() if str(os.getpid()) in name]
        assert list(descendants(os.getpid()).values()) == [
            command for command in descendants(os.getpid()).values() if "_launcher" in command
        ]
    assert descendants(os.getpid()) == {}
    assert len(os.listdir("/proc/self/fd")) == descriptors


async def one_attempt(tier: ProcessTier, spec: SandboxSpec, number: int, mark: str) -> None:
    way = number % 5
    if way == 4:
        opening = asyncio.create_task(tier.open(spec))
        await asyncio.sleep(0.002 * (number % 17))
        opening.cancel()
        await asyncio.wait([opening])
        if not opening.cancelled():
            await opening.result().close()
        return
    sandbox = await tier.open(spec)
    command = ["python3", "-I", "-c", HUNG, mark]
    if way == 0:
        assert (await sandbox.exec(command, timeout=0.1)).timed_out
        assert bearing(mark) == []
    task = asyncio.create_task(sandbox.exec(command))
    assert spec.mounts.upper is not None
    while not list(spec.mounts.upper.iterdir()):
        await asyncio.sleep(0.002)
    if way == 1:
        task.cancel()
        await asyncio.wait([task])
        assert bearing(mark) == []
    if way == 2:
        await sandbox.freeze()
    await sandbox.close()
    await asyncio.wait([task])
    assert task.cancelled() or isinstance(task.exception(), SandboxDiedError)


async def test_a_tier_that_closes_takes_its_sandboxes_along(tmp_path: Path) -> None:
    mark = f"MARK-{os.getpid()}-tier"
    with place(tmp_path / "a") as one, place(tmp_path / "b") as two:
        tier = ProcessTier(host_toolchain())
        async with tier:
            opened = [await tier.open(spec) for spec in (one, two)]
            tasks = [asyncio.create_task(sandbox.exec(["python3", "-c", HUNG, mark])) for sandbox in opened]
            while not all(list((tmp_path / name / "upper").iterdir()) for name in "ab"):
                await asyncio.sleep(0.01)
            await opened[1].freeze()
        assert bearing(mark) == []
        for task in tasks:
            with pytest.raises(SandboxDiedError):
                await task
        for sandbox in opened:
            await sandbox.close()
        with pytest.raises(ChargehandError):
            await tier.open(one)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("victim", ["launcher", "bubblewrap", "exec server"])
async def test_killed_from_outside(tmp_path: Path, victim: str, frozen: bool) -> None:
    mark = f"MARK-{os.getpid()}-{victim[0]}-{frozen}"
    with place(tmp_path / "place") as spec:
        async with ProcessTier(host_toolchain()) as tier:
            sandbox = await tier.open(spec)
            task = asyncio.create_task(sandbox.exec(["python3", "-c", HUNG, mark]))
            while len(list((tmp_path / "place/upper").iterdir())) < 6:
                await asyncio.sleep(0.01)
            if frozen:
                await sandbox.freeze()
            os.kill(find(victim), signal.SIGKILL)
            if not frozen:
                with pytest.raises(SandboxDiedError):
                    await task
            await sandbox.close()
            await asyncio.wait([task])
            assert isinstance(task.exception(), SandboxDiedError)
            gone(lambda: bearing(mark))
            assert not [name for name in cgroups() if f"-{os.getpid()}-" in name]
            # Another sandbox can be opened, even if no launcher is left.
            again = await tier.open(spec)
            assert (await again.exec(["true"])).exit_code == 0
            await again.close()


async def test_a_stopped_launcher_is_replaced_at_once(tmp_path: Path) -> None:
    # Well before a sandbox that does not answer is given up: callers have a time limit too.
    async with asyncio.timeout(0.8 * START_SECONDS):
        await replace_stopped_launchers(tmp_path)
    assert descendants(os.getpid()) == {}


async def replace_stopped_launchers(tmp_path: Path) -> None:
    with place(tmp_path / "place") as spec:
        async with ProcessTier(host_toolchain()) as tier:
            sandbox = await tier.open(spec)
            stopped = find("launcher")
            os.kill(stopped, signal.SIGSTOP)
            # Running commands are not disturbed; opening and closing do not wait for ever.
            assert (await sandbox.exec(["true"])).exit_code == 0
            await sandbox.close()
            assert stopped not in descendants(os.getpid())
            another = await tier.open(spec)
            os.kill(find("launcher"), signal.SIGSTOP)
            with pytest.raises(SandboxDiedError):
                await tier.open(spec)
            with pytest.raises(SandboxDiedError):
                await another.exec(["sleep", "60"])
            await another.close()
            again = await tier.open(spec)
            assert (await again.exec(["true"])).exit_code == 0
            os.kill(find("launcher"), signal.SIGSTOP)
            await again.close()


def find(victim: str) -> int:
    """Return the process with this role in the test's only sandbox."""
    ours = descendants(os.getpid())
    words = {"launcher": "_launcher", "bubblewrap": "--disable-userns", "exec server": " -B -c "}
    found = [pid for pid, command in ours.items() if words[victim] in command]
    if victim == "bubblewrap":
        found = [pid for pid in found if ours[pid].split(" ")[0].endswith("bwrap")]
    if victim == "exec server":
        found = [pid for pid in found if not ours[pid].split(" ")[0].endswith("bwrap")]
    assert len(found) == 1, ours
    return found[0]


@pytest.mark.parametrize("state", ["running", "frozen"])
@pytest.mark.parametrize("also_launcher", [False, True])
async def test_an_owner_killed_with_9(tmp_path: Path, state: str, also_launcher: bool) -> None:
    root = tmp_path / f"owner-{state}-{also_launcher}-{os.getpid()}"
    with place(root):
        argv = [sys.executable, "-c", OWNER, str(root), state, HUNG]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as owner:
            assert owner.stdout is not None
            assert select.select([owner.stdout], [], [], 120)[0]
            assert owner.stdout.readline() == b"ready\n"
            ours = descendants(owner.pid)
            launcher = next(pid for pid, command in ours.items() if "_launcher" in command)
            if also_launcher:
                os.kill(launcher, signal.SIGSTOP)
            owner.kill()
            if also_launcher:
                os.kill(launcher, signal.SIGKILL)
        if also_launcher:
            async with ProcessTier(host_toolchain()):
                pass  # the next start removes the leftovers that no process was left to remove
        gone(lambda: [pid for pid in ours if pid in processes()])
        gone(lambda: bearing(f"MARK-{root.name}"))
        gone(lambda: [name for name in cgroups() if f"-{owner.pid}-" in name])


async def test_an_owner_killed_with_9_whose_sandbox_ends_before_the_launcher_looks(tmp_path: Path) -> None:
    root = tmp_path / f"late-{os.getpid()}"
    with place(root):
        argv = [sys.executable, "-c", OWNER, str(root), "running", HUNG]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as owner:
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"ready\n"
            ours = descendants(owner.pid)
            launcher = next(pid for pid, command in ours.items() if "_launcher" in command)
            os.kill(launcher, signal.SIGSTOP)
            owner.kill()
        gone(lambda: bearing(f"MARK-{root.name}"))  # its exec server noticed the owner's end
        os.kill(launcher, signal.SIGCONT)
        gone(lambda: [pid for pid in ours if pid in processes()])
        gone(lambda: [name for name in cgroups() if f"-{owner.pid}-" in name])


async def test_failed_or_cancelled_opens_leak_no_process_or_descriptor(tmp_path: Path) -> None:
    """A workspace that cannot be mounted, a request that is too large, cancellation at every moment."""
    descriptors = None
    with place(tmp_path / "place") as spec:
        wrong = MountPlan(target="/workspace", plain=tmp_path / "missing")
        lowers = (tmp_path / ("x" * 200),) * 1000
        long = MountPlan(target="/workspace", lowers=lowers, upper=tmp_path, work=tmp_path)
        async with ProcessTier(host_toolchain()) as tier:
            for number in range(12):
                with pytest.raises(ChargehandError) as caught:
                    await tier.open(SandboxSpec(mounts=wrong))
                assert caught.value.code == "sandbox_unavailable"
                assert "missing" in caught.value.message
                with pytest.raises(ChargehandError):
                    await tier.open(SandboxSpec(mounts=long))
                opening = asyncio.create_task(tier.open(spec))
                await asyncio.sleep(number * 0.003)
                opening.cancel()
                await asyncio.wait([opening])
                if not opening.cancelled():
                    await opening.result().close()
                descriptors = descriptors or len(os.listdir("/proc/self/fd"))
                assert len(os.listdir("/proc/self/fd")) == descriptors
                assert len(descendants(os.getpid())) == 1
            sandbox = await tier.open(spec)
            assert (await sandbox.exec(["echo", "works"])).stdout == b"works\n"
            await sandbox.close()
