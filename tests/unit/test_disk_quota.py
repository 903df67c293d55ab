"""Disk space: one limit for all projects, space freed before it is needed, and limits on an attempt's writes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.workspace_kit import WorkspaceKit, operate, write

from chargehand.core.errors import InfrastructureError, RefusedError
from chargehand.workspace.bases import Bases
from chargehand.workspace.errors import no_fault
from chargehand.workspace.host.files import Need, room_on_disk
from chargehand.workspace.scan import WorkspaceLimits
from chargehand.workspace.space import AttemptQuota, StateQuota, nobody_needs
from chargehand.workspace.tree.write import tree_need

MB = 1_000_000


def quota(kit: WorkspaceKit, limit: int, *, needed: set[str] | None = None) -> StateQuota:
    def needs(root: Path, kind: str, name: str, used: float) -> bool:
        return name in (needed or set())

    return StateQuota(lambda: [kit.root], limit=limit, needed=lambda: needs)


def filled(kit: WorkspaceKit, size: int, *, used: float) -> str:
    """Make a workspace with an ignored file of that size, last used at `used`; return its id."""
    workspace = kit.workspace("overlay")
    operate(workspace, [write("ignored.log", os.urandom(size))])
    os.utime(workspace.directory / "state.json", (used, used))
    return workspace.id


def workspaces(kit: WorkspaceKit) -> set[str]:
    return {place.name for place in (kit.root / "workspaces").iterdir()}


def test_the_least_recently_used_workspaces_are_removed_for_space(kit: WorkspaceKit) -> None:
    now = time.time()
    old, older = filled(kit, MB, used=now - 1000), filled(kit, MB, used=now - 2000)
    taken = quota(kit, 0).taken()
    roomy = quota(kit, taken + 12 * MB)
    roomy(kit.root, Need(bytes=10 * MB), "a test")
    assert workspaces(kit) == {old, older}, "there is room already"
    roomy(kit.root, Need(bytes=11 * MB), "a test")
    assert workspaces(kit) == {old}
    assert roomy.taken() < taken


def test_needed_workspaces_are_kept_and_the_error_shows_sizes(kit: WorkspaceKit) -> None:
    kept = filled(kit, MB, used=time.time() - 1000)
    taken = quota(kit, 0).taken()
    with pytest.raises(InfrastructureError) as caught:
        quota(kit, taken + 2 * MB, needed={kept})(kit.root, Need(bytes=10 * MB), "the files of the base")
    assert caught.value.code == "no_space"
    assert "no space left for the files of the base: it takes about 11.0 MB" in caught.value.message
    assert "2.0 MB are left of the" in caught.value.message
    assert "free some space" in caught.value.hint
    assert workspaces(kit) == {kept}


def test_more_than_the_disk_has_is_refused_before_anything_is_written(kit: WorkspaceKit) -> None:
    free = os.statvfs(kit.place).f_bavail * os.statvfs(kit.place).f_frsize
    room_on_disk(kit.place / "not" / "there", Need(bytes=1), "a test")
    for room in (room_on_disk, quota(kit, 1 << 60)):
        with pytest.raises(InfrastructureError, match="no space left for a test"):
            room(kit.place, Need(bytes=2 * free), "a test")
    if os.statvfs(kit.place).f_files:
        with pytest.raises(InfrastructureError, match="more files are possible"):
            room_on_disk(kit.place, Need(bytes=1, files=1 << 60), "a test")


def test_the_need_of_a_tree_matches_its_disk_usage(kit: WorkspaceKit) -> None:
    (kit.repository / "big").write_bytes(os.urandom(123_456))
    kit.commit()
    depot, base = kit.depot(), kit.base()
    need = tree_need(depot.reader, bytes.fromhex(base.tree))
    tree = depot.base_layers(base).tree
    listed = subprocess.run(["find", str(tree), "-mindepth", "1"], capture_output=True, check=True).stdout
    assert need.files == len(listed.splitlines())
    on_disk = int(subprocess.run(["du", "-sk", str(tree)], capture_output=True, check=True).stdout.split()[0])
    assert on_disk * 1024 * 0.9 < need.bytes < on_disk * 1024 * 1.1


def test_a_base_that_does_not_fit_leaves_no_files(kit: WorkspaceKit) -> None:
    depot, base = kit.depot(), kit.base()
    asked: list[Need] = []

    def never(place: Path, need: Need, what: str) -> None:
        asked.append(need)
        raise InfrastructureError(what, code="no_space")

    bases = Bases(kit.root, reader=depot.reader, git=depot.git, fault=no_fault, room=never)
    with pytest.raises(InfrastructureError, match="the files of the base"):
        bases.layers(base, shallow=b"")
    assert asked[0].bytes > 8 * 4096
    assert list((kit.root / "bases").iterdir()) == []
    assert depot.base_layers(base).tree.is_dir()


# --- one attempt


@pytest.mark.parametrize("driver", ["overlay", "worktree"])
def test_writes_of_an_attempt_are_limited_including_ignored_files(kit: WorkspaceKit, driver: str) -> None:
    workspace = kit.workspace(driver)
    limits = WorkspaceLimits(disk_bytes=MB, files=40)
    attempt = AttemptQuota(workspace.scan_root(), limits, before=workspace.usage())
    attempt.check()
    operate(workspace, [write("build/half", os.urandom(MB // 2)), write("half", os.urandom(MB // 3))])
    attempt.check()
    operate(workspace, [write("build/rest", os.urandom(MB // 2))])
    with pytest.raises(RefusedError, match=r"more than 1\.0 MB, ignored files included") as caught:
        attempt.check()
    assert caught.value.code == "disk"
    assert "sandbox.disk_mb" in caught.value.hint
    operate(workspace, [("remove", "build/rest"), *(write(f"build/{n}", "") for n in range(40))])
    with pytest.raises(RefusedError, match="more than 40 files"):
        attempt.check()


def test_a_look_at_far_too_much_ends_at_the_limit(kit: WorkspaceKit, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = kit.workspace("overlay")
    place = workspace.scan_root() / "build"
    for number in range(8):
        (place / f"d{number}").mkdir(parents=True)
        for name in range(250):
            (place / f"d{number}" / str(name)).touch()
    listed, scandir = list[str](), os.scandir
    monkeypatch.setattr(os, "scandir", lambda directory: listed.append(directory) or scandir(directory))
    with pytest.raises(RefusedError):
        AttemptQuota(workspace.scan_root(), WorkspaceLimits(files=10)).check()
    assert 1 <= len(listed) <= 3, "the root, what it made there, and one of the eight below that"
    listed.clear()
    AttemptQuota(workspace.scan_root(), WorkspaceLimits()).check()
    assert len(listed) >= 10


# --- a real small disk

_SMALL_DISK = """
import ctypes, os, sys, time
from pathlib import Path
libc = ctypes.CDLL(None, use_errno=True)
uid, gid = os.getuid(), os.getgid()
if libc.unshare(0x20000 if uid == 0 else 0x10020000):
    sys.exit(77)
