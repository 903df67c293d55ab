"""The promises of a watcher over a plain directory and a mounted overlay, with a real agent at work."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.conftest import git
from tests.workspace_kit import WorkspaceKit, agent, changed, operate

from chargehand.core.errors import InfrastructureError
from chargehand.core.ports import DriverName
from chargehand.workspace.file_events import Batch, FileEvent, Gap
from chargehand.workspace.watch import Watcher
from chargehand.workspace.watching import inotify as _watch_inotify
from chargehand.workspace.workspace import Workspace

DRIVERS: tuple[DriverName, ...] = ("overlay", "worktree")
PYTHON = "python3 -c '{}'"


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> DriverName:
    name: DriverName = request.param
    return name


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> WorkspaceKit:
    return WorkspaceKit(tmp_path_factory.mktemp("kit"))


def silent() -> None:
    """Do nothing when events are waiting."""


@contextmanager
def watching(kit: WorkspaceKit, workspace: Workspace, **options: object) -> Iterator[Watcher]:
    with Watcher.open(kit.depot(), workspace, on_ready=silent, **options) as watcher:
        yield watcher


def taken(watcher: Watcher) -> Batch:
    assert watcher.sync(seconds=120)
    return watcher.take()


def seen(batch: Batch) -> list[tuple[str, str]]:
    return [(e.kind, e.path) if isinstance(e, FileEvent) else ("gap", e.reason) for e in batch.events]


def told(kit: WorkspaceKit, workspace: Workspace, script: str) -> list[tuple[str, str]]:
    with watching(kit, workspace) as watcher:
        agent(workspace, script)
        return seen(taken(watcher))


def until(met: Callable[[], bool], seconds: float = 120.0) -> None:
    limit = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < limit
        time.sleep(0.01)


def without_new(events: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Leave out the gaps of new directories: their number depends on how soon each was watched.

    A file in a new directory may be found between its creation and its first write, which is then reported too.
    """
    found = {path for kind, path in events if kind == "created" and "/" in path}
    left_out = {("gap", "new_directory"), *(("modified", path) for path in found)}
    return [event for event in events if event not in left_out]


SCRIPTS = {
    "create, edit three times, revert, delete": (
        "echo 1 > f; echo 2 >> f; echo 3 >> f; echo 4 >> f; echo 1 > f; rm f",
        [("created", "f"), *[("modified", "f")] * 4, ("deleted", "f")],
    ),
    "edit a file of the base": (
        "echo more >> README.md; echo hello > README.md",
        [("modified", "README.md"), ("modified", "README.md")],
    ),
    "delete, make again, delete": (
        "rm README.md; echo again > README.md; rm README.md",
        [("deleted", "README.md"), ("created", "README.md"), ("deleted", "README.md")],
    ),
    "mode": ("chmod +x README.md", [("touched", "README.md")]),
    "rename": ("mv README.md R", [("renamed_from", "README.md"), ("renamed_to", "R")]),
    "replace by a rename": (
        "echo a > t; mv t README.md",
        [("created", "t"), ("renamed_from", "t"), ("renamed_to", "README.md")],
    ),
    "opened for writing only": ("exec 3<>README.md; exec 3>&-", [("touched", "README.md")]),
    "emptied": (": > README.md", [("modified", "README.md")]),
    "links": ("ln -s x l; rm l", [("created", "l"), ("deleted", "l")]),
    "renamed out of sight": ("echo x > f; mv f f.log", [("created", "f"), ("renamed_from", "f")]),
    "renamed into sight": ("echo x > f.log; mv f.log f", [("renamed_to", "f")]),
    "nothing": ("cat README.md src/app.py; ls -R", []),
}


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_reported_events_match_the_changes(kit: WorkspaceKit, driver: DriverName, name: str) -> None:
    script, expected = SCRIPTS[name]
    # A file that is replaced before the watcher looks is reported by its result: a busy machine may do that once.
    seen = [told(kit, kit.workspace(driver), script)]
    while seen[-1] != expected and len(seen) < 4:
        seen.append(told(kit, kit.workspace(driver), script))
    assert seen[-1] == expected, seen


