"""Every tier keeps the contract of a sandbox."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from _places import descendants, needs_bwrap, toolchain, workspace
from tests import container_kit

from chargehand.sandbox.container_tier import ContainerTier
from chargehand.sandbox.process_tier import ProcessTier
from chargehand.testing.sandbox.kit import Open, OpenedSandbox
from chargehand.testing.sandbox.limits import LimitContract
from chargehand.testing.sandbox.suite import SandboxContract


@pytest.mark.needs_bwrap
@needs_bwrap
class TestProcessTier(SandboxContract):
    groups = True

    @pytest.fixture
    async def open_sandbox(self, tmp_path: Path) -> AsyncIterator[Open]:
        async with AsyncExitStack() as stack:
            tier = await stack.enter_async_context(ProcessTier(toolchain(), groups=self.groups))
            count = 0

            async def open_one(**limits: int) -> OpenedSandbox:
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
                        with contextlib.suppress(ProcessLookupError):  # one ends with another
                            os.kill(pid, signal.SIGKILL)

                return OpenedSandbox(sandbox, root / "upper", kill)

            yield open_one


@pytest.mark.needs_bwrap
@needs_bwrap
class TestWithoutControlGroups(LimitContract):
    """The limits on sandboxes of a user who may not create control groups."""

    groups = False
    bomb_seconds = 6.0
    open_sandbox = TestProcessTier.open_sandbox

    async def test_memory_of_many_processes_together(self, open_sandbox: Open) -> None:
        """No process is too large by itself: only the sum of all of them shows it."""
        opened = await open_sandbox(memory_mb=200)
        hold = "import time; held = bytearray(b'x' * (90 << 20)); time.sleep(60)"
        script = f'for n in 1 2 3 4; do python3 -I -c "{hold}" & done; wait; exit 1'
        result = await opened.sandbox.exec(["sh", "-c", script])
        assert (result.limit, result.exit_code) == ("memory", 137)
        assert opened.sandbox.usage().sampled


@asynccontextmanager
async def containers(program: str, place: Path) -> AsyncIterator[Open]:
    """Open a tier of an engine; yield a function that opens containers on empty workspaces below `place`."""
    engine = container_kit.engine(program)
    async with AsyncExitStack() as stack:
        tier = await stack.enter_async_context(
            ContainerTier(toolchain(), engine=engine, environ=container_kit.environment())
        )
        count = 0

        async def open_one(**limits: int) -> OpenedSandbox:
            nonlocal count
            count += 1
            root = place / f"place-{count}"
            spec = stack.enter_context(workspace(root, plain=not engine.stages, **limits))
            sandbox = await tier.open(spec)
            stack.push_async_callback(sandbox.close)
            pid = container_kit.pid_of(engine, sandbox.id)
            written = root / ("upper" if engine.stages else "base")
            return OpenedSandbox(sandbox, written, lambda: os.kill(pid, signal.SIGKILL))

        yield open_one


class ContainerContract(SandboxContract):
    """The contract over containers; a subclass names the engine."""

    program = ""

    @pytest.fixture
    async def open_sandbox(self, tmp_path: Path) -> AsyncIterator[Open]:
        async with containers(self.program, tmp_path) as open_one:
            yield open_one


@pytest.mark.needs_container
@pytest.mark.soak
class TestPodman(ContainerContract):
    program = "podman"


@pytest.mark.needs_container
@pytest.mark.soak
class TestDocker(ContainerContract):
    program = "docker"


class Opened:
    """Sandboxes with these limits, whichever limits a promise requests; keeps those that it opened."""

    def __init__(self, open_one: Open, **limits: int) -> None:
        self.opened: list[OpenedSandbox] = []
        self._open_one, self._limits = open_one, limits

    async def take(self, **_: int) -> OpenedSandbox:
        """Open another sandbox."""
        self.opened.append(await self._open_one(**self._limits))
        return self.opened[-1]

    async def again(self, **wanted: int) -> OpenedSandbox:
        """Return the first sandbox, whose limits include the requested ones."""
        assert wanted.items() <= self._limits.items()
        return self.opened[0]


@pytest.mark.needs_container
@pytest.mark.parametrize("program", ["podman", pytest.param("docker", marks=pytest.mark.soak)])
async def test_the_engine_specific_part_of_the_contract(program: str, tmp_path: Path) -> None:
    """Test the promises that an exec server alone does not keep: the whole contract takes minutes (`soak`).

    Most of those minutes start containers: here promises share one container as far as their limits and ends
    allow.
    """
    suite = ContainerContract()
    suite.program = program
    async with containers(program, tmp_path) as open_one:
        first = Opened(open_one)
        with pytest.MonkeyPatch.context() as patch:
            await suite.test_the_environment_is_as_requested(first.take, patch)
        (opened,) = first.opened
        await suite.test_id_tier_and_limits_are_declared(opened.sandbox)
        await suite.test_both_streams_come_apart_and_in_pieces(opened.sandbox)
        await suite.test_large_output_is_whole(opened.sandbox)
        await suite.test_a_time_limit_kills_the_whole_tree(opened)
        await suite.test_frozen_time_does_not_count(opened.sandbox)
        await suite.test_signals_work_inside(opened.sandbox)
        await suite.test_a_sandbox_killed_from_outside_is_no_result(opened)
        pair = Opened(open_one)
        await suite.test_two_sandboxes_do_not_see_each_other(pair.take)
        one, two = pair.opened
        await suite.test_nothing_changes_while_frozen(two)
        await suite.test_closing_while_frozen(two)
        await suite.test_killed_while_frozen(one)
        bound = Opened(open_one, memory_mb=160, processes=40, file_mb=1, open_files=64)
        await suite.test_a_seat_of_processes_is_a_limit_of_each_sandbox(bound.take)
        for test in (
            suite.test_memory,
            suite.test_processes,
            suite.test_the_size_of_a_file,
            suite.test_open_files,
        ):
            await test(bound.again)
        await suite.test_processor_time(open_one)
        await suite.test_the_share_of_processor_time(open_one)
        await suite.test_freezes_are_counted_before_and_after_the_end((await open_one()).sandbox)
        await suite.test_usage_is_counted(open_one)
    assert container_kit.containers(program) == []


def bubblewraps() -> set[int]:
    """Return the bubblewrap processes of this test's launcher."""
    return {pid for pid, command in descendants(os.getpid()).items() if "bwrap" in command.split(" ")[0]}
