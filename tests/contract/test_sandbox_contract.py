"""The `process` tier keeps the contract of a sandbox."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from _places import descendants, needs_bwrap, toolchain, workspace
from sandbox_contract import Open, Opened, SandboxContract

from chargehand.sandbox import ProcessTier

pytestmark = [pytest.mark.needs_bwrap, needs_bwrap]


class TestProcessTier(SandboxContract):
    @pytest.fixture
    async def open_sandbox(self, tmp_path: Path) -> AsyncIterator[Open]:
        async with AsyncExitStack() as stack:
            tier = await stack.enter_async_context(ProcessTier(toolchain()))
            count = 0

            async def open_one(**limits: int) -> Opened:
                nonlocal count
                count += 1
                root = tmp_path / f"place-{count}"
                spec = stack.enter_context(workspace(root, **limits))
                before = bubblewraps()
                sandbox = await tier.open(spec)
                stack.push_async_callback(sandbox.close)
                mine = bubblewraps() - before

                def kill() -> None:
                    for pid in mine:
                        os.kill(pid, signal.SIGKILL)

                return Opened(sandbox, root / "upper", kill)

            yield open_one


def bubblewraps() -> set[int]:
    """Return the bubblewrap processes of this test's launcher."""
    return {pid for pid, command in descendants(os.getpid()).items() if "bwrap" in command.split(" ")[0]}
