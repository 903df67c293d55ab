"""The inputs of an environment's key: found once for each base, and by the difference for every other tree."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.workspace_kit import WorkspaceKit

from chargehand.workspace.bases import BaseLayers
from chargehand.workspace.depot import Depot
from chargehand.workspace.environment import EnvironmentLayers

NAMES = ("pyproject.toml", "web/package.json", "web.lock", "src/app.py", "src/b/requirements-dev.txt", "a/b/c.md")


@pytest.fixture
def kit(tmp_path: Path) -> WorkspaceKit:
    kit = WorkspaceKit(tmp_path)
    put(kit, "pyproject.toml", "[project]\n")
    put(kit, "tést/package.json", "{}\n")
    return kit


def put(kit: WorkspaceKit, path: str, text: str | None) -> None:
    """Write a file of the repository, or remove it, and commit."""
    target = kit.repository / path
    if text is None:
        target.unlink(missing_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    kit.commit()


def key(depot: Depot, commit: str | None = None, *, tree: str | None = None) -> str:
    """Return the key of the environment of a commit, or of a tree based on it."""
    base = depot.resolve_base(commit)
    return EnvironmentLayers(depot).key(base, command="x", inputs=("src/*.py",), tree=tree)


def kept(kit: WorkspaceKit, layers: BaseLayers) -> list[Path]:
    """Return the stored inputs of a base."""
    return list(layers.tree.parent.glob("inputs-*"))


def test_stored_inputs_give_the_same_key_without_a_walk(
    kit: WorkspaceKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    depot = kit.depot()
    before = key(depot)
    layers = depot.base_layers(kit.base())
    assert not kept(kit, layers), "there was no base to keep it beside"
    assert key(depot) == before
    assert len(kept(kit, layers)) == 1
    monkeypatch.setattr(Depot, "entries", None)
    assert key(depot) == before


@pytest.mark.parametrize("content", [b"", b"{}", b'[["pyproject.toml", 1]]', b"\xff"])
def test_unreadable_stored_inputs_are_computed_again(kit: WorkspaceKit, content: bytes) -> None:
    depot = kit.depot()
    layers = depot.base_layers(kit.base())
    first = key(depot)
    (file,) = kept(kit, layers)
    file.write_bytes(content)
    assert key(depot) == first
    assert file.read_bytes() != content


def test_other_patterns_and_other_bases_are_kept_apart(kit: WorkspaceKit) -> None:
    depot, keys = kit.depot(), set()
    for text in ("[project]\n", "[project]\nname = 'x'\n"):
        put(kit, "pyproject.toml", text)
        depot.base_layers(kit.base())
        for inputs in ((), ("src/*.py",)):
            found = [EnvironmentLayers(depot).key(kit.base(), command="x", inputs=inputs) for _ in range(2)]
            assert found[0] == found[1]
            keys.add(found[0])
    assert len(keys) == 4


def test_a_trees_key_is_that_of_a_base_of_the_same_content(kit: WorkspaceKit) -> None:
    depot = kit.depot()
    base = kit.base()
    depot.base_layers(base)
    dice = random.Random(5)
    for number in range(20):
        for path in dice.sample(NAMES, 3):
            put(kit, path, dice.choice([None, f"{number}\n", "same\n"]))
        there = kit.base()
        expected = key(depot, there.commit)
        assert key(depot, base.commit, tree=there.tree) == expected