def test_a_new_directory_is_looked_at_and_followed(kit: WorkspaceKit, driver: DriverName) -> None:
    workspace = kit.workspace(driver)
    with watching(kit, workspace) as watcher:
        agent(workspace, "mkdir -p a/b; echo 1 > a/b/f")
        assert without_new(seen(taken(watcher))) == [("created", "a/b/f")]
        agent(workspace, "mv a c; echo 2 > c/b/f; mv c/b/f c/b/g; rm -r c")
        assert seen(taken(watcher)) == [
            ("renamed_from", "a/"),
            ("renamed_to", "c/"),
            ("modified", "c/b/f"),
            ("renamed_from", "c/b/f"),
            ("renamed_to", "c/b/g"),
            ("deleted", "c/b/g"),
        ]


@pytest.mark.parametrize(
    "script",
    [
        "rm -r docs; mkdir docs; echo c > docs/c.md",
        "rm -r docs; ln -s src docs",
        "rm -r src; echo x > src",
        "rm README.md; mkdir README.md; echo x > README.md/f",
        "mv docs docs2; mkdir docs; echo n > docs/a.md",
        "mv src/lib src/moved; rm src/moved/util.py",
        "rm -rf src/lib/deep; mkdir -p src/lib/deep/deeper; echo x > src/lib/deep/deeper/x",
        "mv run.sh src/run.sh; cp -r docs copy; rm -r copy",
        "git mv docs/a.md docs/z.md; git rm -q docs/b.md; git commit -qm x; git stash list",
    ],
)
def test_every_changed_path_is_reported(kit: WorkspaceKit, driver: DriverName, script: str) -> None:
    workspace = kit.workspace(driver)
    events = told(kit, workspace, script)
    paths = {path for _, path in events}
    parents = tuple(path for path in paths if path.endswith("/"))
    assert [path for path in changed(workspace) if path not in paths and not path.startswith(parents)] == []
    assert not [path for path in paths if path.startswith(".git/")]


def test_recreated_directories_are_reported(tmp_path: Path, driver: DriverName) -> None:
    files = {f"{number}/{name}.md": "x\n" for number in range(60) for name in "ab"}
    kit = WorkspaceKit(tmp_path, files)
    workspace = kit.workspace(driver)
    events = told(kit, workspace, "for d in *; do mv $d moved-$d; mkdir $d; echo n > $d/a.md; done")
    paths = {path for _, path in events}
    parents = tuple(path for path in paths if path.endswith("/"))
    assert [path for path in changed(workspace) if path not in paths and not path.startswith(parents)] == []


def test_ignored_paths_are_counted_and_tracked_paths_among_them_reported(
    tmp_path: Path, driver: DriverName
) -> None:
    kit = WorkspaceKit(tmp_path)
    (kit.repository / "build").mkdir()
    (kit.repository / "build/kept.txt").write_text("kept\n")
    git(kit.repository, "add", "-f", "build/kept.txt")
    kit.commit()
    workspace = kit.workspace(driver, include=("build/out/*.txt",))
    with watching(kit, workspace) as watcher:
        agent(
            workspace,
            "echo x > a.log; echo x > keep.log; mkdir -p build/x build/out vendor/v; echo y > build/x/y;"
            "echo z > vendor/v/z; echo more >> build/kept.txt; echo o > build/out/a.txt; echo o > build/out/b.bin",
        )
        batch = taken(watcher)
        assert set(without_new(seen(batch))) == {
            ("created", "keep.log"),
            ("modified", "build/kept.txt"),
            ("created", "build/out/a.txt"),
        }
        assert batch.ignored >= 4
        agent(workspace, "mv vendor/v shown; echo 1 > shown/a")
        assert {("created", "shown/z"), ("created", "shown/a")} <= set(seen(taken(watcher)))


def test_names_that_are_hostile_come_through(kit: WorkspaceKit, driver: DriverName) -> None:
    workspace = kit.workspace(driver)
    names = [b"new\nline", b"not\xffutf8", b"\x1b[31mred", "ü".encode(), b"-rf", b" "]
    with watching(kit, workspace) as watcher:
        operate(workspace, [("write", os.fsdecode(name), "78") for name in names])
        assert seen(taken(watcher)) == [("created", os.fsdecode(name)) for name in names]


