"""A project is its repository: it is found again after a move, and no other repository is mistaken for it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.conftest import git, make_repository

from chargehand.app.wiring.project_registry import ProjectRegistry
from chargehand.core.errors import RefusedError, RepositoryError
from chargehand.store.store import Store
from chargehand.workspace.depot import Depot
from chargehand.workspace.identity import load_identity
from chargehand.workspace.repository import find_repository


class Desk:
    """A person with repositories below one directory; every known project has missions by default."""

    def __init__(self, store: Store, place: Path) -> None:
        self.place = place
        self.home = store.home
        self.has_missions = True
        self.registry = ProjectRegistry(store.home, store.projects, has_missions=lambda project: self.has_missions)
        self.store = store

    def make(self, name: str, text: str = "a") -> Path:
        """Make a repository; a different text gives it a different root commit."""
        return make_repository(self.place / name, {"f": text})

    def use(self, path: Path) -> str:
        """Return the id of the project that a person works on in a directory."""
        return self.registry.find(find_repository(path), register=True).id

    def look(self, path: Path) -> str:
        """Return the same for a read-only command."""
        return self.registry.find(find_repository(path)).id

    def refuses(self, path: Path) -> str:
        """Return the error that asks a person which project a repository is."""
        with pytest.raises(RefusedError) as caught:
            self.look(path)
        assert caught.value.code == "project_uncertain"
        assert "chargehand project move" in caught.value.hint
        return caught.value.message


@pytest.fixture
def desk(store: Store, tmp_path: Path) -> Desk:
    (tmp_path / "w").mkdir()
    return Desk(store, tmp_path / "w")


def test_a_moved_repository_is_the_same_project(desk: Desk) -> None:
    repository = desk.make("repo")
    project = desk.use(repository)
    new = repository.rename(desk.place / "new name")
    assert desk.look(new) == project
    assert [row.path for row in desk.store.projects.list()] == [new]
    assert desk.registry.find_repository(project, repository).path == new


def test_a_repository_that_a_directory_above_moved_with_is_the_same_project(desk: Desk) -> None:
    project = desk.use(desk.make("deep/er/repo"))
    (desk.place / "deep").rename(desk.place / "else")
    assert desk.look(desk.place / "else/er/repo") == project


@pytest.mark.parametrize("change", ["commits", "roots", "shallow", "branch", "packed"])
def test_a_moved_repository_is_recognised_by_its_history(desk: Desk, change: str) -> None:
    repository = desk.make("repo")
    if change == "shallow":
        for number in range(3):
            git(repository, "commit", "--allow-empty", "-qm", str(number))
        git(desk.place, "clone", "-q", "--depth=2", f"file://{repository}", "shallow")
        repository = desk.place / "shallow"
    project = desk.use(repository)
    if change == "commits":
        git(repository, "commit", "--allow-empty", "-qm", "more")
    elif change == "roots":  # the history of another repository is merged in
        other = desk.make("other", "b")
        git(repository, "fetch", "-q", str(other), "HEAD")
        git(repository, "merge", "-q", "--allow-unrelated-histories", "-s", "ours", "-m", "m", "FETCH_HEAD")
    elif change == "shallow":
        git(repository, "fetch", "-q", "--unshallow")
    elif change == "branch":
        git(repository, "checkout", "-q", "--orphan", "pages")
        git(repository, "commit", "-qm", "pages")
    else:
        git(repository, "gc", "-q")
    assert desk.look(repository.rename(desk.place / "moved")) == project


def test_all_worktrees_are_one_project(desk: Desk) -> None:
    repository = desk.make("repo")
    git(repository, "worktree", "add", "-q", "../linked")
    linked = desk.place / "linked"
    project = desk.use(linked)
    assert desk.use(repository) == project == desk.look(linked)
    assert desk.registry.find(find_repository(linked)).path == linked
    git(repository, "worktree", "remove", "--force", str(linked))
    assert desk.registry.find_repository(project, linked).path == repository
    assert len(desk.store.projects.list()) == 1


def test_a_bare_repository_moves_too(desk: Desk) -> None:
    git(desk.place, "clone", "-q", "--bare", str(desk.make("repo")), "bare.git")
    bare = desk.place / "bare.git"
    project = desk.use(bare)
    assert desk.look(bare.rename(desk.place / "b.git")) == project


def test_a_stranger_at_an_old_path_inherits_nothing(desk: Desk) -> None:
    repository = desk.make("repo")
    project = desk.use(repository)
    new = repository.rename(desk.place / "new")
    stranger = desk.make("repo", "other")
    assert desk.look(stranger) != project
    assert desk.use(stranger) == desk.look(stranger)
    with pytest.raises(RepositoryError) as caught:  # until a command runs in its new place
        desk.registry.find_repository(project, stranger)
    assert caught.value.code == "repository_gone"
    assert "another repository" in caught.value.message
    assert desk.look(new) == project
    assert desk.registry.find_repository(project, stranger).path == new


def test_a_stranger_with_the_inode_of_a_removed_repository_inherits_nothing(desk: Desk) -> None:
    project = desk.use(desk.make("repo"))
    for number in range(5):  # a file system may reuse the number at once
        shutil.rmtree(desk.place / "repo")
        assert desk.look(desk.make("repo", str(number))) != project


def test_a_copy_beside_its_original_is_a_project_of_its_own(desk: Desk) -> None:
    repository = desk.make("repo")
    project = desk.use(repository)
    shutil.copytree(repository, desk.place / "copy")
    assert desk.use(desk.place / "copy") != project
    git(desk.place, "clone", "-q", str(repository), "fork")
    assert desk.use(desk.place / "fork") not in (project, desk.look(desk.place / "copy"))
    assert desk.look(repository) == project


@pytest.mark.parametrize("at", ["repo", "elsewhere"])
def test_a_copy_whose_original_is_gone_is_asked_about(desk: Desk, at: str) -> None:
    repository = desk.make("repo")
    project = desk.use(repository)
    shutil.copytree(repository, desk.place / "copy")
    repository.rename(desk.place.parent / "away")
    copy = (desk.place / "copy").rename(desk.place / at)
    assert project in desk.refuses(copy)
    row = desk.registry.move(desk.store.projects.find(project), find_repository(copy))
    assert (row.id, desk.look(copy), row.path) == (project, project, copy)
    assert desk.look(desk.place.parent / "away") != project, "the original is a copy now"


def test_a_repository_that_a_person_says_is_another_project_stays_it(desk: Desk) -> None:
    repository = desk.make("repo")
    project = desk.use(repository)
    git(desk.place, "clone", "-q", str(repository), "fork")
    away = repository.rename(desk.place.parent / "away")
    fork = find_repository(desk.place / "fork")
    desk.refuses(fork.path)
    made = desk.registry.add(fork).id
    assert made != project
    assert desk.look(fork.path) == desk.use(fork.path) == made
    assert desk.look(away) == project


def test_a_lookalike_of_a_project_without_missions_asks_nothing(desk: Desk) -> None:
    repository = desk.make("repo")
    project = desk.use(repository)
    desk.has_missions = False
    shutil.copytree(repository, desk.place / "copy")
    shutil.rmtree(repository)
    assert desk.use((desk.place / "copy").rename(repository)) == project


def used_by_an_older_version(desk: Desk, repository: Path) -> str:
    """Make a project as an older version did: its id and row follow from the path alone."""
    row = desk.store.projects.register(repository)
    Depot.open(desk.home / "projects" / row.id, repository=repository).resolve_base()
    assert load_identity(desk.home / "projects" / row.id) is None
    return row.id


def test_projects_of_an_older_version_are_migrated(desk: Desk) -> None:
    repository = desk.make("repo")
    git(repository, "worktree", "add", "-q", "../linked")
    git(repository, "worktree", "add", "-q", "../later")
    main = used_by_an_older_version(desk, repository)
    linked = used_by_an_older_version(desk, desk.place / "linked")
    assert (desk.look(repository), desk.look(desk.place / "linked")) == (main, linked)
    assert desk.look(desk.place / "later") == main
    assert (desk.use(repository), desk.use(desk.place / "linked")) == (main, linked)
    # The missions of a removed worktree stay reachable.
    git(repository, "worktree", "remove", "--force", str(desk.place / "linked"))
    assert desk.registry.find_repository(linked, desk.place / "linked").path == repository
    assert desk.look(repository.rename(desk.place / "new")) == main


def test_a_repository_that_moved_before_the_migration_is_asked_about(desk: Desk) -> None:
    repository = desk.make("repo")
    project = used_by_an_older_version(desk, repository)
    new = repository.rename(desk.place / "new")
    assert project in desk.refuses(new)
    assert desk.look(desk.make("repo", "other")) != project
    desk.registry.move(desk.store.projects.find(project), find_repository(new))
    assert desk.look(new) == project


@pytest.mark.parametrize("damage", [b"", b"{", b'{"roots": 7}', None])
def test_a_damaged_identity_is_written_again(desk: Desk, damage: bytes | None) -> None:
    repository = desk.make("repo")
    project = desk.use(repository)
    file = desk.home / "projects" / project / "identity.json"
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage)
    assert desk.use(repository) == project
    assert load_identity(file.parent) is not None


def test_a_moved_project_is_found_on_a_full_disk(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    repository = desk.make("repo")
    project = desk.use(repository)
    new = repository.rename(desk.place / "new")
    monkeypatch.setattr("chargehand.workspace.identity.replace_file", fail)
    assert desk.look(new) == project
