"""A1: programs see the same in a plain clone and in every tier, by either strategy; base and repository stay."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import git, repository_state
from tests.jail_kit import TIERS, tier_of
from tests.probe_program import DIFFERENCES, FILES, OVERLAY, PROGRAM, STEPS
from tests.toolchain_kit import host_toolchain
from tests.workspace_kit import WorkspaceKit

from chargehand.core.ports import DriverName, sandbox_ids
from chargehand.sandbox.contract import SandboxLimits, SandboxSpec
from chargehand.workspace.workspace import Workspace

STRATEGIES: dict[str, DriverName] = {"shadow": "overlay", "direct": "worktree"}
ARGV = ("/usr/bin/python3", "-I", "-c", PROGRAM)
LIMITS = SandboxLimits(memory_mb=1024, tmp_mb=64)


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> WorkspaceKit:
    """Make a repository of three commits, as a person has it, with an untracked file in its work tree."""
    kit = WorkspaceKit(tmp_path_factory.mktemp("probe"), files=FILES)
    for number in (2, 3):
        with (kit.repository / "README.md").open("a") as file:
            file.write(f"commit {number}\n")
        kit.commit(f"number {number}")
    (kit.repository / "untracked").write_text("a person's own\n")
    return kit


@pytest.fixture(scope="module")
def plain(kit: WorkspaceKit) -> Iterator[dict[str, Any]]:
    """Return the transcript in a plain clone, run by the user of this machine's sandboxes."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)  # not pytest's own: every other run closes that to other users
        place.chmod(0o755)
        git(place, "clone", "-q", str(kit.repository), "clone")
        (place / "tmp").mkdir()
        uid, gid = sandbox_ids()
        subprocess.run(["chown", "-R", f"{uid}:{gid}", directory], check=True)
        who: dict[str, Any] = {"user": uid, "group": gid, "extra_groups": []} if os.geteuid() == 0 else {}
        environment = {"HOME": directory, "TMPDIR": str(place / "tmp")}
        done = subprocess.run(ARGV, cwd=place / "clone", env=environment, capture_output=True, check=False, **who)
        assert done.returncode == 0, done.stderr
        yield json.loads(done.stdout)


def digest(root: Path) -> str:
    """Return a digest of everything below a directory, with times."""
    found = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        info = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found.update(repr((str(path), info.st_mode, info.st_uid, info.st_mtime_ns, content)).encode())
    return found.hexdigest()


async def transcript(kind: str, workspace: Workspace) -> dict[str, Any]:
    """Return the program's output in a sandbox over a workspace."""
    async with tier_of(kind, host_toolchain()) as tier:
        sandbox = await tier.open(SandboxSpec(mounts=workspace.mount_plan(), limits=LIMITS))
        try:
            done = await sandbox.exec(ARGV, timeout=250, output_limit=4_000_000)
        finally:
            await sandbox.close()
    assert (done.exit_code, done.stderr) == (0, b"")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.fixture(scope="module", params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("kind", TIERS)
def test_programs_see_the_same_as_in_a_plain_clone(
    kit: WorkspaceKit, plain: dict[str, Any], kind: str, strategy: str
) -> None:
    workspace = kit.workspace(driver=STRATEGIES[strategy])
    layers = kit.depot().base_layers(kit.base())
    before = repository_state(kit.repository), digest(layers.git.parent)
    told = asyncio.run(transcript(kind, workspace))
    assert (repository_state(kit.repository), digest(layers.git.parent)) == before

    where = ("", OVERLAY) if STRATEGIES[strategy] == "overlay" else ("",)
    expected = {step for step, (place, _) in DIFFERENCES.items() if place in where}
    differing = {
        step: {"plain": plain["steps"][step], "inside": told["steps"][step]}
        for step in STEPS
        if told["steps"][step] != plain["steps"][step]
    }
    assert {step: how for step, how in differing.items() if step not in expected} == {}
    assert set(differing) == expected
    assert told["tree"] == plain["tree"]
    # The program and the host find the same tree.
    assert workspace.scan().tree == told["steps"]["in the end"][1].split()[0]
    workspace.discard()


def test_every_difference_is_of_a_step_and_says_why() -> None:
    assert set(DIFFERENCES) <= set(STEPS)
    assert all(place in ("", OVERLAY) and why for place, why in DIFFERENCES.values())