def test_a_directory_that_became_a_link_leads_nowhere(
    kit: WorkspaceKit, driver: DriverName, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    (outside / "in").mkdir(parents=True)
    workspace = kit.workspace(driver)
    with watching(kit, workspace) as watcher:
        agent(workspace, f"mkdir -p d/in; rm -r d; ln -s {outside} d")
        taken(watcher)
        (outside / "in/secret").write_text("x")
        (outside / "secret").write_text("x")
        assert seen(taken(watcher)) == []


# Prints every file that it ever made. A shell, which starts a program for each step, would be too slow.
FLEETING = """
import os, random, time
made, chance = [], random.Random({seed})
def make(path):
    with open(path, "x") as file:
        file.write("x")
    made.append(path)
def tree(i):
    os.makedirs(f"n{{i}}/e/g")
    return f"n{{i}}/e/g/f"
for i in range({count}):
    {act}
print("\\n".join(made))
"""
ACTS = {
    "at once": 'os.mkdir(f"n{i}"); make(f"n{i}/f"); os.unlink(f"n{i}/f")',
    "three levels deep": "path = tree(i); make(path); os.unlink(path); time.sleep(0.01)",
    "three levels deep, slower": "path = tree(i); make(path); time.sleep(0.01); os.unlink(path)",
    "gone with its directory": 'os.mkdir("n"); make(f"n/{i}"); os.unlink(f"n/{i}"); os.rmdir("n")',
    "in a directory of the base": 'make(f"b{i}/f"); os.unlink(f"b{i}/f")',
    "below one of the base": 'os.mkdir(f"b{i}/e"); make(f"b{i}/e/f"); os.unlink(f"b{i}/e/f"); os.rmdir(f"b{i}/e")',
    "beside a change": 'open(f"b{i}/kept", "a").write("x"); make(f"b{i}/f"); os.unlink(f"b{i}/f")',
    "renamed and gone": 'os.mkdir(f"n{i}"); make(f"n{i}/f"); os.rename(f"n{i}/f", f"n{i}g"); os.unlink(f"n{i}g")',
}


def unexplained(batch: Batch, made: list[str]) -> list[str]:
    """Return the files that no event and no gap of a directory above them reports."""
    told = {event.path for event in batch.events if isinstance(event, FileEvent)}
    gaps = tuple(event.path for event in batch.events if isinstance(event, Gap))
    return [path for path in made if path not in told and not path.startswith(gaps)]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> WorkspaceKit:
    return WorkspaceKit(tmp_path_factory.mktemp("wide"), {f"b{i}/kept": "x\n" for i in range(200)})


@pytest.mark.parametrize("name", ACTS)
def test_short_lived_files_in_unwatched_directories_are_reported_as_gaps(
    wide: WorkspaceKit, driver: DriverName, name: str
) -> None:
    workspace = wide.workspace(driver)
    count = 60 if "deep" in name else 200
    with watching(wide, workspace) as watcher:
        made = agent(workspace, PYTHON.format(FLEETING.format(seed=0, count=count, act=ACTS[name]))).split()
        batch = taken(watcher)
    assert len(made) == count
    assert unexplained(batch, made) == []
    # The last event of each file says that it is gone.
    assert {path for path, kind in last_words(batch).items() if kind not in ("deleted", "renamed_from")} <= {
        f"b{i}/kept" for i in range(count)
    }


def last_words(batch: Batch) -> dict[str, str]:
    return {event.path: event.kind for event in batch.events if isinstance(event, FileEvent)}


WANDER = """
    place = "/".join(chance.choice("ab") for _ in range(chance.randint(1, 3)))
    try:
        there = [name for name in os.listdir(place) if name not in "ab"] if os.path.isdir(place) else []
        some = chance.choice(there or ["none"])
        match chance.randint(0, 5):
            case 0 | 1: os.makedirs(place, exist_ok=True)
            case 2: make(f"{place}/{i}")
            case 3: os.unlink(f"{place}/{some}")
            case 4: os.rename(f"{place}/{some}", f"{place}/m{i}")
            case 5: __import__("shutil").rmtree(place)
    except OSError:
        pass
    time.sleep(chance.choice([0, 0, 0, 0, 0, 0.003]))
"""


@pytest.mark.parametrize("seed", range(4))
def test_random_changes_are_reported_and_the_last_events_are_correct(
    wide: WorkspaceKit, driver: DriverName, seed: int
) -> None:
    workspace = wide.workspace(driver)
    with watching(wide, workspace) as watcher:
        script = FLEETING.format(seed=seed, count=600, act=WANDER)
        made = agent(workspace, PYTHON.format(script)).split()
        batch = taken(watcher)
    assert unexplained(batch, made) == []
    there = {path for path, kind in last_words(batch).items() if kind not in ("deleted", "renamed_from")}
    assert there == set(changed(workspace))


BURST = PYTHON.format(
    "import os\n"
    "for i in range(5000):\n"
    '    os.makedirs(f"m/{i // 500}", exist_ok=True)\n'
    '    open(f"m/{i // 500}/{i}", "w").write("x")'
)


@pytest.mark.alone
def test_a_burst_of_5000_files_is_complete_and_small(kit: WorkspaceKit, driver: DriverName) -> None:
    workspace = kit.workspace(driver)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with watching(kit, workspace) as watcher:
        agent(workspace, BURST)
        batch = taken(watcher)
    events = without_new(seen(batch))
    kinds = [kind for kind, _ in events if kind != "modified"]  # a half-written file is reported again at its end
    assert kinds == ["created"] * 5000
    assert {path for _, path in events} == {f"m/{i // 500}/{i}" for i in range(5000)}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024


def _steadily(kit: WorkspaceKit, driver: DriverName, seconds: int) -> None:
    workspace = kit.workspace(driver)
    script = PYTHON.format(
        f"import time\nfor i in range({seconds * 100}):\n"
        '    open(f"f{i % 300}", "a").write("x")\n    time.sleep(0.009)'
    )
    with watching(kit, workspace) as watcher:
        agent(workspace, script)
        events = seen(taken(watcher))
    assert len(events) == seconds * 100
    assert [path for _, path in events] == [f"f{i % 300}" for i in range(seconds * 100)]


def test_a_hundred_changes_each_second(kit: WorkspaceKit) -> None:
    _steadily(kit, "overlay", 3)


@pytest.mark.soak
@pytest.mark.parametrize("kind", DRIVERS)
def test_a_hundred_changes_each_second_for_a_minute(kit: WorkspaceKit, kind: DriverName) -> None:
    _steadily(kit, kind, 60)


def test_a_reader_that_is_slow_gets_a_gap_and_then_all_that_differs(kit: WorkspaceKit, driver: DriverName) -> None:
    workspace = kit.workspace(driver)
    with watching(kit, workspace, waiting=20) as watcher:
        agent(workspace, "for i in $(seq 60); do echo $i > f$i; done; rm README.md; echo x >> src/app.py")
        events = collected(watcher)
        assert ("gap", "slow_reader") in events
        gap = events.index(("gap", "slow_reader"))
        assert gap == 20
        assert {f"f{i}" for i in range(1, 61)} <= {path for _, path in events}
        assert {("deleted", "README.md"), ("modified", "src/app.py")} <= set(events[gap:])
        agent(workspace, "echo after > after")
        assert seen(taken(watcher)) == [("created", "after")]


def collected(watcher: Watcher) -> list[tuple[str, str]]:
    """Take events until no more come and no gap is left to report."""
    events: list[tuple[str, str]] = []
    quiet = 0
    limit = time.monotonic() + 120
    while quiet < 3 or not watcher.complete:
        assert time.monotonic() < limit
        watcher.sync()
        batch = watcher.take()
        events += seen(batch)
        quiet = 0 if batch.events else quiet + 1
        time.sleep(0.02)
    return events


def test_changes_lost_in_an_overflow_are_found_by_a_rescan(
    kit: WorkspaceKit, driver: DriverName, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = kit.workspace(driver)
    held = threading.Event()
    read = _watch_inotify.Inotify.read

    def late(self: _watch_inotify.Inotify) -> list[_watch_inotify.Raw]:
        held.wait()
        return read(self)

    monkeypatch.setattr(_watch_inotify.Inotify, "read", late)
    queue = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    count = queue // 3 + 500
    with watching(kit, workspace) as watcher:
        agent(workspace, PYTHON.format(f'for i in range({count}):\n    open(f"f{{i}}", "w").write("x")'))
        agent(workspace, "rm docs/a.md; echo x >> run.sh")
        held.set()
        events = collected(watcher)
    assert ("gap", "overflow") in events
    after = events[events.index(("gap", "overflow")) :]
    assert {path for _, path in events} >= {f"f{i}" for i in range(count)}
    assert {("deleted", "docs/a.md"), ("modified", "run.sh")} <= set(after)


def test_directories_without_a_watch_are_a_gap_and_looked_at(
    kit: WorkspaceKit, driver: DriverName, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = kit.workspace(driver)
    watch, given = _watch_inotify.Inotify.watch, []

    def few(self: _watch_inotify.Inotify, directory: int) -> int:
        if given:
            raise OSError(28, "no watch is left")
        given.append(directory)
        return watch(self, directory)

    monkeypatch.setattr(_watch_inotify.Inotify, "watch", few)
    with watching(kit, workspace, blind_seconds=0.05) as watcher:
        agent(workspace, "mkdir -p new; echo 1 > new/f; echo x >> src/lib/util.py")
        events: list[tuple[str, str]] = []

        def found(*wanted: tuple[str, str]) -> bool:
            events.extend(seen(watcher.take()))
            return set(wanted) <= set(events)

        until(lambda: found(("gap", "watches"), ("created", "new/f"), ("modified", "src/lib/util.py")))
        agent(workspace, "echo 2 >> new/f; rm src/app.py")
        until(lambda: found(("modified", "new/f"), ("deleted", "src/app.py")))
        assert events.count(("gap", "watches")) == 1


def test_two_workspaces_never_mix(kit: WorkspaceKit, driver: DriverName) -> None:
    first, second = kit.workspace(driver), kit.workspace(driver)
    with watching(kit, first) as one, watching(kit, second) as two:
        threads = [
            threading.Thread(target=agent, args=(place, f"for i in $(seq 100); do echo > {name}$i; done"))
            for place, name in ((first, "a"), (second, "b"))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {path[0] for _, path in seen(taken(one))} == {"a"}
        assert {path[0] for _, path in seen(taken(two))} == {"b"}


def test_a_closed_watcher_leaves_no_threads_or_open_files(kit: WorkspaceKit, driver: DriverName) -> None:
    workspace = kit.workspace(driver)
    before, threads = sorted(os.listdir("/proc/self/fd")), threading.active_count()
    with watching(kit, workspace) as watcher:
        agent(workspace, "mkdir -p a/b/c; echo x > a/b/c/d; echo y > last")
    assert ("created", "last") in seen(watcher.take())
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert threading.active_count() == threads
    watcher.close()
    assert not watcher.sync(seconds=0.1)


def test_no_instance_left_is_an_error_with_a_way_out(kit: WorkspaceKit, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = kit.workspace("overlay")
    code = (
        "import ctypes, errno, os\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "while libc.inotify_init1(0) >= 0: pass\n"
        "assert ctypes.get_errno() == errno.EMFILE\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)  # the kernel's real answer

    def none(self: _watch_inotify.Inotify) -> None:
        raise OSError(24, os.strerror(24))

    monkeypatch.setattr(_watch_inotify.Inotify, "__init__", none)
    with pytest.raises(InfrastructureError) as caught:
        Watcher.open(kit.depot(), workspace, on_ready=silent)
    assert caught.value.code == "no_watcher"
    assert "max_user_instances" in (caught.value.hint or "")


def test_the_reader_is_notified_once_until_events_are_taken(kit: WorkspaceKit) -> None:
    workspace, calls = kit.workspace("worktree"), []
    with Watcher.open(kit.depot(), workspace, on_ready=lambda: calls.append(1)) as watcher:
        root = workspace.scan_root()
        for name in ("a", "b"):
            (root / name).write_text("x")
            watcher.sync()
        assert calls == [1]
        watcher.take()
        (root / "c").write_text("x")
        watcher.sync()
        assert calls == [1, 1]


def test_a_gap_is_never_the_first_word_of_a_quiet_workspace(kit: WorkspaceKit, driver: DriverName) -> None:
    workspace = kit.workspace(driver)
    agent(workspace, "echo x > before; rm docs/a.md; mkdir d; echo y > d/e")
    with watching(kit, workspace) as watcher:
        assert not taken(watcher)
        agent(workspace, "echo again > docs/a.md; echo z >> d/e; rm before")
        assert seen(taken(watcher)) == [("created", "docs/a.md"), ("modified", "d/e"), ("deleted", "before")]
        assert not any(isinstance(event, Gap) for event in watcher.take().events)
