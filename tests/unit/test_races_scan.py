"""Scans and checkpoints while the files change: they never read anything outside, and never crash.

Missions freeze everything first. These tests do not, and they swap raw files with the host's rights, which no
sandbox has.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import git
from tests.workspace_kit import FILES, WorkspaceKit

from chargehand.core.errors import ChargehandError
from chargehand.core.ports import DriverName
from chargehand.workspace.workspace import Workspace

DRIVERS: tuple[DriverName, ...] = ("overlay", "worktree")
SECONDS = 0.5
CANARY = b"canary of the host: never to be read\n"
_EXCHANGE = 2


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> DriverName:
    name: DriverName = request.param
    return name


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory like the one in the tree, but outside, on the host."""
    place = tmp_path / "outside"
    (place / "lib").mkdir(parents=True)
    for name in ("app.py", "util.py", "lib/util.py", "f"):
        (place / name).write_bytes(CANARY)
    return place


def exchange(one: Path, other: Path) -> None:
    """Swap two entries in one step, as `renameat2` with RENAME_EXCHANGE does."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), _EXCHANGE):
        raise OSError(ctypes.get_errno(), "renameat2", str(one))


def link_for_directory(root: Path, outside: Path) -> Callable[[], None]:
    """`src` is in turn a directory of files and a link out of the workspace."""
    (root / "src/lib").mkdir(parents=True, exist_ok=True)
    (root / "src/lib/util.py").write_text("agent\n")
    (root / "src/f").write_text("agent\n")
    os.symlink(outside, root / "link")
    return lambda: exchange(root / "src", root / "link")


def link_for_file(root: Path, outside: Path) -> Callable[[], None]:
    """`f` is in turn a file and a link out of the workspace, each put in place by a rename over the other."""

    def swap() -> None:
        (root / "f.new").write_text("agent\n")
        os.replace(root / "f.new", root / "f")
        os.symlink(outside / "f", root / "f.new")
        os.replace(root / "f.new", root / "f")

    return swap


def _make_file(place: Path) -> None:
    """Make a file, without ever blocking at a fifo that another thread made there meanwhile."""
    fd = os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.write(fd, b"agent\n")
    os.close(fd)


def kinds_in_turn(root: Path, outside: Path) -> Callable[[], None]:
    """`f` is nothing, a file, a link, a fifo and a directory in turn; so is the path of the tree's submodule."""

    def swap() -> None:
        for name in ("f", "README.md", "module"):
            place = root / name
            for make in (
                _make_file,
                lambda place: os.symlink(outside / "f", place),
                lambda place: os.mkfifo(place),
                lambda place: place.mkdir(),
                lambda place: os.symlink("README.md", place),
            ):
                remove(place)
                make(place)

    return swap


def directories_in_turn(root: Path, outside: Path) -> Callable[[], None]:
    """Two directories with different content, depth and names take each other's place."""
    for name in ("src", "other"):
        (root / name / name).mkdir(parents=True, exist_ok=True)
        for number in range(20):
            (root / name / name / f"{name}{number}").write_text(f"{name}\n")

    def swap() -> None:
        exchange(root / "src", root / "other")
        shutil.rmtree(root / "grown", ignore_errors=True)
        (root / "grown/deep").mkdir(parents=True)
        os.symlink(outside, root / "grown/deep/out")

    return swap


def growing(root: Path, outside: Path) -> Callable[[], None]:
    """A file grows, shrinks and is overwritten while it is read."""
    place = root / "big"

    def swap() -> None:
        place.write_bytes(b"a" * 300_000)
        with place.open("r+b") as file:
            file.truncate(10)
            file.write(b"b" * 100)

    return swap


def remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        place.rmdir()
    else:
        place.unlink(missing_ok=True)


@contextmanager
def under_load(swap: Callable[[], None], *, threads: int = 2) -> Iterator[list[int]]:
    """Swap as fast as possible while the block runs; yield the number of swaps, which must not be zero."""
    stop = threading.Event()
    done = [0]

    def work() -> None:
        while not stop.is_set():
            with suppress(OSError):  # two threads that swap obstruct each other
                swap()
                done[0] += 1

    workers = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    try:
        yield done
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    assert done[0] > 0


@pytest.mark.parametrize(
    "race",
    [link_for_directory, link_for_file, kinds_in_turn, directories_in_turn, growing],
    ids=lambda f: f.__name__,
)
def test_concurrent_changes_never_make_a_scan_fail_or_read_outside_files(
    tmp_path: Path, outside: Path, driver: DriverName, race: Callable[[Path, Path], Callable[[], None]]
) -> None:
    kit = WorkspaceKit(tmp_path / "crashes")
    with_submodule(kit)
    depot = kit.depot()
    workspace = kit.workspace(driver)
    root = workspace.scan_root()
    looks = 0
    with under_load(race(root, outside)):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end or looks < 3:
            look(workspace, number=looks)
            looks += 1
    settle(root)
    calm = workspace.scan(trust_cache=False)
    assert workspace.scan(trust_cache=False).tree == calm.tree
    assert {change.path for change in calm.changes} <= {"settled", "src/f", "src/lib/util.py"} | set(grown(root))
    assert depot.lookup(calm.tree, "settled") is not None
    assert workspace.checkpoint("calm").tree == calm.tree
    assert canaries(kit) == []


