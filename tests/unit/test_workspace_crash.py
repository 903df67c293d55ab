"""Killed at every step: the state is the old or the new, never a mixture, and a retry completes it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import git, repository_state
from tests.workspace_kit import WorkspaceKit, operate, tree_paths, write

from chargehand.core.errors import InfrastructureError
from chargehand.workspace.export import export_branch
from chargehand.workspace.scan import WorkspaceLimits
from chargehand.workspace.workspace import Workspace

_KILLED = """
import os, signal, sys
from pathlib import Path
from chargehand.workspace.checkout import fast_forward
from chargehand.workspace.depot import Depot
from chargehand.workspace.environment import EnvironmentLayers
from chargehand.workspace.export import export_branch
from chargehand.workspace.workspace import Workspace
root, repository, point, action, *rest = sys.argv[1:]
def fault(at):
    if at == point:
        os.kill(os.getpid(), signal.SIGKILL)
depot = Depot.open(Path(root), repository=Path(repository), fault=fault)
base = depot.resolve_base()
if action == "create":
    Workspace.create(depot, base, driver=rest[0])
elif action == "checkpoint":
    Workspace.load(depot, rest[0]).checkpoint("work")
elif action == "reset":
    Workspace.load(depot, rest[0]).reset(rest[1], "rollback")
elif action == "export":
    export_branch(depot, rest[0], branch="chargehand/x", expected_old=None)
elif action == "apply":
    fast_forward(depot, rest[0], branch="main", at=base.commit)
elif action == "freeze":
    EnvironmentLayers(depot).freeze(Workspace.load(depot, rest[0]), "key")
"""


@pytest.fixture
def kit(tmp_path: Path) -> WorkspaceKit:
    kit = WorkspaceKit(tmp_path)
    git(kit.repository, "config", "user.name", "Ada")
    git(kit.repository, "config", "user.email", "ada@example.org")
    return kit


def run(kit: WorkspaceKit, point: str, action: str, *arguments: str) -> None:
    """Perform an action in another process that is killed at `point` (`-`: completes)."""
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(kit.root), str(kit.repository), point, action, *arguments],
        capture_output=True,
        check=False,
    )
    assert done.returncode == (0 if point == "-" else -signal.SIGKILL), done.stderr.decode()


@pytest.mark.parametrize(
    "point",
    ["depot:filled", "base:tree", "base:git", "base:filled", "base:made", "generation:filled", "workspace:filled"],
)
def test_making_a_base_and_a_workspace(kit: WorkspaceKit, point: str) -> None:
    before = repository_state(kit.repository)
    run(kit, point, "create", "overlay")
    assert repository_state(kit.repository) == before
    workspaces = kit.root / "workspaces"
    assert not workspaces.exists() or not [p for p in workspaces.iterdir() if not p.name.startswith(".")]
    depot = kit.open()
    base = depot.resolve_base()
    layers = depot.base_layers(base)
    assert (layers.files, (layers.tree / "README.md").read_text()) == (8, "hello\n")
    assert Workspace.create(depot, base, driver="worktree").scan().tree == base.tree
    assert [place.name for place in (kit.root / "bases").iterdir()] == [base.commit]


@pytest.mark.parametrize("point", ["checkpoint:written", "checkpoint:made"])
def test_a_checkpoint(kit: WorkspaceKit, point: str) -> None:
    workspace = kit.workspace("overlay")
    first = workspace.checkpoint("first")
    (workspace.scan_root() / "new").write_text("new\n")
    run(kit, point, "checkpoint", workspace.id)
    last = workspace.last()
    assert last is not None
    assert (last == first) == (point == "checkpoint:written")
    again = Workspace.load(kit.open(), workspace.id).checkpoint("work")
    assert (again.parent, again.changed) == (first.commit, 1)
    assert "new" in tree_paths(kit.open(), again.tree)
    kit.depot().git("fsck", "--strict", "--no-dangling", "--connectivity-only")


@pytest.mark.parametrize("driver", ["overlay", "worktree"])
@pytest.mark.parametrize("point", ["generation:filled", "reset:filled", "reset:switched", "checkpoint:made"])
def test_a_rollback(kit: WorkspaceKit, driver: str, point: str) -> None:
    workspace = kit.workspace("overlay" if driver == "overlay" else "worktree")
    (workspace.scan_root() / "one").write_text("1\n")
    one = workspace.checkpoint("one").tree
    (workspace.scan_root() / "two").write_text("2\n")
    two = workspace.checkpoint("two").tree
    run(kit, point, "reset", workspace.id, one)
    after = Workspace.load(kit.open(), workspace.id)
    shown = after.scan().tree
    assert shown in (one, two)
    assert (shown == one) == (point in ("reset:switched", "checkpoint:made"))
    assert after.reset(one, "rollback").tree == one
    assert after.scan().tree == one
    assert two in {checkpoint.tree for checkpoint in after.checkpoints()}


@pytest.mark.parametrize("point", ["export:begin", "export:objects", "export:done"])
def test_an_export(kit: WorkspaceKit, point: str) -> None:
    before = repository_state(kit.repository)
    depot, base = kit.depot(), kit.base()
    commit = depot.commit(base.tree, (base.commit,), "work")
    run(kit, point, "export", commit)
    assert repository_state(kit.repository) == before
    branches = git(kit.repository, "branch", "--list", "--format=%(objectname)", "chargehand/x")
    assert branches == (commit if point == "export:done" else "")
    assert export_branch(kit.open(), commit, branch="chargehand/x", expected_old=None).state == "done"


@pytest.mark.parametrize("point", ["apply:objects", "apply:journal", "apply:merged"])
def test_an_apply(kit: WorkspaceKit, point: str) -> None:
    before = repository_state(kit.repository)
    workspace = kit.workspace("overlay")
    operate(workspace, [write("README.md", "new\n"), write("x", "x\n")])
    commit = kit.depot().commit(workspace.scan().tree, (kit.base().commit,), "work")
    run(kit, point, "apply", commit)
    if point != "apply:merged":
        assert repository_state(kit.repository) == before
        run(kit, "-", "apply", commit)
    assert git(kit.repository, "rev-parse", "HEAD") == commit
    assert git(kit.repository, "status", "--porcelain") == ""
    assert (kit.repository / "README.md").read_text() == "new\n"


@pytest.mark.parametrize("point", ["layer:begin", "layer:moved", "layer:made"])
def test_a_layer(kit: WorkspaceKit, point: str) -> None:
    from chargehand.workspace.environment import EnvironmentLayers

    setup = kit.workspace("overlay")
    operate(setup, [write(".venv/tool", "t\n"), write("README.md", "changed\n")])
    run(kit, point, "freeze", setup.id)
    layers = EnvironmentLayers(kit.open())
    found = layers.find("key")
    assert (found is None) == (point != "layer:made")
    if found is None:
        again = kit.workspace("overlay")
        operate(again, [write(".venv/tool", "t\n"), write("README.md", "changed\n")])
        found = layers.freeze(again, "key").path
    assert {str(p.relative_to(found)) for p in found.rglob("*")} == {".venv", ".venv/tool"}


_FULL = """
import ctypes, os, sys
from pathlib import Path
libc = ctypes.CDLL(None, use_errno=True)
uid, gid = os.getuid(), os.getgid()
if libc.unshare(0x20000 if uid == 0 else 0x10020000):
    sys.exit(77)
