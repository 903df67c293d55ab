"""Notes on commits: added to existing ones, in the depot and in the user's repository, never lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import git, repository_state
from tests.workspace_kit import Yard

from chargehand.core.errors import NotFoundError, RepositoryError, UsageError
from chargehand.workspace.depot import Depot
from chargehand.workspace.errors import RefMovedError
from chargehand.workspace.export import export_branch, export_notes

NOTES = "refs/notes/chargehand"

BRANCH = "chargehand/work"


def work(yard: Yard, name: str = "work") -> str:
    """Make a commit in the depot."""
    return yard.depot().commit(yard.base().tree, (yard.base().commit,), name)


def brought(yard: Yard, note: str, branch: str = BRANCH) -> str:
    """Make a commit in the depot with a note, and export only the commit to the user's repository."""
    commit = work(yard, branch)
    assert export_branch(yard.depot(), commit, branch=branch, expected_old=None).state == "done"
    yard.depot().annotate(commit, note)
    return commit


def depot_git(yard: Yard, *words: str) -> str:
    return git(yard.depot().path, *words)


def show(repository: Path, commit: str) -> str:
    return git(repository, "notes", "--ref", "chargehand", "show", commit)


def add(repository: Path, commit: str, note: str) -> None:
    """Write a note as a person would."""
    git(repository, "notes", "--ref", "chargehand", "append", "-m", note, commit)


def test_a_note_is_read_back_by_us_and_by_git(yard: Yard) -> None:
    commit = work(yard)
    assert yard.depot().annotation(commit) is None
    assert yard.depot().annotate(commit, '{"a":1}')
    assert yard.open().annotation(commit) == '{"a":1}\n'
    assert show(yard.depot().path, commit) == '{"a":1}'
    assert depot_git(yard, "fsck", "--strict", "--no-dangling") == ""


def test_the_same_note_twice_is_one_and_another_is_added(yard: Yard) -> None:
    commit = work(yard)
    yard.depot().annotate(commit, "one")
    tip = yard.depot().read_ref(NOTES)
    assert not yard.depot().annotate(commit, "one\n")
    assert yard.depot().read_ref(NOTES) == tip
    assert yard.depot().annotate(commit, "two\none\ntwo")
    assert yard.depot().annotation(commit) == "one\ntwo\n"
    assert depot_git(yard, "rev-list", "--count", NOTES) == "2"


def test_notes_on_nothing_and_of_nothing_are_refused(yard: Yard) -> None:
    with pytest.raises(NotFoundError):
        yard.depot().annotate("1" * 40, "x")
    with pytest.raises(UsageError) as caught:
        yard.depot().annotate(work(yard), " \n")
    assert caught.value.code == "note_empty"
    assert yard.depot().read_ref(NOTES) is None


def test_many_notes_of_git_stay_whatever_directories_it_spread_them_over(yard: Yard) -> None:
    """Git moves notes into directories once there are some hundred; ours are written next to and into them."""
    commits = [work(yard, f"commit {number}") for number in range(400)]
    lines = "".join(
        f"commit refs/notes/chargehand\ncommitter A <a@b> 1 +0000\ndata 1\nn\nN inline {commit}\ndata 3\nold\n\n"
        for commit in commits[:300]
    )
    feed(yard.depot().path, lines)
    assert "/" in depot_git(yard, "ls-tree", "-r", "--name-only", NOTES).splitlines()[0], "git has spread them"
    for commit in commits[298:304]:
        assert yard.depot().annotate(commit, "new")
    assert yard.depot().annotation(commits[0]) == "old"
    assert show(yard.depot().path, commits[299]) == "old\nnew"
    assert show(yard.depot().path, commits[303]) == "new"
    assert len(depot_git(yard, "notes", "--ref", "chargehand", "list").splitlines()) == 304
    add(yard.depot().path, commits[303], "git's own")
    assert (yard.depot().annotation(commits[303]) or "").startswith("new\n")
    assert yard.depot().annotation(commits[299]) == "old\nnew\n"


