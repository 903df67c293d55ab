"""The death of a sandbox is noticed at once and gives no result, whichever of its processes was killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from _places import descendants, needs_bwrap, toolchain, workspace
from tests import container_kit

from chargehand.core.errors import SandboxDiedError
from chargehand.sandbox.container.guard import owner_prefix
from chargehand.sandbox.container_tier import ContainerTier
from chargehand.sandbox.contract import Sandbox
from chargehand.sandbox.process_tier import ProcessTier

IN_TIME = 120.0
"""Far below the time limit of the command: no one waited for that."""


async def died(sandbox: Sandbox, kill: Callable[[], None]) -> SandboxDiedError:
    """Kill a sandbox while a command runs; return the command's error, and check that nothing works afterwards."""
    running = asyncio.create_task(sandbox.exec(["sh", "-c", "echo here; sleep 600"], timeout=600))
    await asyncio.sleep(0.1)
    kill()
    async with asyncio.timeout(IN_TIME):
        with pytest.raises(SandboxDiedError) as caught:
            await running
        with pytest.raises(SandboxDiedError):
            await sandbox.exec(["true"])
        await sandbox.close()
    return caught.value


async def until_it_dies(sandbox: Sandbox, script: str) -> None:
    """Run a script repeatedly until the sandbox itself dies; raises `SandboxDiedError`."""
    while True:
        result = await sandbox.exec(["sh", "-c", script])
        assert result.exit_code == 0 or result.limit == "memory"


def process_one(bubblewrap: int) -> int:
    (first,) = Path(f"/proc/{bubblewrap}/task/{bubblewrap}/children").read_text().split()
    return int(first)


def ours() -> dict[str, int]:
    """Return this test's launcher, its one bubblewrap and the exec server."""
    seen = descendants(os.getpid())
    (launcher,) = (pid for pid, command in seen.items() if "_launcher.py" in command)
    (bubblewrap,) = (int(pid) for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split())
    return {"launcher": launcher, "bubblewrap": bubblewrap, "exec server": process_one(bubblewrap)}


@pytest.mark.needs_bwrap
@needs_bwrap
@pytest.mark.parametrize("who", ["exec server", "bubblewrap", "launcher"])
async def test_whoever_of_a_process_sandbox_is_killed(who: str, tmp_path: Path) -> None:
    async with ProcessTier(toolchain()) as tier:
        with workspace(tmp_path / "place") as spec:
            sandbox = await tier.open(spec)
            error = await died(sandbox, lambda: os.kill(ours()[who], signal.SIGKILL))
            assert (error.code, error.exit_code) == ("sandbox_died", 6)


@pytest.mark.needs_bwrap
@needs_bwrap
async def test_a_closed_tier_leaves_nothing_open_although_its_launcher_was_killed(tmp_path: Path) -> None:
    """Nobody closes the sandbox, so only the launcher or the tier can remove its group and close its socket."""
    before = os.listdir("/proc/self/fd")
    async with ProcessTier(toolchain()) as tier:
        with workspace(tmp_path / "place") as spec:
            sandbox = await tier.open(spec)
            os.kill(ours()["launcher"], signal.SIGKILL)
    assert os.listdir("/proc/self/fd") == before
    named = f"chargehand-{os.getpid()}-"
    groups = {name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names if name.startswith(named)}
    assert not [name for name in groups if name.endswith(sandbox.id)]


@pytest.mark.needs_bwrap
@needs_bwrap
async def test_the_next_command_notices_a_sandbox_that_died_idle(tmp_path: Path) -> None:
    async with ProcessTier(toolchain()) as tier:
        with workspace(tmp_path / "place") as spec:
            sandbox = await tier.open(spec)
            os.kill(ours()["exec server"], signal.SIGKILL)
            async with asyncio.timeout(IN_TIME):
                with pytest.raises(SandboxDiedError):
                    await until_it_dies(sandbox, "true")
            await sandbox.close()


@pytest.mark.needs_bwrap
@needs_bwrap
async def test_a_sandbox_out_of_memory_has_its_own_error_code(tmp_path: Path) -> None:
    """Files in /tmp are memory that no process can free: in the end the kernel kills the exec server too."""
    async with ProcessTier(toolchain()) as tier:
        with workspace(tmp_path / "place", memory_mb=64, tmp_mb=256) as spec:
            sandbox = await tier.open(spec)
            if "cgroup" not in sandbox.limits_in_force["memory"]:
                await sandbox.close()
                pytest.skip("no control group limits memory here")
            fill = "head -c 200000000 /dev/zero > /tmp/full"
            async with asyncio.timeout(60):
                with pytest.raises(SandboxDiedError) as caught:
                    await until_it_dies(sandbox, fill)
            assert caught.value.code == "sandbox_memory"
            assert "sandbox.memory_mb" in caught.value.hint
            await sandbox.close()


@pytest.mark.needs_container
@pytest.mark.parametrize("how", ["kill", "rm", "client"])
async def test_whatever_ends_a_container_from_outside(how: str, tmp_path: Path) -> None:
    engine = container_kit.engine("podman")
    environ = container_kit.environment()
    async with ContainerTier(toolchain(), engine=engine, environ=environ) as tier:
        with workspace(tmp_path / "place", plain=not engine.stages) as spec:
            sandbox = await tier.open(spec)
            name = f"{owner_prefix()}{sandbox.id}"

            def kill() -> None:
                if how == "client":
                    clients = [p for p, words in descendants(os.getpid()).items() if f"--name {name}" in words]
                    assert clients
                    os.kill(clients[0], signal.SIGKILL)
                    return
                words = ["kill", name] if how == "kill" else ["rm", "-f", "-t", "0", name]
                subprocess.run([*engine.argv, *words], check=True, capture_output=True)

            error = await died(sandbox, kill)
            assert (error.code, error.exit_code) == ("sandbox_died", 6)
    assert container_kit.containers("podman") == []
