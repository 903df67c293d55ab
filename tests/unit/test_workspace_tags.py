"""The agent's repository has the tags that its base reaches, so that versions derived from them are a clone's."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import git
from tests.workspace_kit import WorkspaceKit, agent

from chargehand.core.ports import DriverName
from chargehand.workspace.depot import Depot
from chargehand.workspace.workspace import Workspace

DESCRIBE = (
    "git describe --long --dirty; git describe --tags --long --dirty; git tag | sort; git fsck --connectivity-only"
)


@pytest.fixture(params=["overlay", "worktree"])
def driver(request: pytest.FixtureRequest) -> DriverName:
    name: DriverName = request.param
    return name


@pytest.fixture
def kit(tmp_path: Path) -> WorkspaceKit:
    return WorkspaceKit(tmp_path / "crashes")


@pytest.fixture
def tagged(kit: WorkspaceKit) -> WorkspaceKit:
    """A repository with a plain, an annotated and a nested tag in its history, and some outside it."""
    place = kit.repository
    git(place, "tag", "-a", "v1.0", "-m", "one")
    git(place, "tag", "nested", "v1.0", "-am", "of a tag")
    (place / "more").write_text("more\n")
    kit.commit()
    git(place, "tag", "light")
    git(place, "tag", "of-a-tree", "HEAD^{tree}")
    (place / "more").write_text("most\n")
    kit.commit()
    git(place, "checkout", "-q", "-b", "side")
    (place / "side").write_text("side\n")
    kit.commit()
    git(place, "tag", "-a", "elsewhere", "-m", "not reached from main")
    git(place, "checkout", "-q", "main")
    return kit


def told(place: Path) -> str:
    named = "\n".join(sorted(set(git(place, "tag").split()) - {"elsewhere", "of-a-tree"}))
    return "\n".join((git(place, "describe", "--long"), git(place, "describe", "--tags", "--long"), named)) + "\n"


@pytest.mark.parametrize("packed", [False, True])
def test_git_describe_gives_the_same_result_as_in_a_clone(
    tagged: WorkspaceKit, driver: DriverName, packed: bool
) -> None:
    if packed:
        git(tagged.repository, "pack-refs", "--all")
    workspace = tagged.workspace(driver)
    assert agent(workspace, DESCRIBE) == told(tagged.repository)
    # Tags outside the history of the base are absent, both by name and as an object.
    beside = git(tagged.repository, "rev-parse", "elsewhere")
    assert agent(workspace, f"git cat-file -e {beside} 2>&1 || echo absent").strip().endswith("absent")
    assert workspace.scan().changes == ()
    agent(workspace, "git tag mine; git tag -d light; echo x >> README.md; git commit -qam mine")
    assert "mine" in agent(workspace, "git describe --tags")


def test_tags_that_are_made_later_are_in_later_workspaces(tagged: WorkspaceKit, driver: DriverName) -> None:
    before = tagged.workspace(driver)
    git(tagged.repository, "tag", "-a", "v2.0", "-m", "two")
    git(tagged.repository, "tag", "-d", "light")
    after = tagged.workspace(driver)
    assert agent(after, DESCRIBE) == told(tagged.repository)
    assert "v2.0-0-g" in agent(after, "git describe --long")
    assert "v2.0" not in agent(before, "git tag")


def test_many_annotated_tags_of_a_shallow_clone(tagged: WorkspaceKit, driver: DriverName) -> None:
    for number in range(40):
        git(tagged.repository, "tag", "-a", f"n{number}", "-m", "x", "HEAD~1")
    clone = tagged.place / "clone"
    git(tagged.place, "clone", "-q", "--depth=2", f"file://{tagged.repository}", str(clone))
    depot = Depot.open(tagged.place / "another", repository=clone)
    workspace = Workspace.create(depot, depot.resolve_base(), driver=driver)
    assert agent(workspace, "git tag | wc -l; git fsck --connectivity-only").split() == [
        str(len(git(clone, "tag").split()) - git(clone, "tag").split().count("of-a-tree"))
    ]


def test_a_repository_without_tags_has_the_shared_git(kit: WorkspaceKit) -> None:
    base = kit.base()
    assert kit.depot().base_layers(base).git.name == "git"
    git(kit.repository, "tag", "x")
    assert kit.depot().base_layers(base).git.name.startswith("git-")