def feed(repository: Path, stream: str) -> None:
    file = repository / "stream"
    file.write_text(stream)
    with file.open() as source:
        child = os.fork()
        if not child:
            os.dup2(source.fileno(), 0)
            os.execvp("git", ["git", f"--git-dir={repository}", "fast-import", "--quiet"])
        assert os.waitpid(child, 0)[1] == 0
    file.unlink()


def test_a_note_of_someone_faster_is_kept(yard: Yard) -> None:
    """Other programs may write the ref without our lock: the swap fails, and the note is added after theirs."""
    mine, theirs = work(yard, "mine"), work(yard, "theirs")
    left = [3]

    def interfere(point: str) -> None:
        if point == "notes:written" and left[0]:
            left[0] -= 1
            add(yard.depot().path, theirs, f"theirs {left[0]}")

    assert yard.open(fault=interfere).annotate(mine, "mine")
    assert yard.depot().annotation(mine) == "mine\n"
    assert all(f"theirs {number}" in show(yard.depot().path, theirs) for number in range(3))


def test_who_is_never_fast_enough_is_told(yard: Yard) -> None:
    mine, theirs = work(yard, "mine"), work(yard, "theirs")
    numbers = iter(range(1000))

    def interfere(point: str) -> None:
        if point == "notes:written":
            add(yard.depot().path, theirs, str(next(numbers)))

    with pytest.raises(RefMovedError):
        yard.open(fault=interfere).annotate(mine, "mine")


ANNOTATE_MANY = """
import sys
from pathlib import Path
from chargehand.workspace.depot import Depot
from chargehand.workspace.export import export_notes
name, root, repository, *commits = sys.argv[1:]
depot = Depot.open(Path(root), repository=Path(repository))
for commit in commits:
    depot.annotate(commit, name)
    export_notes(depot, commit)
"""


def test_processes_note_the_same_commits_and_lose_nothing(yard: Yard, tmp_path: Path) -> None:
    """Two of one project, and one with another state directory that shares only the user's repository."""
    yard.depot()
    commits = [brought(yard, "first", f"chargehand/{number}") for number in range(4)]
    other = Depot.open(tmp_path / "other", repository=yard.repository)
    for number in range(4):
        git(other.path, "fetch", "-q", str(yard.repository), f"chargehand/{number}:refs/kept/{number}")
    roots = (("a", yard.root), ("b", yard.root), ("c", tmp_path / "other"))
    program = (sys.executable, "-c", ANNOTATE_MANY)
    processes = [subprocess.Popen([*program, name, root, yard.repository, *commits]) for name, root in roots]
    assert [process.wait() for process in processes] == [0, 0, 0]
    for commit in commits:
        assert sorted((yard.depot().annotation(commit) or "").split()) == ["a", "b", "first"]
        assert sorted(show(yard.repository, commit).split()) == ["a", "b", "c", "first"]


def test_a_crash_before_the_swap_leaves_the_notes_as_they_were(yard: Yard) -> None:
    class Crash(BaseException):
        pass

    def crash(point: str) -> None:
        if point == "notes:written":
            raise Crash

    commit = brought(yard, "one")
    with pytest.raises(Crash):
        yard.open(fault=crash).annotate(commit, "two")
    assert yard.depot().annotation(commit) == "one\n"
    with pytest.raises(Crash):
        export_notes(yard.open(fault=crash), commit)
    assert yard.open().annotate(commit, "two")
    assert export_notes(yard.open(), commit)
    assert show(yard.repository, commit) == "one\ntwo"


# --- export


def test_only_the_note_of_this_commit_goes_out_and_nothing_else_changes(yard: Yard) -> None:
    commit = brought(yard, "mine")
    yard.depot().annotate(work(yard, "not exported"), "secret")
    before = repository_state(yard.repository, without=NOTES)
    assert export_notes(yard.depot(), commit)
    assert show(yard.repository, commit) == "mine"
    assert len(git(yard.repository, "notes", "--ref", "chargehand", "list").splitlines()) == 1
    assert repository_state(yard.repository, without=NOTES) == before
    assert git(yard.repository, "fsck", "--strict", "--no-dangling") == ""
    tip = git(yard.repository, "rev-parse", NOTES)
    assert not export_notes(yard.depot(), commit)
    assert git(yard.repository, "rev-parse", NOTES) == tip


