"""What `gc` removes, what it never does, and that a dry run tells the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.workspace_kit import Yard, operate, write

from chargehand.workspace import EnvironmentLayers, GcReport, Workspace, gc

NEVER = 10**12


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    return Yard(tmp_path)


def collect(
    yard: Yard, *, dry_run: bool = False, checkpoints: bool = False, keep: set[str] | None = None
) -> GcReport:
    """Collect as if all of this had been used long ago."""
    return gc(yard.depot(), keep=keep or set(), max_age=1, dry_run=dry_run, checkpoints=checkpoints, now=NEVER)


def test_a_dry_run_tells_and_does_nothing(yard: Yard) -> None:
    workspace = yard.workspace("overlay")
    told = collect(yard, dry_run=True)
    assert (told.workspaces, told.bases) == ((workspace.id,), (workspace.base.commit,))
    assert told.bytes > 0
    assert workspace.scan().changes == ()
    done = collect(yard)
    assert (done.workspaces, done.bases, done.dry_run) == (told.workspaces, told.bases, False)
    assert not workspace.directory.exists()


def test_what_is_kept_or_young_stays(yard: Yard) -> None:
    workspace = yard.workspace("overlay")
    assert collect(yard, keep={workspace.id}).bases == ()
    assert gc(yard.depot(), max_age=3600).workspaces == ()
    assert workspace.scan().changes == ()
    workspace.discard()
    assert gc(yard.depot(), max_age=3600).bases == ()
    kept = gc(yard.depot(), keep_bases={workspace.base.commit}, max_age=1, now=NEVER)
    assert kept.bases == ()
    assert collect(yard).bases == (workspace.base.commit,)
    assert yard.workspace("overlay").scan().changes == (), "what was removed is made again"


def test_layers_live_as_long_as_a_workspace_on_them(yard: Yard) -> None:
    setup = yard.workspace("overlay")
    operate(setup, [write(".venv/x", "x")])
    layer = EnvironmentLayers(yard.depot()).freeze(setup, "key").path
    user = yard.workspace("overlay", environment=layer)
    assert collect(yard, keep={user.id}).layers == ()
    assert collect(yard).layers == ("key",)
    assert not layer.exists()


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
    assert collect(yard, dry_run=True, checkpoints=True, keep={other.id}).refs == (workspace.ref,)
    assert collect(yard, checkpoints=True, keep={other.id}).refs == (workspace.ref,)
    fresh = yard.open()
    assert (fresh.read_ref(workspace.ref), fresh.read_ref(other.ref) is None) == (None, False)
    assert fresh.git.run("cat-file", "-e", kept.commit).code != 0


def test_what_crashes_left_is_swept(yard: Yard) -> None:
    yard.workspace("overlay").discard()
    for name in (".trash-x", ".new-x"):
        (yard.root / "workspaces" / name).mkdir()
    collect(yard)
    assert list((yard.root / "workspaces").iterdir()) == []


def test_the_key_of_an_environment_follows_its_inputs(yard: Yard) -> None:
    (yard.repository / "pyproject.toml").write_text("[project]\n")
    yard.commit()
    layers = EnvironmentLayers(yard.depot())

    def key(**changes: object) -> str:
        options = {"command": "pip install .", "inputs": ("src/*.py",), "toolchain": "3.11", "tier": "process"}
        return layers.key(yard.base(), **{**options, **changes})  # type: ignore[arg-type]

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
