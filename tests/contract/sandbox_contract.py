"""What every sandbox tier must keep: inherit from `SandboxContract` and give the fixture `open_sandbox`.

`open_sandbox(**limits)` opens a sandbox on a fresh, empty workspace and returns an `Opened`. The tests use no more
than `sh`, `cat`, `env` and `python3` inside.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from chargehand.core import SandboxDiedError, UsageError
from chargehand.sandbox import WORKSPACE, ExecResult, Sandbox

KNOWN_VARIABLES = {
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR"),
    *("LD_LIBRARY_PATH", "PYTHONDONTWRITEBYTECODE"),
}


@dataclass(frozen=True)
class Opened:
    """A sandbox; where the host sees new files of its workspace; how to kill it from outside."""

    sandbox: Sandbox
    written: Path
    kill: Callable[[], None]


Open = Callable[..., Awaitable[Opened]]

DAEMON = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
os.closerange(0, 64)
while True:
    time.sleep(0.01)
    with open(sys.argv[1], "a") as file:
        file.write("x")
"""

WRITERS = """
import os, threading
def write(name):
    fd = os.open(name, os.O_CREAT | os.O_WRONLY)
    count = 0
    while True:
        count += 1
        os.pwrite(fd, b"%020d" % count, 0)
for number in range(6):
    if os.fork() == 0:
        threading.Thread(target=write, args=(f"thread-{number}",)).start()
        write(f"process-{number}")
def breed():
    # children are born and die all the time, each writes once
    while True:
        pid = os.fork()
        if pid == 0:
            with open("bred", "w") as file:
                file.write(str(os.getpid()))
            os._exit(0)
        os.waitpid(pid, 0)
breed()
"""

VFORK = """
import ctypes, sys
libc = ctypes.CDLL(None)
stack = ctypes.create_string_buffer(1 << 16)
top = (ctypes.addressof(stack) + len(stack)) & ~0xFFFF
open("ready", "w").close()
CLONE_VM, CLONE_VFORK, SIGCHLD = 0x100, 0x4000, 17
libc.clone(ctypes.cast(libc.sleep, ctypes.c_void_p), ctypes.c_void_p(top + (1 << 15)),
           CLONE_VM | CLONE_VFORK | SIGCHLD, ctypes.c_void_p(1000))
"""


async def until(condition: Callable[[], bool], *, seconds: float = 20.0) -> None:
    """Wait for something that must come to pass."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def snapshot(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Return the content and the change time of every file."""
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(directory.iterdir())}


@asynccontextmanager
async def running(sandbox: Sandbox, *argv: str, **options: object) -> AsyncIterator[asyncio.Task[ExecResult]]:
    """Run a command beside the block and cancel it afterwards."""
    task = asyncio.create_task(sandbox.exec(argv, **options))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()


def python(program: str, *arguments: str) -> list[str]:
    return ["python3", "-I", "-c", program, *arguments]


