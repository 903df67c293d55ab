"""What `gc` removes and never removes, and a dry run that reports the same."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.workspace_kit import WorkspaceKit, operate, write

from chargehand.workspace.environment import EnvironmentLayers
from chargehand.workspace.space import ProjectGc, depot_bytes, gc, list_items, total_bytes
from chargehand.workspace.workspace import Workspace, discard_workspaces

NEVER = 10**12


def collect(kit: WorkspaceKit, *, keep: set[str] | None = None, **rules: Any) -> ProjectGc:
    """Collect as if everything had been used long ago."""
    kept = keep or set()
    options = {"max_age": 1, "shared_age": 1, "now": NEVER, **rules}
    return gc([kit.root], needed=lambda root, kind, name, used: name in kept, **options).projects[0]


def named(project: ProjectGc) -> tuple[tuple[str, ...], ...]:
    return (project.workspaces, project.bases, project.layers, project.litter, project.refs)


def on_disk(kit: WorkspaceKit) -> int:
    """Return the size of everything except the depot, as `du` counts."""
    places = [str(kit.root / name) for name in ("bases", "layers", "workspaces") if (kit.root / name).exists()]
    return int(subprocess.run(["du", "-sck", *places], capture_output=True, check=True).stdout.split()[-2]) * 1024


def taken_by(place: Path) -> int:
    """Return the size of a directory's content, as `du` counts."""
    counted = subprocess.run(["du", "-s", "--block-size=1", str(place)], capture_output=True, check=True).stdout
    return int(counted.split()[0]) - place.stat().st_blocks * 512


def used_at(place: Path, when: float) -> None:
    """Set the time of the last use."""
    for name in ("state.json", "meta.json"):
        if (place / name).exists():
            os.utime(place / name, (when, when))


def test_a_dry_run_reports_exactly_the_removed_items(kit: WorkspaceKit) -> None:
    workspace = kit.workspace("overlay")
    operate(workspace, [write("ignored.log", os.urandom(300_000))])
    (kit.root / "workspaces" / ".trash-x").mkdir()
    (kit.root / "workspaces" / ".trash-x" / "big").write_bytes(os.urandom(100_000))
    told = collect(kit, dry_run=True)
    assert (told.workspaces, told.bases) == ((workspace.id,), (workspace.base.commit,))
    assert told.litter == (".trash-x",)
    assert [change.path for change in workspace.scan().changes] == []
    before = on_disk(kit)
    done = collect(kit)
    assert (named(done), done.bytes) == (named(told), told.bytes)
    assert not workspace.directory.exists()
    # `du` also counts the directories themselves and the small records.
    assert abs(before - on_disk(kit) - done.bytes) < 40_000
    assert done.bytes > 400_000


def test_needed_and_recent_items_are_kept(kit: WorkspaceKit) -> None:
    workspace = kit.workspace("overlay")
    assert collect(kit, keep={workspace.id}).bases == ()
    young = {"now": None, "max_age": 3600, "shared_age": 3600}
    assert collect(kit, **young).workspaces == ()
    assert workspace.scan().changes == ()
    workspace.discard()
    assert collect(kit, **young).bases == ()
    assert collect(kit, keep={workspace.base.commit}).bases == ()
    assert collect(kit).bases == (workspace.base.commit,)
    assert kit.workspace("overlay").scan().changes == (), "what was removed is made again"


def test_the_size_limit_keeps_items_used_within_the_last_minute(kit: WorkspaceKit) -> None:
    workspace = kit.workspace("overlay")
    assert named(collect(kit, now=None, max_bytes=0)) == ((), (), (), (), ())
    used_at(workspace.directory, time.time() - 120)
    assert collect(kit, now=None, max_age=9e9, max_bytes=0).workspaces == (workspace.id,)


