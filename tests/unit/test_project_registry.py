"""A project is its repository: it is found again after a move, and no other repository is mistaken for it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.conftest import git, make_repository

from chargehand.core.errors import RefusedError, RepositoryError
from chargehand.reports.state.project_registry import ProjectRegistry
from chargehand.store.store import Store
from chargehand.workspace.depot import Depot
from chargehand.workspace.identity import load_identity
from chargehand.workspace.repository import find_repository


class KnownProjects:
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
def known(store: Store, tmp_path: Path) -> KnownProjects:
    (tmp_path / "w").mkdir()
    return KnownProjects(store, tmp_path / "w")


def test_a_moved_repository_is_the_same_project(known: KnownProjects) -> None:
    repository = known.make("repo")
    project = known.use(repository)
    new = repository.rename(known.place / "new name")
    assert known.look(new) == project
    assert [row.path for row in known.store.projects.list()] == [new]
    assert known.registry.find_repository(project, repository).path == new


def test_a_repository_that_a_directory_above_moved_with_is_the_same_project(known: KnownProjects) -> None:
    project = known.use(known.make("deep/er/repo"))
    (known.place / "deep").rename(known.place / "else")
    assert known.look(known.place / "else/er/repo") == project


@pytest.mark.parametrize("change", ["commits", "roots", "shallow", "branch", "packed"])
def test_a_moved_repository_is_recognised_by_its_history(known: KnownProjects, change: str) -> None:
    repository = known.make("repo")
    if change == "shallow":
        for number in range(3):
            git(repository, "commit", "--allow-empty", "-qm", str(number))
        git(known.place, "clone", "-q", "--depth=2", f"file://{repository}", "shallow")
        repository = known.place / "shallow"
    project = known.use(repository)
    if change == "commits":
        git(repository, "commit", "--allow-empty", "-qm", "more")
    elif change == "roots":  # the history of another repository is merged in
        other = known.make("other", "b")
        git(repository, "fetch", "-q", str(other), "HEAD")
        git(repository, "merge", "-q", "--allow-unrelated-histories", "-s", "ours", "-m", "m", "FETCH_HEAD")
    elif change == "shallow":
        git(repository, "fetch", "-q", "--unshallow")
    elif change == "branch":
        git(repository, "checkout", "-q", "--orphan", "pages")
        git(repository, "commit", "-qm", "pages")
    else:
        git(repository, "gc", "-q")
    assert known.look(repository.rename(known.place / "moved")) == project


def test_all_worktrees_of_a_repository_are_the_same_project(known: KnownProjects) -> None:
    repository = known.make("repo")
    git(repository, "worktree", "add", "-q", "../linked")
    linked = known.place / "linked"
    project = known.use(linked)
    assert known.use(repository) == project == known.look(linked)
    assert known.registry.find(find_repository(linked)).path == linked
    git(repository, "worktree", "remove", "--force", str(linked))
    assert known.registry.find_repository(project, linked).path == repository
    assert len(known.store.projects.list()) == 1


def test_a_bare_repository_moves_too(known: KnownProjects) -> None:
    git(known.place, "clone", "-q", "--bare", str(known.make("repo")), "bare.git")
    bare = known.place / "bare.git"
    project = known.use(bare)
    assert known.look(bare.rename(known.place / "b.git")) == project


def test_a_different_repository_at_an_old_path_is_another_project(known: KnownProjects) -> None:
    repository = known.make("repo")
    project = known.use(repository)
    new = repository.rename(known.place / "new")
    stranger = known.make("repo", "other")
    assert known.look(stranger) != project
    assert known.use(stranger) == known.look(stranger)
    with pytest.raises(RepositoryError) as caught:  # until a command runs in its new place
        known.registry.find_repository(project, stranger)
    assert caught.value.code == "repository_gone"
    assert "another repository" in caught.value.message
    assert known.look(new) == project
    assert known.registry.find_repository(project, stranger).path == new


def test_a_repository_that_reuses_an_inode_is_another_project(known: KnownProjects) -> None:
    project = known.use(known.make("repo"))
    for number in range(5):  # a file system may reuse the number at once
        shutil.rmtree(known.place / "repo")
        assert known.look(known.make("repo", str(number))) != project


def test_a_copy_or_clone_next_to_the_original_is_a_separate_project(known: KnownProjects) -> None:
    repository = known.make("repo")
    project = known.use(repository)
    shutil.copytree(repository, known.place / "copy")
    assert known.use(known.place / "copy") != project
    git(known.place, "clone", "-q", str(repository), "fork")
    assert known.use(known.place / "fork") not in (project, known.look(known.place / "copy"))
    assert known.look(repository) == project


@pytest.mark.parametrize("at", ["repo", "elsewhere"])
def test_a_copy_whose_original_is_gone_is_asked_about(known: KnownProjects, at: str) -> None:
    repository = known.make("repo")
    project = known.use(repository)
    shutil.copytree(repository, known.place / "copy")
    repository.rename(known.place.parent / "away")
    copy = (known.place / "copy").rename(known.place / at)
    assert project in known.refuses(copy)
    row = known.registry.move(known.store.projects.find(project), find_repository(copy))
    assert (row.id, known.look(copy), row.path) == (project, project, copy)
    assert known.look(known.place.parent / "away") != project, "the original is a copy now"


def test_a_repository_added_as_another_project_remains_separate(known: KnownProjects) -> None:
    repository = known.make("repo")
    project = known.use(repository)
    git(known.place, "clone", "-q", str(repository), "fork")
    away = repository.rename(known.place.parent / "away")
    fork = find_repository(known.place / "fork")
    known.refuses(fork.path)
    made = known.registry.add(fork).id
    assert made != project
    assert known.look(fork.path) == known.use(fork.path) == made
    assert known.look(away) == project


def test_a_copy_replacing_a_project_without_missions_is_that_project(known: KnownProjects) -> None:
    repository = known.make("repo")
    project = known.use(repository)
    known.has_missions = False
    shutil.copytree(repository, known.place / "copy")
    shutil.rmtree(repository)
    assert known.use((known.place / "copy").rename(repository)) == project


def used_by_an_older_version(known: KnownProjects, repository: Path) -> str:
    """Make a project as an older version did: its id and row follow from the path alone."""
    row = known.store.projects.register(repository)
    Depot.open(known.home / "projects" / row.id, repository=repository).resolve_base()
    assert load_identity(known.home / "projects" / row.id) is None
    return row.id


def test_projects_of_an_older_version_are_migrated(known: KnownProjects) -> None:
    repository = known.make("repo")
    git(repository, "worktree", "add", "-q", "../linked")
    git(repository, "worktree", "add", "-q", "../later")
    main = used_by_an_older_version(known, repository)
    linked = used_by_an_older_version(known, known.place / "linked")
    assert (known.look(repository), known.look(known.place / "linked")) == (main, linked)
    assert known.look(known.place / "later") == main
    assert (known.use(repository), known.use(known.place / "linked")) == (main, linked)
    # The missions of a removed worktree stay reachable.
    git(repository, "worktree", "remove", "--force", str(known.place / "linked"))
    assert known.registry.find_repository(linked, known.place / "linked").path == repository
    assert known.look(repository.rename(known.place / "new")) == main


def test_a_repository_that_moved_before_the_migration_is_asked_about(known: KnownProjects) -> None:
    repository = known.make("repo")
    project = used_by_an_older_version(known, repository)
    new = repository.rename(known.place / "new")
    assert project in known.refuses(new)
    assert known.look(known.make("repo", "other")) != project
    known.registry.move(known.store.projects.find(project), find_repository(new))
    assert known.look(new) == project


@pytest.mark.parametrize("damage", [b"", b"{", b'{"roots": 7}', None])
def test_a_damaged_identity_is_written_again(known: KnownProjects, damage: bytes | None) -> None:
    repository = known.make("repo")
    project = known.use(repository)
    file = known.home / "projects" / project / "identity.json"
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage)
    assert known.use(repository) == project
    assert load_identity(file.parent) is not None


def test_a_moved_project_is_found_on_a_full_disk(known: KnownProjects, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    repository = known.make("repo")
    project = known.use(repository)
    new = repository.rename(known.place / "new")
    monkeypatch.setattr("chargehand.workspace.identity.replace_file", fail)
    assert known.look(new) == project
