"""The limits part of the conformance suite: the result names an exceeded limit; a command below it succeeds."""

from __future__ import annotations

import asyncio
import contextlib

from chargehand.sandbox.contract import ExecResult, Sandbox
from chargehand.testing.sandbox.kit import Open, SandboxFixtures, python, until

# Processor time, not wall-clock time: it is the same on a busy machine.
_BURN = "import time\nwhile time.process_time() < {seconds}: pass\nprint('done')"
_HOLD = "held = bytearray(b'x' * ({megabytes} << 20))\nprint('done')"
_FORKS = (
    "import os, sys, time\n"
    "for _ in range({count}):\n    if os.fork() == 0:\n        time.sleep(100)\n"
    "print('done', flush=True)\nos.kill(-1, 9)"
)
_BOMB = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
_STUCK = "import threading\nwhile True: threading.Thread(target=threading.Event().wait).start()"
_WRITE = "head -c {bytes} /dev/zero > file && rm file && echo done"
_SPEAK = "head -c {bytes} /dev/zero; echo done >&2"


class LimitContract(SandboxFixtures):
    """A sandbox's promises if a limit is exceeded, and if it is not."""

    bomb_seconds = 20.0
    """The time within which a fork bomb is detected; if refused forks are not counted, it lasts that long."""

    async def test_wall_time(self, sandbox: Sandbox) -> None:
        """A command killed at its time limit names that limit."""
        result = await sandbox.exec(["sleep", "60"], timeout=0.2)
        assert (result.limit, result.timed_out, result.exit_code) == ("wall_time", True, 137)
        assert (await sandbox.exec(["true"])).limit is None

    async def test_processor_time(self, open_sandbox: Open) -> None:
        """The limit counts everything in the sandbox, over all its commands."""
        sandbox = (await open_sandbox(cpu_seconds=2)).sandbox
        below = await sandbox.exec(python(_BURN.format(seconds=0.3)))
        assert (below.exit_code, below.limit) == (0, None)
        over = await sandbox.exec(["sh", "-c", "while :; do :; done & while :; do :; done"])
        assert (over.limit, over.exit_code, over.timed_out) == ("cpu_time", 137, False)
        used = sandbox.usage().cpu_seconds
        assert used is not None
        assert used >= 2
        # The time is the sandbox's, and used up: even a command that needs no time is ended.
        again = await sandbox.exec(["sleep", "60"])
        assert again.limit == "cpu_time"

    async def test_output(self, open_sandbox: Open) -> None:
        """A command that writes without end is killed, however little of its output is kept."""
        sandbox = (await open_sandbox(output_mb=1)).sandbox
        # The six are the five of `done` and one more, to stay below the limit.
        below = await sandbox.exec(["sh", "-c", _SPEAK.format(bytes=(1 << 20) - 6)], output_limit=100)
        assert (below.exit_code, below.limit, below.stderr) == (0, None, b"done\n")
        assert below.written == (1 << 20) - 1
        over = await sandbox.exec(["sh", "-c", "while :; do echo y; done"], output_limit=100)
        assert (over.limit, over.exit_code, over.truncated, over.timed_out) == ("output", 137, True, False)
        assert over.written > 1 << 20
        assert (await sandbox.exec(["echo", "next"])).stdout == b"next\n"

    async def test_memory(self, open_sandbox: Open) -> None:
        """Memory below the limit is available; above it the command dies, by name if the kernel counts kills."""
        sandbox = (await open_sandbox(memory_mb=160)).sandbox
        below = await sandbox.exec(python(_HOLD.format(megabytes=64)))
        assert (below.stdout, below.limit) == (b"done\n", None)
        over = await sandbox.exec(python(_HOLD.format(megabytes=400)))
        assert over.exit_code != 0
        assert b"done" not in over.stdout
        # Without a control group the kernel's kills are not counted, and a failure has many reasons.
        if "cgroup" in sandbox.limits_in_force["memory"]:
            assert over.limit == "memory"
        assert (await sandbox.exec(["echo", "next"])).stdout == b"next\n"

    async def test_processes(self, open_sandbox: Open) -> None:
        """A fork over the limit is refused; the command names the limit if the kernel counts refusals."""
        sandbox = (await open_sandbox(processes=40)).sandbox
        below = await sandbox.exec(python(_FORKS.format(count=15)))
        assert b"done" in below.stdout
        over = await sandbox.exec(python(_FORKS.format(count=80)))
        assert over.exit_code != 0
        assert b"done" not in over.stdout
        if "cgroup" in sandbox.limits_in_force["processes"]:
            assert over.limit == "processes"
        await sandbox.exec(["sh", "-c", "kill -9 -1"])

    async def test_a_fork_bomb(self, open_sandbox: Open) -> None:
        """A program stuck after taking every process ends by that limit, not by its time; the sandbox stays."""
        sandbox = (await open_sandbox(processes=40)).sandbox
        # The host does not see inside a virtual machine.
        seen = sandbox.tier != "vm"
        bomb = await _run_until_known(sandbox, _BOMB, seconds=self.bomb_seconds)
        assert (bomb.limit, bomb.timed_out) == (("processes", False) if seen else ("wall_time", True))
        assert bomb.exit_code == 137
        stuck = await _run_until_known(sandbox, _STUCK, seconds=6)
        assert (stuck.limit, stuck.exit_code) == ("processes" if seen else "wall_time", 137)
        assert (await sandbox.exec(["echo", "next"])).stdout == b"next\n"

    async def test_the_size_of_a_file(self, open_sandbox: Open) -> None:
        """A file of the limit's size can be written, a larger one cannot."""
        sandbox = (await open_sandbox(file_mb=1)).sandbox
        below = await sandbox.exec(["sh", "-c", _WRITE.format(bytes=1 << 20)])
        assert (below.stdout, below.limit) == (b"done\n", None)
        over = await sandbox.exec(["head", "-c", str(2 << 20), "/dev/zero"], output_limit=10)
        assert over.limit is None  # a pipe is not a file
        over = await sandbox.exec(["sh", "-c", f"exec head -c {2 << 20} /dev/zero > file"])
        assert (over.limit, over.exit_code) == ("file_size", 153)

    async def test_open_files(self, open_sandbox: Open) -> None:
        """A process cannot open more files than the limit."""
        sandbox = (await open_sandbox(open_files=64)).sandbox
        script = "files = [open('/dev/null') for _ in range({})]\nprint('done')"
        assert (await sandbox.exec(python(script.format(40)))).stdout == b"done\n"
        over = await sandbox.exec(python(script.format(80)))
        assert over.exit_code == 1
        assert b"Too many open files" in over.stderr

    async def test_temporary_files(self, open_sandbox: Open) -> None:
        """/tmp and the home directory are each bounded."""
        sandbox = (await open_sandbox(tmp_mb=4)).sandbox
        for place in ("/tmp", "$HOME"):
            below = await sandbox.exec(["sh", "-c", f"head -c {3 << 20} /dev/zero > {place}/f && rm {place}/f"])
            assert below.exit_code == 0, below.stderr
            over = await sandbox.exec(
                ["sh", "-c", f"head -c {5 << 20} /dev/zero > {place}/f; a=$?; rm {place}/f; exit $a"]
            )
            assert over.exit_code != 0
            assert b"No space left" in over.stderr

    async def test_the_share_of_processor_time(self, open_sandbox: Open) -> None:
        """The share holds if control groups enforce it; otherwise `limits_in_force` says that it does not."""
        sandbox = (await open_sandbox(cpu_percent=20)).sandbox
        result = await sandbox.exec(python(_BURN.format(seconds=0.4)))
        assert result.stdout == b"done\n"
        if sandbox.limits_in_force["cpu_share"].startswith("20 %"):
            assert result.seconds > 1.0
        else:
            assert sandbox.limits_in_force["cpu_share"].startswith("not limited")

    async def test_usage_is_counted(self, open_sandbox: Open) -> None:
        """Usage is counted; uncounted values are `None`, never 0."""
        sandbox = (await open_sandbox()).sandbox
        await sandbox.exec(python(_BURN.format(seconds=0.3)))
        await sandbox.exec(["sh", "-c", "head -c 3000000 /dev/zero > kept"])
        # If /proc is sampled, processes of a short command may live between two readings.
        running = asyncio.create_task(sandbox.exec(["sh", "-c", "sleep 60 & sleep 60 & wait"]))

        def seen() -> bool:
            most = sandbox.usage().peak_processes
            return most is None or most >= 4

        await until(seen)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await sandbox.exec(["sh", "-c", "head -c 5000 /dev/zero; head -c 11 /dev/zero >&2"], output_limit=10)
        await sandbox.close()
        used = sandbox.usage()
        assert used.cpu_seconds is None or used.cpu_seconds >= 0.3
        assert used.output == 5011 + len("done\n")
        assert used.disk_written is None or used.disk_written >= 3_000_000
        assert used.peak_processes is None or used.peak_processes >= 4
        assert used.peak_memory is None or used.peak_memory > 1 << 20

    async def test_each_limit_names_its_mechanism(self, sandbox: Sandbox) -> None:
        """`limits_in_force` names the mechanism of each limit."""
        for limit in ("memory", "processes", "open_files", "file_size", "output", "wall_time", "tmp"):
            assert sandbox.limits_in_force[limit], limit


async def _run_until_known(sandbox: Sandbox, program: str, *, seconds: float) -> ExecResult:
    """Run a program that takes all processes; give it more time if a busy machine slowed it down."""
    result = await sandbox.exec(python(program), timeout=seconds)
    if result.limit == "processes" or sandbox.tier == "vm":
        return result
    return await sandbox.exec(python(program), timeout=10 * seconds)
