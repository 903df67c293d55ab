"""The vm tier keeps the contract; files written inside appear on the host; machines end with their owner."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from _places import descendants, toolchain, workspace
from tests import vm_kit

from chargehand.sandbox.contract import ShowsProcesses
from chargehand.sandbox.vm_tier import VmTier
from chargehand.testing.sandbox.kit import Open, OpenedSandbox
from chargehand.testing.sandbox.suite import SandboxContract

pytestmark = pytest.mark.needs_vm


def qemus(pid: int) -> set[int]:
    """Return the QEMU processes below a process; bubblewrap's own arguments name QEMU too."""
    return {each for each, words in descendants(pid).items() if "qemu-system" in words.split(" ")[0]}


@asynccontextmanager
async def machines(place: Path) -> AsyncIterator[Open]:
    """Open the tier; yield a function that opens machines on empty workspaces below `place`."""
    async with AsyncExitStack() as stack:
        tier = await stack.enter_async_context(VmTier(toolchain(), vm_kit.machine()))
        count = 0

        async def open_one(**limits: int) -> OpenedSandbox:
            nonlocal count
            count += 1
            root = place / f"place-{count}"
            spec = stack.enter_context(workspace(root, **limits))
            before = qemus(os.getpid())
            sandbox = await tier.open(spec)
            stack.push_async_callback(sandbox.close)
            mine = qemus(os.getpid()) - before

            def kill() -> None:
                for pid in mine:
                    os.kill(pid, signal.SIGKILL)

            return OpenedSandbox(sandbox, root / "upper", kill)

        yield open_one
    assert qemus(os.getpid()) == set()


@pytest.mark.soak
class TestVm(SandboxContract):
    pace = 10.0

    @pytest.fixture
    async def open_sandbox(self, tmp_path: Path) -> AsyncIterator[Open]:
        async with machines(tmp_path) as open_one:
            yield open_one


WRITES = """
set -e
mkdir d; echo one > d/a; chmod 755 d/a; chmod 640 d; mv d e; chmod 750 e
ln -s ../../../../etc/passwd link; ln e/a hard
echo gone > gone; rm gone; truncate -s 5000 sparse; touch -d @1000000000 old
"""
MAPPED = """
import mmap
with open("mapped", "w+b") as file:
    file.truncate(8192)
    area = mmap.mmap(file.fileno(), 8192)
    area[4000:4005] = b"hello"
    print("written", flush=True)
    import time; time.sleep(600)
"""


async def test_the_machine_specific_part_of_the_contract(tmp_path: Path) -> None:
    """Test the promises that an exec server alone does not keep: the whole contract takes minutes (`soak`)."""
    suite = TestVm()
    async with machines(tmp_path) as open_one:
        opened = await open_one()
        sandbox, upper = opened.sandbox, opened.written
        python = await sandbox.exec(["python3", "-I", "-c", "pass"])
        suite.pace = 2 + 2 * python.seconds
        assert not isinstance(sandbox, ShowsProcesses)
        await suite.test_id_tier_and_limits_are_declared(sandbox)
        await suite.test_both_streams_come_apart_and_in_pieces(sandbox)
        await suite.test_large_output_is_whole(sandbox)
        await suite.test_stdin(sandbox)
        await suite.test_signals_work_inside(sandbox)
        await suite.test_a_time_limit_kills_the_whole_tree(opened)
        await suite.test_cancelling_kills_the_whole_tree(opened)
        await suite.test_freezing_an_idle_sandbox_and_freezing_twice(sandbox)

        done = await sandbox.exec(["sh", "-c", WRITES])
        assert (done.exit_code, done.stderr) == (0, b"")
        assert os.readlink(upper / "link") == "../../../../etc/passwd"
        assert (upper / "e/a").read_text() == "one\n"
        assert ((upper / "e").stat().st_mode, (upper / "e/a").stat().st_mode) == (0o40750, 0o100755)
        assert (upper / "hard").stat().st_ino == (upper / "e/a").stat().st_ino
        assert (upper / "old").stat().st_mtime == 1_000_000_000
        assert not (upper / "d").exists()
        assert not (upper / "gone").exists()

        async with asyncio.timeout(120):
            seen = asyncio.Event()
            task = asyncio.create_task(
                sandbox.exec(["python3", "-I", "-c", MAPPED], timeout=600, on_output=lambda *_: seen.set())
            )
            await seen.wait()
            await sandbox.freeze()
            assert (upper / "mapped").read_bytes()[4000:4005] == b"hello"
            await sandbox.thaw()
            task.cancel()
            await asyncio.wait([task])
        await suite.test_a_sandbox_killed_from_outside_is_no_result(opened)