if uid:
    open("/proc/self/setgroups", "w").write("deny")
    open("/proc/self/uid_map", "w").write(f"{uid} {uid} 1")
    open("/proc/self/gid_map", "w").write(f"{gid} {gid} 1")
root, repository, first, second = sys.argv[1:]
libc.mount(None, b"/", None, 0x44000, None)
if libc.mount(b"tmpfs", os.fsencode(root), b"tmpfs", 0, b"size=24m"):
    sys.exit(77)
from chargehand.core.errors import InfrastructureError
from chargehand.workspace.depot import Depot
from chargehand.workspace.workspace import Workspace
from chargehand.workspace.scan import WorkspaceLimits
from chargehand.workspace.bases import Bases
from chargehand.workspace.errors import no_fault
from chargehand.workspace.space import AttemptQuota, StateQuota
from chargehand.workspace.space import nobody_needs
depot = Depot.open(Path(root), repository=Path(repository))
quota = StateQuota(lambda: [Path(root)], limit=1 << 40, needed=lambda: nobody_needs)
bases = Bases(Path(root), reader=depot.reader, git=depot.git, fault=no_fault, room=quota)
old, new = depot.resolve_base(first), depot.resolve_base(second)
def full(what):
    try:
        what()
    except InfrastructureError as problem:
        assert problem.code == "no_space", problem
        return str(problem)
    raise SystemExit("not noticed")
def listed():
    return sorted(p.name for p in (Path(root) / "bases").iterdir())
bases.layers(old, shallow=b"")
leftover = Path(root) / "workspaces" / "w-dead"
leftover.mkdir(parents=True)
free = os.statvfs(root).f_bavail * os.statvfs(root).f_frsize
(leftover / "junk").write_bytes(b"x" * (free - 5_000_000))
(leftover / "state.json").touch()
said = full(lambda: bases.layers(new, shallow=b""))
assert "MB are free" in said, said
assert listed() == [old.commit], "nothing is half made"
assert leftover.exists(), "it was used within the last minute"
os.utime(leftover / "state.json", (1, 1))
bases.layers(new, shallow=b"")
assert not leftover.exists(), "what was not needed went, by itself"
assert new.commit in listed()
workspace = Workspace.create(depot, new, driver="overlay")
attempt = AttemptQuota(workspace.scan_root(), WorkspaceLimits())
attempt.check()
filler = workspace.scan_root() / "ignored.log"
try:
    with open(filler, "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 65536)
except OSError:
    pass
assert "while the agent worked" in full(attempt.check)
filler.unlink()
attempt.check()
(workspace.scan_root() / "f").write_text("it works again")
assert workspace.checkpoint("again").changed == 1
"""


def test_room_is_made_on_a_disk_that_is_really_full(kit: WorkspaceKit) -> None:
    kit.root.mkdir()
    commits = []
    for _ in range(2):
        (kit.repository / "big").write_bytes(os.urandom(3 * MB))
        commits.append(kit.commit())
    done = subprocess.run(
        [sys.executable, "-c", _SMALL_DISK, str(kit.root), str(kit.repository), *commits],
        capture_output=True,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip("no mounts here")
    assert done.returncode == 0, done.stderr.decode()


def test_resources_are_not_needed_by_default() -> None:
    assert nobody_needs(Path("/"), "base", "x", 0.0) is False
