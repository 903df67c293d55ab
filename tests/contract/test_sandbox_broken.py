"""The sandbox contract notices a broken sandbox: each of these breaks it in one way."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from _places import descendants, needs_bwrap, toolchain, workspace
from msgspec.structs import replace

from chargehand.sandbox.contract import ExecResult
from chargehand.sandbox.process_tier import ProcessTier
from chargehand.testing.sandbox.kit import OpenedSandbox
from chargehand.testing.sandbox.suite import SandboxContract

pytestmark = [pytest.mark.needs_bwrap, needs_bwrap]


class Wrapped:
    """A sandbox of the process tier, in which a subclass does one thing wrong."""

    def __init__(self, inner: Any, written: Path) -> None:
        self.inner = inner
        self.written = written

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Forged(Wrapped):
    """Reports that every command succeeded."""

    async def exec(self, *words: Any, **options: Any) -> ExecResult:
        return replace(await self.inner.exec(*words, **options), exit_code=0)


class Lossy(Wrapped):
    """Loses the end of the output."""

    async def exec(self, *words: Any, **options: Any) -> ExecResult:
        done = await self.inner.exec(*words, **options)
        return replace(done, stdout=done.stdout[:65_536])


class Leaky(Wrapped):
    """Passes the host's environment in."""

    async def exec(self, *words: Any, environment: Any = None, **options: Any) -> ExecResult:
        kept = {"PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH"}
        host = {name: value for name, value in os.environ.items() if name not in kept}
        done: ExecResult = await self.inner.exec(*words, environment=host | (environment or {}), **options)
        return done


class KillsTheChildOnly(Wrapped):
    """Ends the program at its time limit, but not its children."""

    async def exec(self, argv: Any, *, timeout: float = 60.0, **options: Any) -> ExecResult:
        bounded = ["timeout", "-s", "KILL", str(timeout), *argv] if 0 < timeout < 60 else argv
        done = await self.inner.exec(bounded, **options)
        return replace(done, timed_out=done.exit_code == 137)


class FreezesAllButOne(Wrapped):
    """Lets one of many processes run on while the sandbox is frozen."""

    async def freeze(self) -> None:
        seen = [pid for pid, words in descendants(os.getpid()).items() if "thread-" in words]
        for pid in sorted(seen)[1:]:
            with contextlib.suppress(ProcessLookupError):  # short-lived, and already over
                os.kill(pid, signal.SIGSTOP)

    async def thaw(self) -> None:
        for pid, words in descendants(os.getpid()).items():
            if "thread-" in words:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)


class NeverCloses(Wrapped):
    """Leaves everything running when it is closed."""

    async def close(self) -> None:
        return


@asynccontextmanager
async def opened(broken: type[Wrapped], root: Path) -> AsyncIterator[tuple[OpenedSandbox, Any]]:
    """Open a broken sandbox over a real one; yield it with a function that returns it again."""
    async with contextlib.AsyncExitStack() as stack:
        tier = await stack.enter_async_context(ProcessTier(toolchain()))
        spec = stack.enter_context(workspace(root / "place"))
        sandbox = await tier.open(spec)
        stack.push_async_callback(sandbox.close)
        one = OpenedSandbox(broken(sandbox, root / "place/upper"), root / "place/upper", lambda: None)

        async def again(**_: int) -> OpenedSandbox:
            return one

        yield one, again


Check = Callable[[SandboxContract, OpenedSandbox, Any], Awaitable[None]]


def env(suite: SandboxContract, _: OpenedSandbox, again: Any) -> Awaitable[None]:
    return suite.test_the_environment_is_as_requested(again, pytest.MonkeyPatch())


CHECKS: list[tuple[type[Wrapped], Check]] = [
    (Forged, lambda suite, one, _: suite.test_exit_codes_are_those_of_a_shell(one.sandbox)),
    (Lossy, lambda suite, one, _: suite.test_large_output_is_whole(one.sandbox)),
    (Leaky, env),
    (KillsTheChildOnly, lambda suite, one, _: suite.test_a_time_limit_kills_the_whole_tree(one)),
    (FreezesAllButOne, lambda suite, one, _: suite.test_nothing_changes_while_frozen(one)),
    (
        NeverCloses,
        lambda suite, one, _: suite.test_a_daemon_does_not_hold_the_reply_and_ends_with_the_sandbox(one),
    ),
]


@pytest.mark.parametrize(("broken", "check"), CHECKS, ids=[broken.__name__ for broken, _ in CHECKS])
async def test_a_broken_sandbox_fails_the_contract(broken: type[Wrapped], check: Check, tmp_path: Path) -> None:
    async with opened(broken, tmp_path) as (one, again):
        with pytest.raises(AssertionError):
            async with asyncio.timeout(60):
                await check(SandboxContract(), one, again)


@pytest.mark.parametrize("check", [check for _, check in CHECKS], ids=[broken.__name__ for broken, _ in CHECKS])
async def test_an_unbroken_sandbox_passes_the_contract(check: Check, tmp_path: Path) -> None:
    async with opened(Wrapped, tmp_path) as (one, again):
        await check(SandboxContract(), one, again)
