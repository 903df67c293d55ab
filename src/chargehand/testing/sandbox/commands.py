"""The part of the conformance suite about commands: exit codes, streams, environment, odd words."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator

import pytest

from chargehand.core.errors import UsageError
from chargehand.sandbox.contract import WORKSPACE, Converses, Sandbox, Stream
from chargehand.testing.sandbox.kit import KNOWN_VARIABLES, Open, SandboxFixtures, python, running

_EXITS = {
    "exit 0": 0,
    "exit 3": 3,
    "exit 255": 255,
    "kill -9 $$": 137,
    "kill -15 $$": 143,
    "kill -2 $$": 130,
    "kill -1 $$": 129,
}
_ODD_WORDS = ("", " ", "a b", "*", "--", "'\"`$(x)", "ä€😀", "\udcff\udc80", "a\nb", "\x1b[31m", "{sock}", "%s")


class CommandContract(SandboxFixtures):
    """A sandbox's promises about each command."""

    async def test_id_tier_and_limits_are_declared(self, sandbox: Sandbox) -> None:
        assert sandbox.id
        assert sandbox.tier
        assert {"memory", "processes", "tmp", "freeze"} <= set(sandbox.limits_in_force)

    async def test_its_host_name_is_no_constant(self, open_sandbox: Open) -> None:
        opened = await open_sandbox(), await open_sandbox()
        said = [await each.sandbox.exec(["cat", "/proc/sys/kernel/hostname"]) for each in opened]
        assert len({socket.gethostname(), *(each.stdout.decode().strip() for each in said)}) == 3

    async def test_exit_codes_are_those_of_a_shell(self, sandbox: Sandbox) -> None:
        for script, code in _EXITS.items():
            result = await sandbox.exec(["sh", "-c", script])
            assert (result.exit_code, result.timed_out, result.truncated) == (code, False, False), script

    async def test_an_unknown_program_is_127(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec(["no-such-program"])
        assert result.exit_code == 127
        assert b"no-such-program: " in result.stderr
        assert (await sandbox.exec([f"{WORKSPACE}/no/such"])).exit_code == 127
        assert (await sandbox.exec([""])).exit_code == 127

    async def test_a_file_that_is_not_executable_ends_with_126(self, sandbox: Sandbox) -> None:
        await sandbox.exec(["sh", "-c", "echo x > plain; printf '\\001\\002' > odd; chmod +x odd"])
        # No execute permission, a format that the kernel refuses, a directory: execve(2) accepts none of them.
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

    async def test_commands_run_in_the_workspace_or_a_given_directory(self, sandbox: Sandbox) -> None:
        assert (await sandbox.exec(["pwd"])).stdout == f"{WORKSPACE}\n".encode()
        assert (await sandbox.exec(["pwd"], cwd="/tmp")).stdout == b"/tmp\n"

    async def test_both_streams_come_apart_and_in_pieces(self, sandbox: Sandbox) -> None:
        pieces: list[tuple[str, bytes]] = []
        # The pause keeps a pipe from holding all of it: output must come in more than one piece.
        script = "echo one; echo two >&2; sleep 0.05; echo three; echo four >&2"
        result = await sandbox.exec(["sh", "-c", script], on_output=lambda *piece: pieces.append(piece))
        assert (result.stdout, result.stderr) == (b"one\nthree\n", b"two\nfour\n")
        assert b"".join(data for stream, data in pieces if stream == "stdout") == result.stdout
        assert b"".join(data for stream, data in pieces if stream == "stderr") == result.stderr
        assert len(pieces) > 2

    async def test_output_comes_while_the_command_runs(self, sandbox: Sandbox) -> None:
        seen = asyncio.Event()
        async with running(sandbox, "sh", "-c", "echo here; sleep 60", on_output=lambda *_: seen.set()) as task:
            async with asyncio.timeout(60):
                await seen.wait()
            assert not task.done()

    async def test_a_failing_listener_ends_only_its_command(self, sandbox: Sandbox) -> None:

        def fail(*_: object) -> None:
            raise LookupError("the listener's own fault")

        with pytest.raises(LookupError, match="own fault"):
            await sandbox.exec(["sh", "-c", "echo x; echo y >&2; sleep 60"], on_output=fail)
        assert (await sandbox.exec(["echo", "next"])).stdout == b"next\n"

    async def test_stdin(self, sandbox: Sandbox) -> None:
        assert (await sandbox.exec(["cat"])).stdout == b""
        assert (await sandbox.exec(["cat"], stdin=b"line\n\0\xff")).stdout == b"line\n\0\xff"
        # Larger than a pipe (64 KiB): it can only go in as `cat` writes it out again.
        large = os.urandom(1 << 20)
        result = await sandbox.exec(["cat"], stdin=large, output_limit=4 << 20)
        assert result.stdout == large

    async def test_unread_stdin_does_not_block(self, sandbox: Sandbox) -> None:
        for script in ("exit 4", "exec 0<&-; exit 4", "head -c 1 >/dev/null; exit 4"):
            for _ in range(3):
                result = await sandbox.exec(["sh", "-c", script], stdin=b"x" * (1 << 20))
                assert (result.exit_code, result.stderr) == (4, b""), script
            assert (await sandbox.exec(["cat"], stdin=b"next")).stdout == b"next", script

    async def test_stdin_that_is_never_read_does_not_outlive_a_time_limit(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec(["sleep", "60"], stdin=b"x" * (1 << 20), timeout=0.2)
        assert result.timed_out
        assert (await sandbox.exec(["cat"], stdin=b"next")).stdout == b"next"

    async def test_large_output_is_whole(self, sandbox: Sandbox) -> None:
        # One stream after the other, each larger than a pipe: a host that reads only one would block both.
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
        for limit in (0.5 * self.pace, 4 * self.pace, 16 * self.pace):  # until it had time to begin
            result = await sandbox.exec(["sh", "-c", "while :; do echo y; done"], timeout=limit, output_limit=1000)
            assert (result.exit_code, result.timed_out) == (137, True)
            if result.truncated:
                break
        assert result.truncated
        # The limit, and the line that says how much is missing.
        assert len(result.stdout) < 1100

    async def test_the_environment_is_as_requested(
        self, open_sandbox: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Before the sandbox is opened: a launcher may pass on the environment that it was started with.
        monkeypatch.setenv("HOST_SECRET", "do-not-show")
        sandbox = (await open_sandbox()).sandbox
        result = await sandbox.exec(["env"], environment={"GIVEN": "a=b\nc", "EMPTY": "", "LANG": "C"})
        assert b"do-not-show" not in result.stdout
        assert b"GIVEN=a=b\nc\n" in result.stdout
        assert b"EMPTY=\n" in result.stdout
        assert b"LANG=C\n" in result.stdout
        names = {line.partition(b"=")[0].decode() for line in (await sandbox.exec(["env"])).stdout.splitlines()}
        # No more than these: any other came from the host.
        assert names <= KNOWN_VARIABLES
        home = await sandbox.exec(["sh", "-c", 'cd "$HOME" && echo x > f && cat f && echo y > "$TMPDIR/f"'])
        assert (home.exit_code, home.stdout) == (0, b"x\n")

    async def test_commands_run_in_sequence(self, sandbox: Sandbox) -> None:
        # `mkdir` fails if the directory exists: two at once cannot both print.
        script = "mkdir busy && sleep 0.03 && rmdir busy && echo alone"
        results = await asyncio.gather(*(sandbox.exec(["sh", "-c", script]) for _ in range(5)))
        assert [result.stdout for result in results] == [b"alone\n"] * 5

    async def test_unusual_arguments_arrive_unchanged(self, sandbox: Sandbox) -> None:
        program = "import os, sys; os.write(1, b'|'.join(map(os.fsencode, sys.argv[1:])))"
        for word in _ODD_WORDS:
            result = await sandbox.exec(python(program, word, word), environment={"LC_ALL": "C.UTF-8"})
            assert result.stdout == os.fsencode(word) + b"|" + os.fsencode(word), word

    async def test_odd_directories_and_variables(self, sandbox: Sandbox) -> None:
        name = "d\udcff\nx"
        await sandbox.exec(["mkdir", name])
        result = await sandbox.exec(
            ["sh", "-c", 'pwd; echo "$ODD"'], cwd=f"{WORKSPACE}/{name}", environment={"ODD": name}
        )
        assert result.stdout == os.fsencode(f"{WORKSPACE}/{name}\n{name}\n")

    async def test_words_that_are_too_long_are_126(self, sandbox: Sandbox) -> None:
        # Linux bounds one word (128 KiB) and all of them together: both give E2BIG.
        for argv in (["true", "x" * (1 << 20)], ["true", *["x" * 1000] * 5000]):
            result = await sandbox.exec(argv)
            assert result.exit_code == 126
            assert b"too long" in result.stderr
        assert (await sandbox.exec(["echo", "next"])).stdout == b"next\n"

    async def test_impossible_arguments_are_a_usage_error(self, sandbox: Sandbox) -> None:
        for wrong in (
            sandbox.exec([]),
            sandbox.exec(["a\0b"]),
            sandbox.exec(["echo", "a\0b"]),
            # A lone surrogate that stands for no byte: unlike "\udcff" it cannot be passed to a program.
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

    async def test_input_may_come_while_a_program_runs(self, sandbox: Sandbox) -> None:
        """Input is passed on as it comes, and its end is the end of the program's input."""
        if not isinstance(sandbox, Converses):
            pytest.skip("this tier cannot talk with a running program")
        said: asyncio.Queue[bytes | None] = asyncio.Queue()
        heard = bytearray()

        async def pieces() -> AsyncIterator[bytes]:
            while (piece := await said.get()) is not None:
                yield piece

        def echoed(_: Stream, piece: bytes) -> None:
            heard.extend(piece)
            if heard.endswith(b"one\n"):
                # An empty piece ends nothing: only the end of the iterator does.
                said.put_nowait(b"")
                # More than a pipe holds, so that it is sent while `cat` writes back.
                said.put_nowait(b"two" * 100_000 + b"\n")
                said.put_nowait(None)

        said.put_nowait(b"one\n")
        result = await sandbox.converse(["cat"], pieces(), on_output=echoed)
        assert (result.exit_code, result.stdout) == (0, b"one\n" + b"two" * 100_000 + b"\n")

    async def test_a_program_may_end_before_its_input(self, sandbox: Sandbox) -> None:
        """The remaining input is not waited for, and not given to the next command."""
        if not isinstance(sandbox, Converses):
            pytest.skip("this tier cannot talk with a running program")

        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 1000
                await asyncio.sleep(0.01)

        result = await sandbox.converse(["sh", "-c", "head -c 5; exit 4"], endless())
        assert (result.exit_code, result.stdout) == (4, b"xxxxx")
        assert (await sandbox.exec(["cat"])).stdout == b""
        task = asyncio.create_task(sandbox.converse(["sleep", "1000"], endless()))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await sandbox.exec(["cat"], stdin=b"next")).stdout == b"next"

    async def test_signals_work_inside(self, sandbox: Sandbox) -> None:
        """The host's own signal handling is not inherited."""
        # Python ignores SIGPIPE, and children inherit that: programs in a pipeline would not end quietly.
        result = await sandbox.exec(["grep", "-E", "Sig(Ign|Blk)", "/proc/self/status"])
        internal = 1 << 31 | 1 << 32  # the C library's own, which it sets itself
        assert [int(mask, 16) & ~internal for mask in result.stdout.split()[1::2]] == [0, 0]