_SWAPPER = """
import os, sys
target, count = sys.argv[1], 40
while True:
    for number in range(count):
        fresh, place = f"new{number}", f"f{number}"
        with open(fresh, "w") as file:
            file.write("agent\\n")
        os.replace(fresh, place)
        os.symlink(target, fresh)
        os.replace(fresh, place)
    for name in ("module", "README.md"):
        try:
            os.path.islink(name) and os.unlink(name)
            os.mkdir(name)
            os.rmdir(name)
            os.symlink(target, name)
        except OSError:
            pass
"""


def test_links_and_files_swapped_by_another_process(tmp_path: Path, outside: Path, driver: DriverName) -> None:
    kit = WorkspaceKit(tmp_path / "crashes")
    with_submodule(kit)
    workspace = kit.workspace(driver)
    root = workspace.scan_root()
    words = [sys.executable, "-I", "-S", "-c", _SWAPPER, str(outside / "f")]
    with subprocess.Popen(words, cwd=root) as swapper:
        try:
            wait_for(root / "f39")
            end, looks = time.monotonic() + 2 * SECONDS, 0
            while time.monotonic() < end or looks < 3:
                look(workspace, number=looks)
                looks += 1
            assert swapper.poll() is None
        finally:
            swapper.kill()
    settle(root)
    found = workspace.scan(trust_cache=False)
    links = {finding.path for finding in found.findings if finding.rule == "entry_link_out"}
    kept = {change.path for change in found.changes if change.kind == "added"}
    for number in range(40):
        assert (f"f{number}" in links) == (root / f"f{number}").is_symlink()
        assert (f"f{number}" in kept) == (not (root / f"f{number}").is_symlink())
    assert canaries(kit) == []


def wait_for(place: Path) -> None:
    end = time.monotonic() + 60
    while not os.path.lexists(place):
        assert time.monotonic() < end
        time.sleep(0.01)


def with_submodule(kit: WorkspaceKit) -> None:
    git(kit.repository, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},module")
    git(kit.repository, "commit", "-q", "-m", "module")


def look(workspace: Workspace, *, number: int) -> None:
    """Scan or checkpoint once; an error of the product is acceptable, any other one is a defect."""
    with suppress(ChargehandError):
        if number % 3 == 2:
            workspace.checkpoint(f"under load {number}")
        else:
            workspace.scan(trust_cache=bool(number % 2))


def settle(root: Path) -> None:
    """Leave only entries that every driver reports in the same way: no link out, no fifo."""
    for name in ("f", "f.new", "link", "big", "other", "grown"):
        place = root / name
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
    for name in ("src", "README.md", "module"):
        place = root / name
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            place.unlink()
    (root / "settled").write_text("settled\n")


def grown(root: Path) -> list[str]:
    """Return all paths that may differ from the base after the swapping."""
    own = [str(path.relative_to(root)) for path in root.rglob("*") if ".git" not in path.parts]
    return [*own, *FILES, "module"]


def canaries(kit: WorkspaceKit) -> list[str]:
    """Return the objects of the depot, including unreachable ones, that contain the host's content."""
    every = (
        kit.depot()
        .git("cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype)", "--unordered")
        .text
    )
    blobs = [line.split()[0] for line in every.splitlines() if line.endswith(" blob")]
    return [blob for blob in blobs if CANARY[:20] in kit.depot().read_blob(blob)]


def test_the_canary_search_finds_a_leaked_file(tmp_path: Path) -> None:
    """The control: a blob with the host's content would be found."""
    kit = WorkspaceKit(tmp_path)
    workspace = kit.workspace("overlay")
    (workspace.scan_root() / "leak").write_bytes(CANARY)
    workspace.scan()
    assert len(canaries(kit)) == 1


@pytest.mark.parametrize("made", ["nothing", "file", "link", "directory", "fifo"])
@pytest.mark.parametrize("there", ["file", "link", "directory", "module"])
def test_replaced_between_two_looks(
    tmp_path: Path, outside: Path, driver: DriverName, there: str, made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one moment that load rarely hits: after the kind is known and before the content is read."""
    kit = WorkspaceKit(tmp_path / "crashes")
    with_submodule(kit)
    workspace = kit.workspace(driver)
    place = workspace.scan_root() / ("module" if there == "module" else "turn")
    make = {
        "nothing": lambda: None,
        "file": lambda: place.write_text("x"),
        "link": lambda: os.symlink(outside, place),
        "directory": place.mkdir,
        "fifo": lambda: os.mkfifo(place),
    }
    remove(place)
    make["directory" if there == "module" else there]()
    real = os.stat

    def look_and_replace(name: str | bytes | int, **options: Any) -> os.stat_result:
        info = real(name, **options)
        if name == os.fsencode(place.name) and "dir_fd" in options:
            remove(place)
            make[made]()
        return info

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", look_and_replace)
        workspace.scan()
    assert canaries(kit) == []
    remove(place)
    gone = ["module"] if (there, driver) == ("module", "worktree") else []
    expected = kit.depot().replace_paths(kit.base().tree, gone, "4b825dc642cb6eb9a060e54bf8d69288fbee4904")
    assert workspace.scan(trust_cache=False).tree == expected