def test_a_base_taken_into_use_or_locked_during_collection_is_kept(kit: WorkspaceKit) -> None:
    workspace = kit.workspace("overlay")
    kit.workspace("overlay").discard()
    base = workspace.base.commit
    workspace.discard()

    def used_now(root: Path, kind: str, name: str, used: float) -> bool:
        kit.depot().base_layers(workspace.base)
        return False

    used_at(kit.root / "bases" / base, 1000.0)
    assert gc([kit.root], needed=used_now, shared_age=1).projects[0].bases == ()
    with (kit.depot().root / "locks" / f"base-{base}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        used_at(kit.root / "bases" / base, 1000.0)
        assert collect(kit).bases == (), "and what is held is not waited for"
    assert collect(kit).bases == (base,)


def test_the_least_recently_used_workspaces_are_removed_until_below_the_limit(kit: WorkspaceKit) -> None:
    made = []
    for number in range(3):
        workspace = kit.workspace("overlay")
        operate(workspace, [write("ignored.log", os.urandom(500_000))])
        used_at(workspace.directory, 5000.0 + [2, 0, 1][number])
        made.append(workspace)
    quiet = {"now": 10_000.0, "max_age": 9e9, "shared_age": 9e9, "pack": False}
    taken = gc([kit.root], dry_run=True, **quiet).taken
    told = collect(kit, max_bytes=taken - 600_000, dry_run=True, **quiet)
    done = collect(kit, max_bytes=taken - 600_000, **quiet)
    assert set(done.workspaces) == {made[1].id, made[2].id}
    assert (done.workspaces, done.bytes) == (told.workspaces, told.bytes)
    assert done.bases == ()
    assert gc([kit.root], dry_run=True, **quiet).taken == taken - done.bytes
    assert collect(kit, max_bytes=0, keep={made[0].id}, **quiet).workspaces == ()
    last = collect(kit, max_bytes=0, **quiet)
    assert last.workspaces == (made[0].id,)
    assert last.bases == (), "it was used within the last minute of that clock"


def test_workspaces_of_unknown_need_are_removed_only_by_age(kit: WorkspaceKit) -> None:
    workspace = kit.workspace("overlay")
    used_at(workspace.directory, 5000.0)
    unknown = {"needed": lambda *thing: None, "now": 10_000.0, "max_bytes": 0}
    assert gc([kit.root], max_age=6000, **unknown).projects[0].workspaces == ()
    assert gc([kit.root], max_age=4000, **unknown).projects[0].workspaces == (workspace.id,)


def test_the_size_of_a_base_is_remembered_and_its_packs_count_once(kit: WorkspaceKit) -> None:
    first = kit.workspace("overlay").base
    (kit.repository / "more").write_bytes(os.urandom(200_000))
    kit.commit()
    second = kit.workspace("overlay").base
    pair = {each.name: each for each in list_items(kit.root) if each.kind == "base"}
    linked = set(pair[first.commit].shared) & set(pair[second.commit].shared)
    files = (str(kit.root), first.commit)
    assert files in linked, "the files that both have"
    for base in (first, second):
        place = kit.root / "bases" / base.commit
        assert pair[base.commit].bytes == 0, "all of it may be another's too"
        # The later base may not have every file that it links: those count with the base that brought them.
        spare = 0 if base == first else pair[second.commit].shared[files]
        assert -8192 <= sum(pair[base.commit].shared.values()) - taken_by(place) <= spare + 8192
        meta = json.loads((place / "meta.json").read_bytes())
        meta |= {"disk": 12345, "linked": dict.fromkeys(meta["linked"], 12345)}
        (place / "meta.json").write_text(json.dumps(meta))
    again = [each for each in list_items(kit.root) if each.kind == "base"]
    noted = [size for each in again for key, size in each.shared.items() if isinstance(key[0], str)]
    assert noted == [12345] * 3, "nothing is measured twice"
    every = {key: size for each in again for key, size in each.shared.items()}
    assert total_bytes(again) == sum(every.values())
    alone = total_bytes(again) - total_bytes([each for each in again if each.name == second.commit])
    for place in (kit.root / "workspaces").iterdir():
        shutil.rmtree(place)
    gone = collect(kit, keep={second.commit})
    assert (gone.bases, gone.bytes) == ((first.commit,), alone), "what the other links is not freed"


def test_objects_shared_with_the_repository_are_not_counted(kit: WorkspaceKit) -> None:
    (kit.repository / "big").write_bytes(os.urandom(1_000_000))
    kit.commit()
    kit.depot()
    shared = any(file.stat().st_nlink > 1 for file in (kit.root / "depot.git" / "objects").rglob("*"))
    assert shared
    assert depot_bytes(kit.root) < 500_000 < taken_by(kit.root / "depot.git")


def test_layers_live_as_long_as_a_workspace_on_them(kit: WorkspaceKit) -> None:
    setup = kit.workspace("overlay")
    operate(setup, [write(".venv/x", "x")])
    layer = EnvironmentLayers(kit.depot()).freeze(setup, "key").path
    user = kit.workspace("overlay", environment=layer)
    assert collect(kit, keep={user.id}).layers == ()
    assert collect(kit).layers == ("key",)
    assert not layer.exists()


def test_of_a_check_only_caches_are_kept_and_as_long_as_a_workspace_is_on_them(kit: WorkspaceKit) -> None:
    for path in ("Cargo.toml", "crates/a/Cargo.toml", "crates/a/target/tracked"):
        (kit.repository / path).parent.mkdir(parents=True, exist_ok=True)
        (kit.repository / path).write_text("x\n")
    kit.commit()
    layers, key = EnvironmentLayers(kit.depot()), "caches"
    checked = kit.workspace("overlay")
    kept = (
        ".chargehand/cache/go-build/00/x",
        "target/debug/deps/x",
        "crates/a/target/x",
        "py/.mypy_cache/3.11/x",
    )
    gone = ("out.sqlite", ".pytest_cache/x", "py/target/x", "crates/target/x", "target.txt", ".chargehand/x")
    changed = ("Cargo.toml", "crates/a/target/tracked")
    operate(checked, [write(path, "x") for path in (*kept, *gone, *changed)])
    os.symlink("/etc", checked.scan_root() / "py/link")
    layers.keep_caches(checked, key)
    place = layers.find(key)
    assert place is not None
    found = {str(file.relative_to(place)) for file in place.rglob("*") if not file.is_dir()}
    assert found == {*kept, ".chargehand/cache/go-build/testexpire.txt"}

    # A file that differs from the base is newer than anything built from it, whatever its time stamp.
    os.utime(place, (os.path.getmtime(place) + 9999,) * 2)
    user = kit.workspace("overlay", caches=place)
    assert place in user.mount_plan().lowers
    other = kit.workspace("overlay")
    operate(other, [write("Cargo.toml", "y\n")])
    later = kit.workspace("overlay", caches=place, tree=other.scan().tree)
    assert (later.scan_root() / "Cargo.toml").stat().st_mtime > place.stat().st_mtime
    assert collect(kit, keep={user.id, later.id}).layers == ()
    assert collect(kit).layers == (key,)

    nothing = kit.workspace("overlay")
    operate(nothing, [write("out.sqlite", "x")])
    layers.keep_caches(nothing, "none")
    assert layers.find("none") is None


def test_checkpoints_go_only_when_ordered(kit: WorkspaceKit) -> None:
    workspace = kit.workspace("overlay")
    operate(workspace, [write("x", "precious")])
    kept = workspace.checkpoint("x")
    assert collect(kit).refs == ()
    depot = kit.open()
    assert depot.read_ref(workspace.ref) == kept.commit
    restored = Workspace.create(depot, workspace.base, driver="worktree", tree=kept.tree)
    assert (restored.scan_root() / "x").read_bytes() == b"precious"
    other = kit.workspace("overlay")
    other.checkpoint("y")
    told = collect(kit, dry_run=True, checkpoints=True, keep={other.id})
    assert (told.refs, told.erased.commits) == ((workspace.ref,), 1)
    assert told.erased.bytes > 0
    assert depot.read_ref(workspace.ref) == kept.commit
    assert collect(kit, now=None, checkpoints=True, max_age=3600).refs == (), "younger than the age"
    for file in (kit.root / "depot.git" / "objects").rglob("*"):
        os.utime(file, (1000, 1000))  # otherwise a process may be about to refer to it
    assert collect(kit, checkpoints=True, keep={other.id}).refs == (workspace.ref,)
    fresh = kit.open()
    assert (fresh.read_ref(workspace.ref), fresh.read_ref(other.ref) is None) == (None, False)
    assert fresh.git.run("cat-file", "-e", kept.commit).code != 0


def test_erasing_checkpoints_keeps_new_objects_of_a_busy_workspace(kit: WorkspaceKit) -> None:
    busy, done = kit.workspace("overlay"), kit.workspace("overlay")
    done.checkpoint("x")
    done.discard()
    operate(busy, [write("new", "not yet in a checkpoint")])
    tree = busy.scan().tree
    assert collect(kit, checkpoints=True, keep={busy.id}).refs == (done.ref,)
    assert kit.open().entries(tree), "its objects are still there"


def test_leftovers_of_crashes_are_removed(kit: WorkspaceKit) -> None:
    kit.workspace("overlay").discard()
    for name in (".trash-x", ".new-x"):
        (kit.root / "workspaces" / name).mkdir()
    assert collect(kit, now=None, max_age=0, shared_age=9e9).litter == (".trash-x",), "one may be in the making"
    collect(kit)
    assert list((kit.root / "workspaces").iterdir()) == []


def test_discarding_removes_leftovers_of_an_interrupted_discard(kit: WorkspaceKit) -> None:
    workspace = kit.workspace("overlay")
    place = kit.root / "workspaces"
    for name in (f".trash-{workspace.id}-0a", f".new-{workspace.id}", ".trash-w-other-0a"):
        (place / name / "work").mkdir(parents=True, mode=0)
    discard_workspaces(kit.depot(), f"{workspace.id}*")
    assert [path.name for path in place.iterdir()] == [".trash-w-other-0a"]


def test_the_key_of_an_environment_follows_its_inputs(kit: WorkspaceKit) -> None:
    (kit.repository / "pyproject.toml").write_text("[project]\n")
    kit.commit()
    layers = EnvironmentLayers(kit.depot())

    def key(**changes: object) -> str:
        options = {"command": "pip install .", "inputs": ("src/*.py",), "toolchain": "3.11", "tier": "process"}
        return layers.key(kit.base(), **{**options, **changes})

    first = key()
    (kit.repository / "README.md").write_text("unrelated\n")
    kit.commit()
    assert key() == first
    assert len({first, key(command="x"), key(toolchain="3.12"), key(tier="none"), key(inputs=())}) == 5
    for path in ("pyproject.toml", "src/app.py", "web/package.json"):
        (kit.repository / path).parent.mkdir(exist_ok=True)
        (kit.repository / path).write_text(f"changed {path}\n")
        kit.commit()
        assert key() != first
        first = key()


def test_a_candidate_with_changed_setup_inputs_gets_a_separate_layer(kit: WorkspaceKit) -> None:
    (kit.repository / "pyproject.toml").write_text("[project]\n")
    kit.commit()
    layers, base = EnvironmentLayers(kit.depot()), kit.base()
    agent = kit.workspace("overlay")
    operate(agent, [write("src/new.py", "new\n"), ("remove", "docs/a.md")])
    assert layers.changed(base, agent.scan().tree) == ()
    assert layers.changed(base, agent.scan().tree, inputs=["src/*.py"]) == ("src/new.py",)
    operate(agent, [write("pyproject.toml", "[project]\nname = 'x'\n")])
    tree = agent.checkpoint("candidate").tree
    assert layers.changed(base, tree) == ("pyproject.toml",)
    key = layers.key(base, command="setup", tree=tree)
    assert key != layers.key(base, command="setup")
    setup = kit.workspace("overlay", tree=tree)
    operate(setup, [write(".venv/tool", "t\n"), write("src/new.py", "changed by setup\n")])
    made = layers.freeze(setup, key, tree=tree)
    assert made.dropped == ("src/new.py",), "and not what the candidate itself changed"
    found = {str(path.relative_to(made.path)) for path in made.path.rglob("*")}
    assert found == {".venv", ".venv/tool"}
    assert layers.find(key) is None, "nobody else finds it"
    check = kit.workspace("overlay", tree=tree, environment=made.path)
    assert check.scan().tree == tree
    check.discard()
    layers.remove(made)
    layers.remove(made)
    assert list((kit.root / "layers").iterdir()) == []
