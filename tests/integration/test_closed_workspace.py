"""An agent closes the top directory of its workspace: no content is lost, and host and sandboxes keep access."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest
from tests.toolchain_kit import host_toolchain
from tests.workspace_kit import WorkspaceKit, oracle

from chargehand.core.errors import RefusedError
from chargehand.core.ports import DriverName
from chargehand.sandbox.contract import SandboxSpec
from chargehand.sandbox.process_tier import ProcessTier
from chargehand.workspace.scan import WorkspaceLimits
from chargehand.workspace.space import AttemptQuota
from chargehand.workspace.workspace import Workspace

pytestmark = pytest.mark.needs_bwrap
DRIVERS: tuple[DriverName, ...] = ("overlay", "worktree")


def inside(workspace: Workspace, script: str) -> bytes:
    """Run a script in a new sandbox on the workspace, close the sandbox, and return the output."""

    async def run() -> bytes:
        async with ProcessTier(host_toolchain()) as tier:
            sandbox = await tier.open(SandboxSpec(mounts=workspace.mount_plan()))
            done = await sandbox.exec(["sh", "-ec", script])
            await sandbox.close()
        assert done.exit_code == 0, done.stderr
        return done.stdout

    return asyncio.run(run())


@pytest.mark.parametrize("mode", ["0", "300", "500"])
@pytest.mark.parametrize("driver", DRIVERS)
def test_a_closed_top_directory_is_read_all_the_same(tmp_path: Path, driver: DriverName, mode: str) -> None:
    kit = WorkspaceKit(tmp_path)
    workspace = kit.workspace(driver)
    inside(workspace, f"echo new > new; rm run.sh; chmod {mode} .")
    assert stat.S_IMODE(workspace.scan_root().stat().st_mode) == int(mode, 8)
    made = Workspace.load(kit.open(), workspace.id).checkpoint("work")
    assert {change.path for change in workspace.scan().changes} == {"new", "run.sh"}
    assert made.tree == oracle(workspace, kit.depot())
    assert inside(workspace, "cat new; echo more > more") == b"new\n"
    assert {change.path for change in workspace.scan().changes} == {"more", "new", "run.sh"}


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_closed_top_directory_is_rolled_back_and_discarded(tmp_path: Path, driver: DriverName) -> None:
    kit = WorkspaceKit(tmp_path)
    workspace = kit.workspace(driver)
    inside(workspace, "echo new > new; chmod 0 .")
    workspace.reset(workspace.base.tree, "rollback")
    assert inside(workspace, "cat run.sh; test ! -e new; chmod 0 .").startswith(b"#!/bin/sh")
    (before, *_) = [point for point in workspace.checkpoints() if point.trigger.startswith("before")]
    back = workspace.reset(before.tree, "back")
    assert [change.path for change in kit.depot().diff(workspace.base.tree, back.tree)] == ["new"]
    inside(workspace, "chmod 0 .")
    workspace.tidy()
    workspace.discard()
    assert not workspace.directory.exists()
    assert [place for place in workspace.directory.parent.iterdir() if "trash" in place.name] == []


@pytest.mark.parametrize("mode", ["0", "300", "400"])
def test_quota_includes_files_in_an_unreadable_directory(tmp_path: Path, mode: str) -> None:
    workspace = WorkspaceKit(tmp_path).workspace("overlay")
    inside(workspace, f"mkdir -p shut/deep; head -c 3145728 /dev/zero > shut/deep/big; chmod {mode} shut")
    shut = workspace.scan_root() / "shut"
    with pytest.raises(RefusedError, match=r"2.*MB"):
        AttemptQuota(workspace.scan_root(), WorkspaceLimits(disk_bytes=2 << 20)).check()
    AttemptQuota(workspace.scan_root(), WorkspaceLimits(disk_bytes=8 << 20)).check()
    assert stat.S_IMODE(shut.stat().st_mode) == int(mode, 8)
    with pytest.raises(RefusedError, match="more than 2 files"):
        AttemptQuota(workspace.scan_root(), WorkspaceLimits(files=2)).check()
    shut.chmod(0o700)
