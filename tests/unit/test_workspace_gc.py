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

from tests.workspace_kit import Yard, operate, write

from chargehand.workspace.environment import EnvironmentLayers
from chargehand.workspace.space import ProjectGc, depot_bytes, gc, list_items, total_bytes
from chargehand.workspace.workspace import Workspace, discard_workspaces

NEVER = 10**12


def collect(yard: Yard, *, keep: set[str] | None = None, **rules: Any) -> ProjectGc:
    """Collect as if everything had been used long ago."""
    kept = keep or set()
    options = {"max_age": 1, "shared_age": 1, "now": NEVER, **rules}
    return gc([yard.root], needed=lambda root, kind, name, used: name in kept, **options).projects[0]


def named(project: ProjectGc) -> tuple[tuple[str, ...], ...]:
    return (project.workspaces, project.bases, project.layers, project.litter, project.refs)


def on_disk(yard: Yard) -> int:
    """Return the size of everything except the depot, as `du` counts."""
    places = [str(yard.root / name) for name in ("bases", "layers", "workspaces") if (yard.root / name).exists()]
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


def test_a_dry_run_tells_exactly_what_goes(yard: Yard) -> None:
    workspace = yard.workspace("overlay")
    operate(workspace, [write("ignored.log", os.urandom(300_000))])
    (yard.root / "workspaces" / ".trash-x").mkdir()
    (yard.root / "workspaces" / ".trash-x" / "big").write_bytes(os.urandom(100_000))
    told = collect(yard, dry_run=True)
    assert (told.workspaces, told.bases) == ((workspace.id,), (workspace.base.commit,))
    assert told.litter == (".trash-x",)
    assert [change.path for change in workspace.scan().changes] == []
    before = on_disk(yard)
    done = collect(yard)
    assert (named(done), done.bytes) == (named(told), told.bytes)
    assert not workspace.directory.exists()
    # `du` also counts the directories themselves and the small records.
    assert abs(before - on_disk(yard) - done.bytes) < 40_000
    assert done.bytes > 400_000


def test_what_is_needed_or_young_stays(yard: Yard) -> None:
    workspace = yard.workspace("overlay")
    assert collect(yard, keep={workspace.id}).bases == ()
    young = {"now": None, "max_age": 3600, "shared_age": 3600}
    assert collect(yard, **young).workspaces == ()
    assert workspace.scan().changes == ()
    workspace.discard()
    assert collect(yard, **young).bases == ()
    assert collect(yard, keep={workspace.base.commit}).bases == ()
    assert collect(yard).bases == (workspace.base.commit,)
    assert yard.workspace("overlay").scan().changes == (), "what was removed is made again"


def test_without_an_order_even_size_takes_nothing_used_within_a_minute(yard: Yard) -> None:
    workspace = yard.workspace("overlay")
    assert named(collect(yard, now=None, max_bytes=0)) == ((), (), (), (), ())
    used_at(workspace.directory, time.time() - 120)
    assert collect(yard, now=None, max_age=9e9, max_bytes=0).workspaces == (workspace.id,)