if uid:
    open("/proc/self/setgroups", "w").write("deny")
    open("/proc/self/uid_map", "w").write(f"{uid} {uid} 1")
    open("/proc/self/gid_map", "w").write(f"{gid} {gid} 1")
root, repository = sys.argv[1:]
libc.mount(None, b"/", None, 0x44000, None)
if libc.mount(b"tmpfs", os.fsencode(root), b"tmpfs", 0, b"size=3m"):
    sys.exit(77)
from chargehand.core.errors import InfrastructureError
from chargehand.workspace.depot import Depot
from chargehand.workspace.workspace import Workspace
depot = Depot.open(Path(root), repository=Path(repository))
base = depot.resolve_base()
workspace = Workspace.create(depot, base, driver="overlay")
first = workspace.checkpoint("first")
def fill(leave):
    with open(Path(root) / "filler", "wb") as file:
        free = os.statvfs(root).f_bavail * os.statvfs(root).f_frsize
        file.write(b"x" * (free - leave))
def full(what):
    try:
        what()
    except InfrastructureError as problem:
        assert problem.code == "no_space", problem
        return
    raise SystemExit("not noticed")
for size, count in ((300_000, 1), (3000, 60)):
    for n in range(count):
        (workspace.scan_root() / f"f{n}").write_bytes(os.urandom(size))
    fill(8192)
    full(lambda: workspace.checkpoint("work"))
    full(lambda: Workspace.create(depot, base, driver="worktree", tree=None))
    assert workspace.last() == first
    leftover = [p for p in (Path(root) / "depot.git/objects").rglob("tmp_*")]
    assert not leftover, leftover
    assert [p.name for p in (Path(root) / "workspaces").iterdir()] == [workspace.id]
    os.unlink(Path(root) / "filler")
made = workspace.checkpoint("work")
assert made.changed == 60, made
depot.git("fsck", "--strict", "--no-dangling")
"""


def test_a_full_disk_raises_no_space_and_leaves_no_partial_files(kit: WorkspaceKit) -> None:
    kit.root.mkdir()
    (kit.repository / "filling").write_bytes(os.urandom(50_000))
    kit.commit()
    done = subprocess.run(
        [sys.executable, "-c", _FULL, str(kit.root), str(kit.repository)], capture_output=True, check=False
    )
    if done.returncode == 77:
        pytest.skip("no mounts here")
    assert done.returncode == 0, done.stderr.decode()


def test_a_failed_creation_of_base_layers_leaves_no_files(kit: WorkspaceKit) -> None:
    def broken(point: str) -> None:
        if point == "base:git":
            raise InfrastructureError("broken")

    depot = kit.open(fault=broken)
    with pytest.raises(InfrastructureError):
        depot.base_layers(depot.resolve_base())
    assert list((kit.root / "bases").iterdir()) == []
    assert kit.workspace("overlay", limits=WorkspaceLimits()).scan().changes == ()
