"""A sandbox without isolation: real subprocesses in a directory, for tests of programs in sandboxes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from chargehand.core.errors import SandboxDiedError
from chargehand.sandbox.contract import WORKSPACE, ExecResult, OnOutput, SandboxUsage, Stream


class LocalSandbox:
    """Implements the sandbox contract; `dies_at` makes the n-th command find the sandbox gone.

    With `expires_on`, the time of a command is up as soon as it has written this text, and not before.
    """

    def __init__(
        self,
        workspace: Path,
        *,
        environment: Mapping[str, str] | None = None,
        dies_at: int | None = None,
        expires_on: bytes = b"",
        cwd: str = WORKSPACE,
    ) -> None:
        self.id = "s-local"
        self.cwd = cwd
        self.tier = "none"
        self.limits_in_force: Mapping[str, str] = {}
        self.commands: list[tuple[str, ...]] = []
        self._workspace = workspace
        self._environment = {"PATH": os.environ["PATH"], "HOME": str(workspace), **(environment or {})}
        self._dies_at = dies_at
        self.expires_on = expires_on

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 60.0,
        cwd: str | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        output_limit: int = 1_000_000,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        self.commands.append(tuple(argv))
        if self._dies_at is not None and len(self.commands) >= self._dies_at:
            raise SandboxDiedError("the sandbox was killed")
        started = time.monotonic()
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                cwd=str(self._workspace) + (cwd or self.cwd).removeprefix(WORKSPACE),
                env={**self._environment, **(environment or {})},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            return ExecResult(exit_code=127, stdout=b"", stderr=str(error).encode(), seconds=0.0)
        out, err = bytearray(), bytearray()
        timed_out = False
        expired = asyncio.Event()

        def see(stream: Stream, piece: bytes) -> None:
            if on_output is not None:
                on_output(stream, piece)
            if self.expires_on and self.expires_on in out:
                expired.set()

        done = asyncio.gather(_pump(process.stdout, "stdout", out, see), _pump(process.stderr, "stderr", err, see))
        process.stdin.write(stdin)
        process.stdin.close()
        expiring = asyncio.ensure_future(expired.wait())
        limit = None if self.expires_on else timeout
        await asyncio.wait([done, expiring], timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        expiring.cancel()
        if not done.done():
            timed_out = True
            os.killpg(process.pid, signal.SIGKILL)
        await done
        code = await process.wait()
        return ExecResult(
            exit_code=code if code >= 0 else 128 - code,
            stdout=bytes(out[:output_limit]),
            stderr=bytes(err[:output_limit]),
            seconds=time.monotonic() - started,
            truncated=max(len(out), len(err)) > output_limit,
            timed_out=timed_out,
        )

    async def freeze(self) -> None:
        return None

    async def thaw(self) -> None:
        return None

    def usage(self) -> SandboxUsage:
        return SandboxUsage()

    async def close(self) -> None:
        return None


async def _pump(pipe: asyncio.StreamReader, name: Stream, into: bytearray, on_output: OnOutput) -> None:
    while piece := await pipe.read(65536):
        into += piece
        on_output(name, piece)