def test_what_somebody_begins_to_use_meanwhile_stays(yard: Yard) -> None:
    workspace = yard.workspace("overlay")
    yard.workspace("overlay").discard()
    base = workspace.base.commit
    workspace.discard()

    def used_now(root: Path, kind: str, name: str, used: float) -> bool:
        yard.depot().base_layers(workspace.base)
        return False

    used_at(yard.root / "bases" / base, 1000.0)
    assert gc([yard.root], needed=used_now, shared_age=1).projects[0].bases == ()
    with (yard.depot().root / "locks" / f"base-{base}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        used_at(yard.root / "bases" / base, 1000.0)
        assert collect(yard).bases == (), "and what is held is not waited for"
    assert collect(yard).bases == (base,)


def test_the_least_recently_used_goes_first_until_all_is_under_the_limit(yard: Yard) -> None:
    made = []
    for number in range(3):
        workspace = yard.workspace("overlay")
        operate(workspace, [write("ignored.log", os.urandom(500_000))])
        used_at(workspace.directory, 5000.0 + [2, 0, 1][number])
        made.append(workspace)
    quiet = {"now": 10_000.0, "max_age": 9e9, "shared_age": 9e9, "pack": False}
    taken = gc([yard.root], dry_run=True, **quiet).taken
    told = collect(yard, max_bytes=taken - 600_000, dry_run=True, **quiet)
    done = collect(yard, max_bytes=taken - 600_000, **quiet)
    assert set(done.workspaces) == {made[1].id, made[2].id}
    assert (done.workspaces, done.bytes) == (told.workspaces, told.bytes)
    assert done.bases == ()
    assert gc([yard.root], dry_run=True, **quiet).taken == taken - done.bytes
    assert collect(yard, max_bytes=0, keep={made[0].id}, **quiet).workspaces == ()
    last = collect(yard, max_bytes=0, **quiet)
    assert last.workspaces == (made[0].id,)
    assert last.bases == (), "it was used within the last minute of that clock"


def test_where_nobody_knows_only_age_counts(yard: Yard) -> None:
    workspace = yard.workspace("overlay")
    used_at(workspace.directory, 5000.0)
    unknown = {"needed": lambda *thing: None, "now": 10_000.0, "max_bytes": 0}
    assert gc([yard.root], max_age=6000, **unknown).projects[0].workspaces == ()
    assert gc([yard.root], max_age=4000, **unknown).projects[0].workspaces == (workspace.id,)


def test_the_size_of_a_base_is_remembered_and_its_packs_count_once(yard: Yard) -> None:
    first = yard.workspace("overlay").base
    (yard.repository / "more").write_bytes(os.urandom(200_000))
    yard.commit()
    second = yard.workspace("overlay").base
    pair = {each.name: each for each in list_items(yard.root) if each.kind == "base"}
    linked = set(pair[first.commit].shared) & set(pair[second.commit].shared)
    files = (str(yard.root), first.commit)
    assert files in linked, "the files that both have"
    for base in (first, second):
        place = yard.root / "bases" / base.commit
        assert pair[base.commit].bytes == 0, "all of it may be another's too"
        # The later base may not have every file that it links: those count with the base that brought them.
        spare = 0 if base == first else pair[second.commit].shared[files]
        assert -8192 <= sum(pair[base.commit].shared.values()) - taken_by(place) <= spare + 8192
        meta = json.loads((place / "meta.json").read_bytes())
        meta |= {"disk": 12345, "linked": dict.fromkeys(meta["linked"], 12345)}
        (place / "meta.json").write_text(json.dumps(meta))
    again = [each for each in list_items(yard.root) if each.kind == "base"]
    noted = [size for each in again for key, size in each.shared.items() if isinstance(key[0], str)]
    assert noted == [12345] * 3, "nothing is measured twice"
    every = {key: size for each in again for key, size in each.shared.items()}
    assert total_bytes(again) == sum(every.values())
    alone = total_bytes(again) - total_bytes([each for each in again if each.name == second.commit])
    for place in (yard.root / "workspaces").iterdir():
        shutil.rmtree(place)
    gone = collect(yard, keep={second.commit})
    assert (gone.bases, gone.bytes) == ((first.commit,), alone), "what the other links is not freed"


def test_what_the_depot_shares_with_the_repository_is_not_counted(yard: Yard) -> None:
    (yard.repository / "big").write_bytes(os.urandom(1_000_000))
    yard.commit()
    yard.depot()
    shared = any(file.stat().st_nlink > 1 for file in (yard.root / "depot.git" / "objects").rglob("*"))
    assert shared
    assert depot_bytes(yard.root) < 500_000 < taken_by(yard.root / "depot.git")


def test_layers_live_as_long_as_a_workspace_on_them(yard: Yard) -> None:
    setup = yard.workspace("overlay")
    operate(setup, [write(".venv/x", "x")])
    layer = EnvironmentLayers(yard.depot()).freeze(setup, "key").path
    user = yard.workspace("overlay", environment=layer)
    assert collect(yard, keep={user.id}).layers == ()
    assert collect(yard).layers == ("key",)
    assert not layer.exists()


def test_of_a_check_only_caches_are_kept_and_as_long_as_a_workspace_is_on_them(yard: Yard) -> None:
    for path in ("Cargo.toml", "crates/a/Cargo.toml", "crates/a/target/tracked"):
        (yard.repository / path).parent.mkdir(parents=True, exist_ok=True)
        (yard.repository / path).write_text("x\n")
    yard.commit()
    layers, key = EnvironmentLayers(yard.depot()), "caches"
    checked = yard.workspace("overlay")
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
    user = yard.workspace("overlay", caches=place)
    assert place in user.mount_plan().lowers
    other = yard.workspace("overlay")
    operate(other, [write("Cargo.toml", "y\n")])
    later = yard.workspace("overlay", caches=place, tree=other.scan().tree)
    assert (later.scan_root() / "Cargo.toml").stat().st_mtime > place.stat().st_mtime
    assert collect(yard, keep={user.id, later.id}).layers == ()
    assert collect(yard).layers == (key,)

    nothing = yard.workspace("overlay")
    operate(nothing, [write("out.sqlite", "x")])
    layers.keep_caches(nothing, "none")
    assert layers.find("none") is None


def test_checkpoints_go_only_when_ordered(yard: Yard) -> None:
    workspace = yard.workspace("overlay")
    operate(workspace, [write("x", "precious")])
    kept = workspace.checkpoint("x")
    assert collect(yard).refs == ()
    depot = yard.open()
    assert depot.read_ref(workspace.ref) == kept.commit
    restored = Workspace.create(depot, workspace.base, driver="worktree", tree=kept.tree)
    assert (restored.scan_root() / "x").read_bytes() == b"precious"
    other = yard.workspace("overlay")
    other.checkpoint("y")
    told = collect(yard, dry_run=True, checkpoints=True, keep={other.id})
    assert (told.refs, told.erased.commits) == ((workspace.ref,), 1)
    assert told.erased.bytes > 0
    assert depot.read_ref(workspace.ref) == kept.commit
    assert collect(yard, now=None, checkpoints=True, max_age=3600).refs == (), "younger than the age"
    for file in (yard.root / "depot.git" / "objects").rglob("*"):
        os.utime(file, (1000, 1000))  # otherwise a process may be about to refer to it
    assert collect(yard, checkpoints=True, keep={other.id}).refs == (workspace.ref,)
    fresh = yard.open()
    assert (fresh.read_ref(workspace.ref), fresh.read_ref(other.ref) is None) == (None, False)
    assert fresh.git.run("cat-file", "-e", kept.commit).code != 0


def test_an_erasure_beside_work_spares_what_was_just_written(yard: Yard) -> None:
    busy, done = yard.workspace("overlay"), yard.workspace("overlay")
    done.checkpoint("x")
    done.discard()
    operate(busy, [write("new", "not yet in a checkpoint")])
    tree = busy.scan().tree
    assert collect(yard, checkpoints=True, keep={busy.id}).refs == (done.ref,)
    assert yard.open().entries(tree), "its objects are still there"


def test_what_crashes_left_is_swept(yard: Yard) -> None:
    yard.workspace("overlay").discard()
    for name in (".trash-x", ".new-x"):
        (yard.root / "workspaces" / name).mkdir()
    assert collect(yard, now=None, max_age=0, shared_age=9e9).litter == (".trash-x",), "one may be in the making"
    collect(yard)
    assert list((yard.root / "workspaces").iterdir()) == []


def test_what_is_discarded_leaves_nothing_of_a_discarding_that_was_killed(yard: Yard) -> None:
    workspace = yard.workspace("overlay")
    place = yard.root / "workspaces"
    for name in (f".trash-{workspace.id}-0a", f".new-{workspace.id}", ".trash-w-other-0a"):
        (place / name / "work").mkdir(parents=True, mode=0)
    discard_workspaces(yard.depot(), f"{workspace.id}*")
    assert [path.name for path in place.iterdir()] == [".trash-w-other-0a"]


def test_the_key_of_an_environment_follows_its_inputs(yard: Yard) -> None:
    (yard.repository / "pyproject.toml").write_text("[project]\n")
    yard.commit()
    layers = EnvironmentLayers(yard.depot())

    def key(**changes: object) -> str:
        options = {"command": "pip install .", "inputs": ("src/*.py",), "toolchain": "3.11", "tier": "process"}
        return layers.key(yard.base(), **{**options, **changes})

    first = key()
    (yard.repository / "README.md").write_text("unrelated\n")
    yard.commit()
    assert key() == first
    assert len({first, key(command="x"), key(toolchain="3.12"), key(tier="none"), key(inputs=())}) == 5
    for path in ("pyproject.toml", "src/app.py", "web/package.json"):
        (yard.repository / path).parent.mkdir(exist_ok=True)
        (yard.repository / path).write_text(f"changed {path}\n")
        yard.commit()
        assert key() != first
        first = key()


def test_a_candidate_that_changes_the_inputs_gets_a_layer_of_its_own(yard: Yard) -> None:
    (yard.repository / "pyproject.toml").write_text("[project]\n")
    yard.commit()
    layers, base = EnvironmentLayers(yard.depot()), yard.base()
    agent = yard.workspace("overlay")
    operate(agent, [write("src/new.py", "new\n"), ("remove", "docs/a.md")])
    assert layers.changed(base, agent.scan().tree) == ()
    assert layers.changed(base, agent.scan().tree, inputs=["src/*.py"]) == ("src/new.py",)
    operate(agent, [write("pyproject.toml", "[project]\nname = 'x'\n")])
    tree = agent.checkpoint("candidate").tree
    assert layers.changed(base, tree) == ("pyproject.toml",)
    key = layers.key(base, command="setup", tree=tree)
    assert key != layers.key(base, command="setup")
    setup = yard.workspace("overlay", tree=tree)
    operate(setup, [write(".venv/tool", "t\n"), write("src/new.py", "changed by setup\n")])
    made = layers.freeze(setup, key, tree=tree)
    assert made.dropped == ("src/new.py",), "and not what the candidate itself changed"
    found = {str(path.relative_to(made.path)) for path in made.path.rglob("*")}
    assert found == {".venv", ".venv/tool"}
    assert layers.find(key) is None, "nobody else finds it"
    check = yard.workspace("overlay", tree=tree, environment=made.path)
    assert check.scan().tree == tree
    check.discard()
    layers.remove(made)
    layers.remove(made)
    assert list((yard.root / "layers").iterdir()) == []
