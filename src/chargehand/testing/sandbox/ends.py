"""The part of the conformance suite about ends: time limits, cancelling, death, closing, and limits that bind."""

from __future__ import annotations

import asyncio

import pytest

from chargehand.core.errors import SandboxDiedError
from chargehand.sandbox.contract import Sandbox
from chargehand.testing.sandbox.kit import (
    DAEMON,
    Open,
    OpenedSandbox,
    SandboxFixtures,
    python,
    running,
    snapshot,
    until,
)


class EndContract(SandboxFixtures):
    """A sandbox's promises for ends of all kinds, and for several sandboxes."""

    async def test_a_time_limit_kills_the_whole_tree(self, opened: OpenedSandbox) -> None:
        sandbox = opened.sandbox
        script = f'python3 -I -c "{DAEMON.replace(chr(34), chr(39))}" beat; sleep 60 & sleep 60'
        for limit in (self.pace, 4 * self.pace, 16 * self.pace):  # until the daemon had time to begin
            result = await sandbox.exec(["sh", "-c", script], timeout=limit)
            assert (result.exit_code, result.timed_out) == (137, True)
            assert result.seconds >= limit
            if (opened.written / "beat").exists():
                break
        assert (opened.written / "beat").stat().st_size > 0
        await self.nothing_else_runs(opened)

    async def test_zero_negative_and_infinite_time_limits(self, sandbox: Sandbox) -> None:
        assert (await sandbox.exec(["sleep", "60"], timeout=0)).timed_out
        assert (await sandbox.exec(["sleep", "60"], timeout=-1)).timed_out
        assert (await sandbox.exec(["true"], timeout=float("inf"))).exit_code == 0
        assert (await sandbox.exec(["true"], timeout=10.0**12)).exit_code == 0

    async def test_a_program_that_ignores_signals_ends_at_its_time_limit(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec(["sh", "-c", "trap '' TERM INT HUP; while :; do :; done"], timeout=0.3)
        assert result.timed_out

    async def test_cancelling_kills_the_whole_tree(self, opened: OpenedSandbox) -> None:
        script = f'python3 -I -c "{DAEMON.replace(chr(34), chr(39))}" beat; sleep 60 & sleep 60'
        async with running(opened.sandbox, "sh", "-c", script):
            await until(lambda: (opened.written / "beat").exists())
        await self.nothing_else_runs(opened)

    async def test_cancelling_at_any_moment_leaves_a_usable_sandbox(self, sandbox: Sandbox) -> None:
        # Steps of a fifth of a millisecond: it falls before the start, into the run, and after the end.
        for step in range(25):
            task = asyncio.create_task(sandbox.exec(["sh", "-c", "echo out"]))
            for _ in range(step):
                await asyncio.sleep(0.0002)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                assert task.result().stdout == b"out\n"
            assert (await sandbox.exec(["echo", "next"])).stdout == b"next\n"

    async def test_cancelling_twice(self, sandbox: Sandbox) -> None:
        task = asyncio.create_task(sandbox.exec(["sleep", "60"]))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert (await sandbox.exec(["echo", "next"])).stdout == b"next\n"

    async def test_a_daemon_does_not_hold_the_reply_and_ends_with_the_sandbox(self, opened: OpenedSandbox) -> None:
        # The daemon holds the pipe and never stops writing: waiting for its end would wait forever.
        result = await opened.sandbox.exec(["sh", "-c", "(while :; do echo noise; done) & echo done"])
        assert result.exit_code == 0
        assert result.stdout.startswith((b"done\n", b"noise\n"))
        result = await opened.sandbox.exec(python(DAEMON, "beat"))
        assert result.exit_code == 0
        await until(lambda: (opened.written / "beat").exists())
        assert (await opened.sandbox.exec(["echo", "next"])).stdout == b"next\n"
        await opened.sandbox.close()
        before = snapshot(opened.written)
        await asyncio.sleep(0.1)
        assert snapshot(opened.written) == before

    async def test_a_sandbox_killed_from_outside_is_no_result(self, opened: OpenedSandbox) -> None:
        sandbox = opened.sandbox
        task = asyncio.create_task(sandbox.exec(["sleep", "60"]))
        await asyncio.sleep(0.05)
        opened.kill()
        with pytest.raises(SandboxDiedError) as caught:
            await task
        assert (caught.value.code, caught.value.exit_code) == ("sandbox_died", 6)
        assert caught.value.hint
        for method in (sandbox.freeze, lambda: sandbox.exec(["true"])):
            with pytest.raises(SandboxDiedError):
                await method()
        await sandbox.close()

    async def test_close_is_idempotent_and_final(self, sandbox: Sandbox) -> None:
        await asyncio.gather(sandbox.close(), sandbox.close())
        await sandbox.close()
        with pytest.raises(SandboxDiedError):
            await sandbox.exec(["true"])
        with pytest.raises(SandboxDiedError):
            await sandbox.freeze()

    async def test_two_sandboxes_do_not_see_each_other(self, open_sandbox: Open) -> None:
        one, two = await open_sandbox(), await open_sandbox()
        assert one.sandbox.id != two.sandbox.id
        async with running(one.sandbox, "sh", "-c", "echo 1 | tee f /tmp/f ~/f /dev/shm/f; exec sleep 61"):
            await until(lambda: (one.written / "f").exists())
            # All that two sandboxes could share: files, temporary places, processes, the reach of a signal.
            script = "ls -A . /tmp ~ /dev/shm; cat /proc/[0-9]*/cmdline | tr '\\0' ' '; kill -9 -1; true"
            seen = await two.sandbox.exec(["sh", "-c", script])
            assert b"f\n" not in seen.stdout.replace(b"/", b"")
            assert b"sleep 61" not in seen.stdout
            alive = asyncio.create_task(one.sandbox.exec(["echo", "later"]))
            await asyncio.sleep(0.05)
            assert not alive.done()
            alive.cancel()
            await asyncio.wait([alive])

    async def test_ten_open_at_once(self, open_sandbox: Open) -> None:
        opened = await asyncio.gather(*(open_sandbox() for _ in range(10)))
        results = await asyncio.gather(
            *(each.sandbox.exec(["sh", "-c", f"echo {n} > n; cat n"]) for n, each in enumerate(opened))
        )
        assert [result.stdout for result in results] == [b"%d\n" % n for n in range(10)]
        await asyncio.gather(*(each.sandbox.close() for each in opened))

    async def test_a_seat_of_processes_is_a_limit_of_each_sandbox(self, open_sandbox: Open) -> None:
        """One sandbox at its limit leaves another its full limit."""
        forks = (
            "import os, sys, time\nn = 0\n"
            "try:\n    while n < 100:\n        if os.fork() == 0:\n            time.sleep(100)\n        n += 1\n"
            "except OSError:\n    pass\nprint(n)"
        )
        full, other = await open_sandbox(processes=40), await open_sandbox(processes=40)
        # `full` stays full meanwhile. Both have one user, by whom the kernel counts without a control group.
        for opened in (full, other):
            result = await opened.sandbox.exec(python(forks))
            assert 20 <= int(result.stdout) < 40
        # At its limit it may not even start a shell.
        assert (await full.sandbox.exec(["sh", "-c", "kill -9 -1"])).exit_code in (0, 126, 137)

    async def test_memory_is_limited(self, open_sandbox: Open) -> None:
        opened = await open_sandbox(memory_mb=128)
        hog = "b = []\nfor _ in range(64): b.append(bytearray(b'x' * (16 << 20)))\nprint('got it')"
        result = await opened.sandbox.exec(python(hog))
        assert result.exit_code != 0
        assert b"got it" not in result.stdout
        assert (await opened.sandbox.exec(["echo", "next"])).stdout == b"next\n"