def test_notes_that_are_there_stay(yard: Yard) -> None:
    commit = brought(yard, "ours")
    add(yard.repository, commit, "a person's, without us")
    add(yard.repository, "main", "on another commit")
    old = git(yard.repository, "rev-parse", NOTES)
    assert export_notes(yard.depot(), commit)
    assert show(yard.repository, commit) == "a person's, without us\nours"
    assert show(yard.repository, "main") == "on another commit"
    assert git(yard.repository, "rev-parse", f"{NOTES}^") == old
    git(yard.repository, "gc", "-q", "--prune=now")
    assert not export_notes(yard.depot(), commit)
    assert show(yard.repository, "main") == "on another commit"


def test_a_commit_without_a_note_is_nothing_to_do(yard: Yard) -> None:
    assert not export_notes(yard.depot(), work(yard))
    assert not git(yard.repository, "for-each-ref", "refs/notes")


def test_the_users_hooks_do_not_run(yard: Yard) -> None:
    commit = brought(yard, "ours")
    hook = yard.repository / ".git/hooks/reference-transaction"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {yard.repository}/hook-ran\n")
    hook.chmod(0o755)
    assert export_notes(yard.depot(), commit)
    assert not (yard.repository / "hook-ran").exists()


def test_notes_come_to_a_linked_worktrees_repository_and_to_a_bare_one(yard: Yard, tmp_path: Path) -> None:
    git(yard.repository, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    git(tmp_path, "clone", "-q", "--bare", str(yard.repository), str(tmp_path / "bare.git"))
    for number, place in enumerate((tmp_path / "side", tmp_path / "bare.git")):
        depot = Depot.open(tmp_path / f"state-{number}", repository=place)
        base = depot.resolve_base(None)
        commit = depot.commit(base.tree, (base.commit,), "x")
        depot.annotate(commit, "ours")
        assert export_branch(depot, commit, branch=BRANCH, expected_old=None).state == "done"
        assert export_notes(depot, commit)
        assert show(place, commit) == "ours"


def blocked(yard: Yard, commit: str) -> str:
    """Return why the note cannot be exported; the branch is exported anyway and nothing else has changed."""
    before = repository_state(yard.repository, without="nothing")
    with pytest.raises(RepositoryError) as caught:
        export_notes(yard.depot(), commit)
    assert (caught.value.code, bool(caught.value.hint)) == ("notes_unusable", True)
    assert repository_state(yard.repository, without="nothing") == before
    return caught.value.message


def test_a_commit_that_was_not_exported_is_refused(yard: Yard) -> None:
    commit = work(yard)
    yard.depot().annotate(commit, "ours")
    assert commit in blocked(yard, commit)


def test_a_ref_that_is_in_the_way(yard: Yard) -> None:
    commit = brought(yard, "ours")
    git(yard.repository, "update-ref", f"{NOTES}/below", "main")
    assert NOTES in blocked(yard, commit)
    git(yard.repository, "update-ref", "-d", f"{NOTES}/below")
    (yard.repository / ".git/refs/notes").mkdir(exist_ok=True)
    (yard.repository / ".git/refs/notes/chargehand.lock").touch()
    assert "lock" in blocked(yard, commit)
    (yard.repository / ".git/refs/notes/chargehand.lock").unlink()
    assert export_notes(yard.depot(), commit)


def test_a_ref_that_stands_for_another_is_not_followed(yard: Yard) -> None:
    commit = brought(yard, "ours")
    git(yard.repository, "symbolic-ref", NOTES, "refs/heads/main")
    assert "refs/heads/main" in blocked(yard, commit)


def test_a_ref_that_holds_no_notes(yard: Yard) -> None:
    commit = brought(yard, "ours")
    git(yard.repository, "update-ref", NOTES, git(yard.repository, "rev-parse", "main:README.md"))
    blocked(yard, commit)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_objects_that_cannot_be_written(yard: Yard) -> None:
    commit = brought(yard, "ours")
    objects = yard.repository / ".git/objects"
    places = [objects, *(place for place in objects.iterdir() if place.is_dir())]
    for place in places:
        place.chmod(0o500)
    try:
        assert "ermission" in blocked(yard, commit)
    finally:
        for place in places:
            place.chmod(0o755)