class SandboxContract:
    """The promises of `chargehand.sandbox.Sandbox`, one test each."""

    @pytest.fixture
    async def open_sandbox(self) -> Open:
        raise NotImplementedError("a tier gives the factory")

    @pytest.fixture
    async def opened(self, open_sandbox: Open) -> Opened:
        return await open_sandbox()

    @pytest.fixture
    async def sandbox(self, opened: Opened) -> Sandbox:
        return opened.sandbox

    async def test_it_says_what_it_is(self, sandbox: Sandbox) -> None:
        assert sandbox.id
        assert sandbox.tier
        assert {"memory", "processes", "tmp", "freeze"} <= set(sandbox.limits_in_force)

    @pytest.mark.parametrize(
        ("script", "code"),
        [
            ("exit 0", 0),
            ("exit 3", 3),
            ("exit 255", 255),
            ("kill -9 $$", 137),
            ("kill -15 $$", 143),
            ("kill -2 $$", 130),
            ("kill -1 $$", 129),
        ],
    )
    async def test_exit_codes_are_those_of_a_shell(self, sandbox: Sandbox, script: str, code: int) -> None:
        result = await sandbox.exec(["sh", "-c", script])
        assert (result.exit_code, result.timed_out, result.truncated) == (code, False, False)

    async def test_an_unknown_program_is_127(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec(["no-such-program"])
        assert result.exit_code == 127
        assert b"no-such-program: " in result.stderr
        assert (await sandbox.exec([f"{WORKSPACE}/no/such"])).exit_code == 127
        assert (await sandbox.exec([""])).exit_code == 127

    async def test_what_cannot_be_executed_is_126(self, sandbox: Sandbox) -> None:
        await sandbox.exec(["sh", "-c", "echo x > plain; printf '\\001\\002' > odd; chmod +x odd"])
        for program in ("./plain", "./odd", WORKSPACE):
            result = await sandbox.exec([program])
            assert result.exit_code == 126, program
            assert result.stderr.startswith(program.encode())

    async def test_a_missing_working_directory_is_named(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec(["true"], cwd=f"{WORKSPACE}/gone")
        assert result.exit_code == 126
        assert b"/gone: No such file or directory" in result.stderr
        await sandbox.exec(["sh", "-c", "echo > file; mkdir shut; chmod 0 shut"])
        assert (await sandbox.exec(["true"], cwd=f"{WORKSPACE}/file")).exit_code == 126
        assert (await sandbox.exec(["true"], cwd=f"{WORKSPACE}/shut")).exit_code == 126

    async def test_commands_run_in_the_workspace_or_where_they_are_told(self, sandbox: Sandbox) -> None:
        assert (await sandbox.exec(["pwd"])).stdout == f"{WORKSPACE}\n".encode()
        assert (await sandbox.exec(["pwd"], cwd="/tmp")).stdout == b"/tmp\n"

    async def test_both_streams_come_apart_and_in_pieces(self, sandbox: Sandbox) -> None:
        pieces: list[tuple[str, bytes]] = []
        script = "echo one; echo two >&2; sleep 0.05; echo three; echo four >&2"
        result = await sandbox.exec(["sh", "-c", script], on_output=lambda *piece: pieces.append(piece))
        assert (result.stdout, result.stderr) == (b"one\nthree\n", b"two\nfour\n")
        assert b"".join(data for stream, data in pieces if stream == "stdout") == result.stdout
        assert b"".join(data for stream, data in pieces if stream == "stderr") == result.stderr
        assert len(pieces) > 2

    async def test_output_comes_while_the_command_runs(self, sandbox: Sandbox) -> None:
        seen = asyncio.Event()
        async with running(sandbox, "sh", "-c", "echo here; sleep 60", on_output=lambda *_: seen.set()) as task:
            await asyncio.wait_for(seen.wait(), 20)
            assert not task.done()

    async def test_a_failing_listener_ends_the_command_and_nothing_else(self, sandbox: Sandbox) -> None:
        def fail(*_: object) -> None:
            raise LookupError("the listener's own fault")

        with pytest.raises(LookupError, match="own fault"):
            await sandbox.exec(["sh", "-c", "echo x; echo y >&2; sleep 60"], on_output=fail)
        assert (await sandbox.exec(["echo", "next"])).stdout == b"next\n"

    async def test_stdin(self, sandbox: Sandbox) -> None:
        assert (await sandbox.exec(["cat"])).stdout == b""
        assert (await sandbox.exec(["cat"], stdin=b"line\n\0\xff")).stdout == b"line\n\0\xff"
        large = os.urandom(1 << 20)
        result = await sandbox.exec(["cat"], stdin=large, output_limit=4 << 20)
        assert result.stdout == large

    @pytest.mark.parametrize("script", ["exit 4", "exec 0<&-; exit 4", "head -c 1 >/dev/null; exit 4"])
    async def test_stdin_that_nobody_reads(self, sandbox: Sandbox, script: str) -> None:
        for _ in range(3):
            result = await sandbox.exec(["sh", "-c", script], stdin=b"x" * (1 << 20))
            assert (result.exit_code, result.stderr) == (4, b"")
        assert (await sandbox.exec(["cat"], stdin=b"next")).stdout == b"next"

    async def test_stdin_that_is_never_read_does_not_outlive_a_time_limit(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec(["sleep", "60"], stdin=b"x" * (1 << 20), timeout=0.2)
        assert result.timed_out
        assert (await sandbox.exec(["cat"], stdin=b"next")).stdout == b"next"

    async def test_large_output_is_whole(self, sandbox: Sandbox) -> None:
        program = "import sys; sys.stdout.write('o' * 1000000); sys.stderr.write('e' * 1000000)"
        result = await sandbox.exec(python(program))
        assert (result.stdout, result.stderr) == (b"o" * 1_000_000, b"e" * 1_000_000)
        assert not result.truncated

    async def test_output_over_the_limit_keeps_head_and_tail(self, sandbox: Sandbox) -> None:
        program = "import sys; sys.stdout.write('HEAD' + 'x' * 3000000 + 'TAIL'); sys.stderr.write('short')"
        result = await sandbox.exec(python(program), output_limit=10_000)
        assert result.truncated
        assert result.stdout.startswith(b"HEADxxx")
        assert result.stdout.endswith(b"xxxTAIL")
        assert b"[... 2990008 bytes left out ...]" in result.stdout
        assert 10_000 <= len(result.stdout) < 10_100
        assert result.stderr == b"short"

    async def test_output_of_exactly_the_limit_is_whole(self, sandbox: Sandbox) -> None:
        for size, truncated in ((1000, False), (1001, True)):
            result = await sandbox.exec(python(f"print('x' * {size}, end='')"), output_limit=1000)
            assert (result.truncated, len(result.stdout) == size) == (truncated, not truncated)
        assert (await sandbox.exec(["echo", "x"], output_limit=0)).truncated

    async def test_endless_output_is_bounded(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec(["sh", "-c", "while :; do echo y; done"], timeout=0.5, output_limit=1000)
        assert (result.exit_code, result.timed_out, result.truncated) == (137, True, True)
        assert len(result.stdout) < 1100

    async def test_the_environment_is_what_was_asked_for(
        self, open_sandbox: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOST_SECRET", "do-not-show")
        sandbox = (await open_sandbox()).sandbox
        result = await sandbox.exec(["env"], environment={"GIVEN": "a=b\nc", "EMPTY": "", "LANG": "C"})
        assert b"do-not-show" not in result.stdout
        assert b"GIVEN=a=b\nc\n" in result.stdout
        assert b"EMPTY=\n" in result.stdout
        assert b"LANG=C\n" in result.stdout
        names = {line.partition(b"=")[0].decode() for line in (await sandbox.exec(["env"])).stdout.splitlines()}
        assert names <= KNOWN_VARIABLES
        home = await sandbox.exec(["sh", "-c", 'cd "$HOME" && echo x > f && cat f && echo y > "$TMPDIR/f"'])
        assert (home.exit_code, home.stdout) == (0, b"x\n")

    async def test_a_time_limit_kills_the_whole_tree(self, opened: Opened) -> None:
        sandbox = opened.sandbox
        script = f'python3 -I -c "{DAEMON.replace(chr(34), chr(39))}" beat; sleep 60 & sleep 60'
        result = await sandbox.exec(["sh", "-c", script], timeout=1.0)
        assert (result.exit_code, result.timed_out) == (137, True)
        assert result.seconds >= 1.0
        assert (opened.written / "beat").stat().st_size > 0
        await self._nothing_else_runs(opened)

    async def test_a_time_limit_of_nothing(self, sandbox: Sandbox) -> None:
        assert (await sandbox.exec(["sleep", "60"], timeout=0)).timed_out
        assert (await sandbox.exec(["sleep", "60"], timeout=-1)).timed_out
        assert (await sandbox.exec(["true"], timeout=float("inf"))).exit_code == 0
        assert (await sandbox.exec(["true"], timeout=10.0**12)).exit_code == 0

    async def test_a_program_that_ignores_signals_ends_at_its_time_limit(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec(["sh", "-c", "trap '' TERM INT HUP; while :; do :; done"], timeout=0.3)
        assert result.timed_out

    async def test_cancelling_kills_the_whole_tree(self, opened: Opened) -> None:
        script = f'python3 -I -c "{DAEMON.replace(chr(34), chr(39))}" beat; sleep 60 & sleep 60'
        async with running(opened.sandbox, "sh", "-c", script):
            await until(lambda: (opened.written / "beat").exists())
        await self._nothing_else_runs(opened)

    async def test_cancelling_at_any_moment_leaves_a_usable_sandbox(self, sandbox: Sandbox) -> None:
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

    async def _nothing_else_runs(self, opened: Opened) -> None:
        """The next command works, finds itself alone, and nobody writes any more."""
        count = (
            "import os; print(sorted(p for p in os.listdir('/proc') if p.isdigit()) == ['1', str(os.getpid())])"
        )
        assert (await opened.sandbox.exec(python(count))).stdout == b"True\n"
        before = snapshot(opened.written)
        await asyncio.sleep(0.1)
        assert snapshot(opened.written) == before

    async def test_a_daemon_does_not_hold_the_reply_and_ends_with_the_sandbox(self, opened: Opened) -> None:
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

    async def test_nothing_changes_while_frozen(self, opened: Opened) -> None:
        async with running(opened.sandbox, *python(WRITERS)):
            await until(lambda: len(list(opened.written.iterdir())) == 13)
            for _ in range(5):
                await opened.sandbox.freeze()
                before = snapshot(opened.written)
                await asyncio.sleep(0.05)
                assert snapshot(opened.written) == before
                await opened.sandbox.thaw()
                await until(
                    lambda before=before: all(
                        now != before[name] for name, now in snapshot(opened.written).items()
                    )
                )

    async def test_freezing_a_parent_that_waits_in_vfork(self, opened: Opened) -> None:
        async with running(opened.sandbox, *python(VFORK)):
            await until(lambda: (opened.written / "ready").exists())
            await asyncio.sleep(0.05)
            await opened.sandbox.freeze()
            await opened.sandbox.thaw()
        assert (await opened.sandbox.exec(["echo", "next"])).stdout == b"next\n"

    async def test_freezing_what_does_nothing_and_twice(self, sandbox: Sandbox) -> None:
        await sandbox.thaw()
        for _ in range(3):
            await sandbox.freeze()
            await sandbox.freeze()
            await sandbox.thaw()
            await sandbox.thaw()
        await asyncio.gather(*(sandbox.freeze() for _ in range(3)))
        await asyncio.gather(*(sandbox.thaw() for _ in range(3)))
        assert (await sandbox.exec(["echo", "next"])).stdout == b"next\n"

    async def test_what_it_took_is_known_while_it_lives_and_after(self, sandbox: Sandbox) -> None:
        assert sandbox.usage().freezes == ()
        await sandbox.freeze()
        await sandbox.freeze()  # stands already: no second one
        await sandbox.thaw()
        before = sandbox.usage()
        assert len(before.freezes) == 1
        assert 0 < before.freezes[0] < 10
        await sandbox.exec(python("held = bytearray(96 << 20)"))
        await sandbox.close()
        after = sandbox.usage()
        assert after.freezes == before.freezes
        counted = "cgroup" in sandbox.limits_in_force["memory"]
        assert (after.peak_memory is not None) == counted
        if after.peak_memory is not None and before.peak_memory is not None:
            assert before.peak_memory < after.peak_memory
            assert after.peak_memory > 96 << 20

    async def test_a_program_that_stopped_itself_stays_stopped(self, opened: Opened) -> None:
        program = "import os, signal\nif os.fork() == 0: os.closerange(0, 9); os.kill(os.getpid(), signal.SIGSTOP)"
        look = ["sh", "-c", "cut -d' ' -f3 /proc/[0-9]*/stat"]
        await opened.sandbox.exec(python(program))
        async with asyncio.timeout(20):
            while b"T\n" not in (await opened.sandbox.exec(look)).stdout:
                await asyncio.sleep(0.01)
        await opened.sandbox.freeze()
        await opened.sandbox.thaw()
        assert b"T\n" in (await opened.sandbox.exec(look)).stdout

    async def test_frozen_time_does_not_count(self, sandbox: Sandbox) -> None:
        task = asyncio.create_task(sandbox.exec(["sh", "-c", "sleep 0.3; sleep 0.3; echo end"], timeout=1.5))
        for _ in range(2):
            await asyncio.sleep(0.1)
            await sandbox.freeze()
            await asyncio.sleep(1.5)
            await sandbox.thaw()
        result = await task
        assert (result.stdout, result.timed_out) == (b"end\n", False)
        assert result.seconds < 1.5, result

    async def test_a_command_given_while_frozen_runs_after_the_thaw(self, opened: Opened) -> None:
        await opened.sandbox.freeze()
        task = asyncio.create_task(opened.sandbox.exec(["sh", "-c", "echo x > file; echo ran"]))
        await asyncio.sleep(0.1)
        assert not task.done()
        assert not (opened.written / "file").exists()
        await opened.sandbox.thaw()
        assert (await task).stdout == b"ran\n"

    async def test_cancelling_a_frozen_command(self, opened: Opened) -> None:
        async with running(opened.sandbox, "sleep", "60"):
            await asyncio.sleep(0.05)
            await opened.sandbox.freeze()
        await self._nothing_else_runs(opened)

    async def test_closing_while_frozen(self, opened: Opened) -> None:
        before = asyncio.create_task(opened.sandbox.exec(["sleep", "60"]))
        await asyncio.sleep(0.05)
        await opened.sandbox.freeze()
        waiting = asyncio.create_task(opened.sandbox.exec(["echo", "never"]))
        await asyncio.sleep(0)
        await opened.sandbox.close()
        for task in (before, waiting):
            with pytest.raises(SandboxDiedError):
                await task

    async def test_a_sandbox_killed_from_outside_is_no_result(self, opened: Opened) -> None:
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

    async def test_killed_while_frozen(self, opened: Opened) -> None:
        """A kernel may hold a signal back until the thaw; after that nothing answers."""
        await opened.sandbox.freeze()
        opened.kill()

        async def use_it() -> None:
            await opened.sandbox.thaw()
            while True:
                await opened.sandbox.exec(["true"])

        with pytest.raises(SandboxDiedError):
            await asyncio.wait_for(use_it(), 20)
        await opened.sandbox.close()

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

    async def test_commands_run_one_after_another(self, sandbox: Sandbox) -> None:
        script = "mkdir busy && sleep 0.03 && rmdir busy && echo alone"
        results = await asyncio.gather(*(sandbox.exec(["sh", "-c", script]) for _ in range(5)))
        assert [result.stdout for result in results] == [b"alone\n"] * 5

    @pytest.mark.parametrize(
        "word",
        ["", " ", "a b", "*", "--", "'\"`$(x)", "ä€😀", "\udcff\udc80", "a\nb", "\x1b[31m", "{sock}", "%s"],
    )
    async def test_odd_words_arrive_as_they_are(self, sandbox: Sandbox, word: str) -> None:
        program = "import os, sys; os.write(1, b'|'.join(map(os.fsencode, sys.argv[1:])))"
        result = await sandbox.exec(python(program, word, word), environment={"LC_ALL": "C.UTF-8"})
        assert result.stdout == os.fsencode(word) + b"|" + os.fsencode(word)

    async def test_odd_directories_and_variables(self, sandbox: Sandbox) -> None:
        name = "d\udcff\nx"
        await sandbox.exec(["mkdir", name])
        result = await sandbox.exec(
            ["sh", "-c", 'pwd; echo "$ODD"'], cwd=f"{WORKSPACE}/{name}", environment={"ODD": name}
        )
        assert result.stdout == os.fsencode(f"{WORKSPACE}/{name}\n{name}\n")

    async def test_words_that_are_too_long_are_126(self, sandbox: Sandbox) -> None:
        for argv in (["true", "x" * (1 << 20)], ["true", *["x" * 1000] * 5000]):
            result = await sandbox.exec(argv)
            assert result.exit_code == 126
            assert b"too long" in result.stderr
        assert (await sandbox.exec(["echo", "next"])).stdout == b"next\n"

    async def test_what_no_kernel_takes_is_a_usage_error(self, sandbox: Sandbox) -> None:
        for wrong in (
            sandbox.exec([]),
            sandbox.exec(["a\0b"]),
            sandbox.exec(["echo", "a\0b"]),
            sandbox.exec(["echo", "\ud800"]),
            sandbox.exec(["true"], cwd="/a\0b"),
            sandbox.exec(["true"], environment={"A": "a\0b"}),
            sandbox.exec(["true"], environment={"A=B": "c"}),
            sandbox.exec(["true"], environment={"": "c"}),
            sandbox.exec(["true"], timeout=float("nan")),
            sandbox.exec(["true"], output_limit=-1),
        ):
            with pytest.raises(UsageError) as caught:
                await wrong
            assert caught.value.code == "command_invalid"
        assert (await sandbox.exec(["echo", "next"])).stdout == b"next\n"

    async def test_a_seat_of_processes_is_a_limit_of_each_sandbox(self, open_sandbox: Open) -> None:
        """One sandbox at its limit leaves another all of its own."""
        forks = (
            "import os, sys, time\nn = 0\n"
            "try:\n    while n < 100:\n        if os.fork() == 0:\n            time.sleep(100)\n        n += 1\n"
            "except OSError:\n    pass\nprint(n)"
        )
        full, other = await open_sandbox(processes=40), await open_sandbox(processes=40)
        for opened in (full, other):
            result = await opened.sandbox.exec(python(forks))
            assert 20 <= int(result.stdout) < 40
        assert (await full.sandbox.exec(["sh", "-c", "kill -9 -1"])).exit_code in (0, 126, 137)

    async def test_memory_is_limited(self, open_sandbox: Open) -> None:
        opened = await open_sandbox(memory_mb=128)
        hog = "b = []\nfor _ in range(64): b.append(bytearray(b'x' * (16 << 20)))\nprint('got it')"
        result = await opened.sandbox.exec(python(hog))
        assert result.exit_code != 0
        assert b"got it" not in result.stdout
        assert (await opened.sandbox.exec(["echo", "next"])).stdout == b"next\n"

    async def test_signals_work_inside(self, sandbox: Sandbox) -> None:
        """Nothing of how Chargehand treats signals is handed down."""
        result = await sandbox.exec(["grep", "-E", "Sig(Ign|Blk)", "/proc/self/status"])
        internal = 1 << 31 | 1 << 32  # the C library's own, which it sets itself
        assert [int(mask, 16) & ~internal for mask in result.stdout.split()[1::2]] == [0, 0]
