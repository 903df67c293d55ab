"""Scans of uppers made by hand: marks that an agent may forge, and data cached between scans."""

from __future__ import annotations

import itertools
import mmap
import os
import stat
import threading
import time
from pathlib import Path

import pytest
from tests.workspace_kit import WorkspaceKit, agent, changed, operate, oracle, rules, write

from chargehand.core.errors import InfrastructureError
from chargehand.workspace.workspace import Workspace

ROOT = os.geteuid() == 0


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> WorkspaceKit:
    return WorkspaceKit(tmp_path_factory.mktemp("kit"))


@pytest.fixture
def workspace(kit: WorkspaceKit) -> Workspace:
    return kit.workspace("overlay")


def mark(path: Path, attribute: str, value: bytes = b"y") -> None:
    path.mkdir(parents=True, exist_ok=True)
    os.setxattr(path, attribute, value)


def test_an_opaque_directory_hides_the_files_of_the_base(workspace: Workspace) -> None:
    mark(workspace.scan_root() / "src/lib", "trusted.overlay.opaque" if ROOT else "user.overlay.opaque")
    (workspace.scan_root() / "src/lib/new").write_text("new\n")
    assert changed(workspace) == {
        "src/lib/deep/data.txt": "deleted",
        "src/lib/new": "added",
        "src/lib/util.py": "deleted",
    }


@pytest.mark.needs_root
def test_the_other_namespaces_mark_is_not_believed(workspace: Workspace) -> None:
    mark(workspace.scan_root() / "src/lib", "user.overlay.opaque")
    mark(workspace.scan_root() / "docs", "trusted.overlay.opaque", b"x")
    assert changed(workspace) == {}


def test_whiteouts_delete_and_touched_directories_do_not(workspace: Workspace) -> None:
    root = workspace.scan_root()
    (root / "src/lib").mkdir(parents=True)
    for path in ("docs", "src/lib/util.py", "never-there"):
        os.mknod(root / path, stat.S_IFCHR | 0o600, os.makedev(0, 0))
    assert changed(workspace) == {"docs/a.md": "deleted", "docs/b.md": "deleted", "src/lib/util.py": "deleted"}


def test_a_copied_up_file_that_is_the_same_is_no_change(workspace: Workspace) -> None:
    (workspace.scan_root() / "README.md").write_text("hello\n")
    found = workspace.scan()
    assert (found.changes, found.files, found.tree) == ((), 0, workspace.base.tree)


def test_a_whiteout_in_a_plain_directory_is_a_device(kit: WorkspaceKit) -> None:
    workspace = kit.workspace("worktree")
    os.mknod(workspace.scan_root() / "node", stat.S_IFCHR | 0o600, os.makedev(0, 0))
    assert rules(workspace) == {"node": "entry_special"}


def test_hard_links_are_files_like_others(workspace: Workspace, kit: WorkspaceKit) -> None:
    agent(workspace, "echo x > a; ln a b; ln README.md c; echo y >> c")
    assert changed(workspace) == {"a": "added", "b": "added", "c": "added", "README.md": "modified"}
    assert workspace.scan().tree == oracle(workspace, kit.depot())


def test_links_are_never_followed(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/file").write_text("secret\n")
    root = workspace.scan_root()
    os.symlink(tmp_path / "secret", root / "docs")
    os.symlink(tmp_path / "secret/file", root / "README.md")
    found = workspace.scan()
    assert found.tree == workspace.base.tree
    assert {f.path: f.rule for f in found.findings} == {"docs": "entry_link_out", "README.md": "entry_link_out"}


def test_a_rewrite_with_the_same_size_and_time_is_seen(workspace: Workspace) -> None:
    agent(workspace, "echo one > f; touch -d @1000000000 f")
    time.sleep(0.05)
    first = workspace.scan().tree
    assert workspace.scan().tree == first
    agent(workspace, "echo two > f; touch -d @1000000000 f")
    assert workspace.scan().tree != first


def test_a_file_written_just_now_is_read_again(workspace: Workspace) -> None:
    path = workspace.scan_root() / "f"
    for number in range(50):
        path.write_text(f"{number:04}\n")
        entry = next(change for change in workspace.scan().changes)
        assert workspace._depot.read_blob(entry.new_id or "") == f"{number:04}\n".encode()


def test_a_stopped_scan_raises(workspace: Workspace) -> None:
    stop = threading.Event()
    assert workspace.scan(stop=stop).tree == workspace.scan().tree
    (workspace.scan_root() / "new").write_text("new\n")
    stop.set()
    with pytest.raises(InfrastructureError):
        workspace.scan(stop=stop)


def test_a_scan_without_the_cache_finds_a_write_that_changes_no_time(workspace: Workspace) -> None:
    path = workspace.scan_root() / "f"
    path.write_bytes(b"old\n")
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        for letter in itertools.cycle(b"xyz"):
            time.sleep(0.05)
            cached, before = workspace.scan().tree, path.stat().st_mtime_ns
            mapped[0] = letter
            # The kernel notices only the first write to a page after it wrote the page to the disk.
            if path.stat().st_mtime_ns == before:
                break
        assert workspace.scan().tree == cached
        assert workspace.scan(trust_cache=False).tree != cached


def test_the_number_of_findings_is_limited_and_the_rest_counted(workspace: Workspace) -> None:
    for number in range(1100):
        os.mkfifo(workspace.scan_root() / f"p{number:04}")
    found = workspace.scan().findings
    assert len(found) == 1000
    assert "101 further" in found[-1].message


def test_new_content_is_written_whether_loose_or_packed(workspace: Workspace, kit: WorkspaceKit) -> None:
    depot = kit.depot()
    operate(workspace, [write(f"few/{n}", b"%d" % n) for n in range(5)])
    few = workspace.scan()
    operate(workspace, [write(f"many/{n}", os.urandom(300)) for n in range(200)])
    many = workspace.scan()
    fresh = kit.open()
    for tree in (few.tree, many.tree):
        for entry in fresh.entries(tree):
            fresh.read_blob(entry.id)
    assert list((depot.path / "objects/pack").glob("tmp_*")) == []
    depot.git("fsck", "--strict", "--no-dangling")
