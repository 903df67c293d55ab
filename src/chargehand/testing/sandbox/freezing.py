"""The part of the conformance suite about freezing: nothing runs, nothing is lost, and the time does not count."""

from __future__ import annotations

import asyncio
import functools

import pytest

from chargehand.core.errors import SandboxDiedError
from chargehand.sandbox.contract import Sandbox
from chargehand.testing.sandbox.kit import (
    VFORK,
    WRITERS,
    OpenedSandbox,
    SandboxFixtures,
    python,
    running,
    snapshot,
    until,
)


def _all_differ(opened: OpenedSandbox, before: dict[str, tuple[bytes, int]]) -> bool:
    return all(now != before[name] for name, now in snapshot(opened.written).items())


class FreezeContract(SandboxFixtures):
    """A sandbox's promises between `freeze` and `thaw`."""

    async def test_nothing_changes_while_frozen(self, opened: OpenedSandbox) -> None:
        async with running(opened.sandbox, *python(WRITERS)):
            # Two names for each of six processes, and the one of the children.
            await until(lambda: len(list(opened.written.iterdir())) == 13)
            for _ in range(5):
                await opened.sandbox.freeze()
                before = snapshot(opened.written)
                await asyncio.sleep(0.05)
                assert snapshot(opened.written) == before
                await opened.sandbox.thaw()
                # After each thaw all continue: a process that stays stopped would pass the next comparison.
                await until(functools.partial(_all_differ, opened, before))

    async def test_freezing_a_parent_that_waits_in_vfork(self, opened: OpenedSandbox) -> None:
        # The parent stays in state D as long as its child does: waiting until it is stopped would wait forever.
        async with running(opened.sandbox, *python(VFORK)):
            await until(lambda: (opened.written / "ready").exists())
            await asyncio.sleep(0.05)
            await opened.sandbox.freeze()
            await opened.sandbox.thaw()
        assert (await opened.sandbox.exec(["echo", "next"])).stdout == b"next\n"

    async def test_freezing_an_idle_sandbox_and_freezing_twice(self, sandbox: Sandbox) -> None:
        await sandbox.thaw()
        for _ in range(3):
            await sandbox.freeze()
            await sandbox.freeze()
            await sandbox.thaw()
            await sandbox.thaw()
        await asyncio.gather(*(sandbox.freeze() for _ in range(3)))
        await asyncio.gather(*(sandbox.thaw() for _ in range(3)))
        assert (await sandbox.exec(["echo", "next"])).stdout == b"next\n"

    async def test_freezes_are_counted_before_and_after_the_end(self, sandbox: Sandbox) -> None:
        assert sandbox.usage().freezes == ()
        await sandbox.freeze()
        await sandbox.freeze()  # already frozen: not counted again
        await sandbox.thaw()
        before = sandbox.usage()
        assert len(before.freezes) == 1
        assert 0 < before.freezes[0] < 60
        await sandbox.exec(python("held = bytearray(96 << 20)"))
        await sandbox.close()
        after = sandbox.usage()
        assert after.freezes == before.freezes
        counted = "cgroup" in sandbox.limits_in_force["memory"]
        assert after.peak_memory is not None or not counted
        if counted and after.peak_memory is not None and before.peak_memory is not None:
            assert before.peak_memory < after.peak_memory
            assert after.peak_memory > 96 << 20

    async def test_a_program_that_stopped_itself_stays_stopped(self, opened: OpenedSandbox) -> None:
        # It closes the pipes first: the command must end although this process stays.
        program = "import os, signal\nif os.fork() == 0: os.closerange(0, 9); os.kill(os.getpid(), signal.SIGSTOP)"
        list_states = ["sh", "-c", "cut -d' ' -f3 /proc/[0-9]*/stat"]
        await opened.sandbox.exec(python(program))
        async with asyncio.timeout(60):
            while b"T\n" not in (await opened.sandbox.exec(list_states)).stdout:  # noqa: ASYNC110 -- a sandbox tells of no such event
                await asyncio.sleep(0.01)
        await opened.sandbox.freeze()
        await opened.sandbox.thaw()
        assert b"T\n" in (await opened.sandbox.exec(list_states)).stdout

    async def test_frozen_time_does_not_count(self, sandbox: Sandbox) -> None:
        limit = 3.0 * self.pace
        task = asyncio.create_task(sandbox.exec(["sh", "-c", "sleep 0.3; sleep 0.3; echo end"], timeout=limit))
        # Both pauses together are longer than the limit.
        for _ in range(2):
            await asyncio.sleep(0.1)
            await sandbox.freeze()
            await asyncio.sleep(0.55 * limit)
            await sandbox.thaw()
        result = await task
        assert (result.stdout, result.timed_out) == (b"end\n", False)
        assert result.seconds < limit, result

    async def test_a_command_given_while_frozen_runs_after_the_thaw(self, opened: OpenedSandbox) -> None:
        await opened.sandbox.freeze()
        task = asyncio.create_task(opened.sandbox.exec(["sh", "-c", "echo x > file; echo ran"]))
        await asyncio.sleep(0.1)
        assert not task.done()
        assert not (opened.written / "file").exists()
        await opened.sandbox.thaw()
        assert (await task).stdout == b"ran\n"

    async def test_cancelling_a_frozen_command(self, opened: OpenedSandbox) -> None:
        async with running(opened.sandbox, "sleep", "60"):
            await asyncio.sleep(0.05)
            await opened.sandbox.freeze()
        await self.nothing_else_runs(opened)

    async def test_closing_while_frozen(self, opened: OpenedSandbox) -> None:
        before = asyncio.create_task(opened.sandbox.exec(["sleep", "60"]))
        await asyncio.sleep(0.05)
        await opened.sandbox.freeze()
        waiting = asyncio.create_task(opened.sandbox.exec(["echo", "never"]))
        # Once around the loop: the command is handed over, and waits for the thaw.
        await asyncio.sleep(0)
        await opened.sandbox.close()
        for task in (before, waiting):
            with pytest.raises(SandboxDiedError):
                await task

    async def test_killed_while_frozen(self, opened: OpenedSandbox) -> None:
        """A kernel may hold a signal back until the thaw; after that the sandbox does not answer."""
        await opened.sandbox.freeze()
        opened.kill()

        async def use_it() -> None:
            await opened.sandbox.thaw()
            while True:
                await opened.sandbox.exec(["true"])

        with pytest.raises(SandboxDiedError):
            async with asyncio.timeout(60):
                await use_it()
        await opened.sandbox.close()
