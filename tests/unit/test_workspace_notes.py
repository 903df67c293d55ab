"""Notes on commits: added to existing ones, in the depot and in the user's repository, never lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import git, repository_state
from tests.workspace_kit import WorkspaceKit

from chargehand.core.errors import NotFoundError, RepositoryError, UsageError
from chargehand.workspace.depot import Depot
from chargehand.workspace.errors import RefMovedError
from chargehand.workspace.export import export_branch, export_notes

NOTES = "refs/notes/chargehand"

BRANCH = "chargehand/work"


def work(kit: WorkspaceKit, name: str = "work") -> str:
    """Make a commit in the depot."""
    return kit.depot().commit(kit.base().tree, (kit.base().commit,), name)


def brought(kit: WorkspaceKit, note: str, branch: str = BRANCH) -> str:
    """Make a commit in the depot with a note, and export only the commit to the user's repository."""
    commit = work(kit, branch)
    assert export_branch(kit.depot(), commit, branch=branch, expected_old=None).state == "done"
    kit.depot().annotate(commit, note)
    return commit


def depot_git(kit: WorkspaceKit, *words: str) -> str:
    return git(kit.depot().path, *words)


def show(repository: Path, commit: str) -> str:
    return git(repository, "notes", "--ref", "chargehand", "show", commit)


def add(repository: Path, commit: str, note: str) -> None:
    """Write a note as a person would."""
    git(repository, "notes", "--ref", "chargehand", "append", "-m", note, commit)


def test_a_note_is_read_back_by_us_and_by_git(kit: WorkspaceKit) -> None:
    commit = work(kit)
    assert kit.depot().annotation(commit) is None
    assert kit.depot().annotate(commit, '{"a":1}')
    assert kit.open().annotation(commit) == '{"a":1}\n'
    assert show(kit.depot().path, commit) == '{"a":1}'
    assert depot_git(kit, "fsck", "--strict", "--no-dangling") == ""


def test_a_repeated_note_line_is_not_duplicated_and_a_new_line_is_added(kit: WorkspaceKit) -> None:
    commit = work(kit)
    kit.depot().annotate(commit, "one")
    tip = kit.depot().read_ref(NOTES)
    assert not kit.depot().annotate(commit, "one\n")
    assert kit.depot().read_ref(NOTES) == tip
    assert kit.depot().annotate(commit, "two\none\ntwo")
    assert kit.depot().annotation(commit) == "one\ntwo\n"
    assert depot_git(kit, "rev-list", "--count", NOTES) == "2"


def test_a_note_on_a_missing_commit_or_an_empty_note_is_refused(kit: WorkspaceKit) -> None:
    with pytest.raises(NotFoundError):
        kit.depot().annotate("1" * 40, "x")
    with pytest.raises(UsageError) as caught:
        kit.depot().annotate(work(kit), " \n")
    assert caught.value.code == "note_empty"
    assert kit.depot().read_ref(NOTES) is None


def test_notes_in_fanout_directories_are_kept_and_extended(kit: WorkspaceKit) -> None:
    """Git moves notes into directories once there are some hundred; ours are written next to and into them."""
    commits = [work(kit, f"commit {number}") for number in range(400)]
    lines = "".join(
        f"commit refs/notes/chargehand\ncommitter A <a@b> 1 +0000\ndata 1\nn\nN inline {commit}\ndata 3\nold\n\n"
        for commit in commits[:300]
    )
    feed(kit.depot().path, lines)
    assert "/" in depot_git(kit, "ls-tree", "-r", "--name-only", NOTES).splitlines()[0], "git has spread them"
    for commit in commits[298:304]:
        assert kit.depot().annotate(commit, "new")
    assert kit.depot().annotation(commits[0]) == "old"
    assert show(kit.depot().path, commits[299]) == "old\nnew"
    assert show(kit.depot().path, commits[303]) == "new"
    assert len(depot_git(kit, "notes", "--ref", "chargehand", "list").splitlines()) == 304
    add(kit.depot().path, commits[303], "git's own")
    assert (kit.depot().annotation(commits[303]) or "").startswith("new\n")
    assert kit.depot().annotation(commits[299]) == "old\nnew\n"


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


def test_a_note_of_someone_faster_is_kept(kit: WorkspaceKit) -> None:
    """Other programs may write the ref without our lock: the swap fails, and the note is added after theirs."""
    mine, theirs = work(kit, "mine"), work(kit, "theirs")
    left = [3]

    def interfere(point: str) -> None:
        if point == "notes:written" and left[0]:
            left[0] -= 1
            add(kit.depot().path, theirs, f"theirs {left[0]}")

    assert kit.open(fault=interfere).annotate(mine, "mine")
    assert kit.depot().annotation(mine) == "mine\n"
    assert all(f"theirs {number}" in show(kit.depot().path, theirs) for number in range(3))


def test_annotating_raises_if_the_ref_moves_at_every_retry(kit: WorkspaceKit) -> None:
    mine, theirs = work(kit, "mine"), work(kit, "theirs")
    numbers = iter(range(1000))

    def interfere(point: str) -> None:
        if point == "notes:written":
            add(kit.depot().path, theirs, str(next(numbers)))

    with pytest.raises(RefMovedError):
        kit.open(fault=interfere).annotate(mine, "mine")


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


def test_concurrent_processes_annotate_the_same_commits_without_loss(kit: WorkspaceKit, tmp_path: Path) -> None:
    """Two of one project, and one with another state directory that shares only the user's repository."""
    kit.depot()
    commits = [brought(kit, "first", f"chargehand/{number}") for number in range(4)]
    other = Depot.open(tmp_path / "other", repository=kit.repository)
    for number in range(4):
        git(other.path, "fetch", "-q", str(kit.repository), f"chargehand/{number}:refs/kept/{number}")
    roots = (("a", kit.root), ("b", kit.root), ("c", tmp_path / "other"))
    program = (sys.executable, "-c", ANNOTATE_MANY)
    processes = [subprocess.Popen([*program, name, root, kit.repository, *commits]) for name, root in roots]
    assert [process.wait() for process in processes] == [0, 0, 0]
    for commit in commits:
        assert sorted((kit.depot().annotation(commit) or "").split()) == ["a", "b", "first"]
        assert sorted(show(kit.repository, commit).split()) == ["a", "b", "c", "first"]


def test_a_crash_before_the_ref_update_leaves_the_notes_unchanged(kit: WorkspaceKit) -> None:
    class Crash(BaseException):
        pass

    def crash(point: str) -> None:
        if point == "notes:written":
            raise Crash

    commit = brought(kit, "one")
    with pytest.raises(Crash):
        kit.open(fault=crash).annotate(commit, "two")
    assert kit.depot().annotation(commit) == "one\n"
    with pytest.raises(Crash):
        export_notes(kit.open(fault=crash), commit)
    assert kit.open().annotate(commit, "two")
    assert export_notes(kit.open(), commit)
    assert show(kit.repository, commit) == "one\ntwo"


# --- export


def test_only_the_note_of_the_exported_commit_is_exported(kit: WorkspaceKit) -> None:
    commit = brought(kit, "mine")
    kit.depot().annotate(work(kit, "not exported"), "secret")
    before = repository_state(kit.repository, without=NOTES)
    assert export_notes(kit.depot(), commit)
    assert show(kit.repository, commit) == "mine"
    assert len(git(kit.repository, "notes", "--ref", "chargehand", "list").splitlines()) == 1
    assert repository_state(kit.repository, without=NOTES) == before
    assert git(kit.repository, "fsck", "--strict", "--no-dangling") == ""
    tip = git(kit.repository, "rev-parse", NOTES)
    assert not export_notes(kit.depot(), commit)
    assert git(kit.repository, "rev-parse", NOTES) == tip


def test_existing_notes_of_the_repository_are_kept(kit: WorkspaceKit) -> None:
    commit = brought(kit, "ours")
    add(kit.repository, commit, "a person's, without us")
    add(kit.repository, "main", "on another commit")
    old = git(kit.repository, "rev-parse", NOTES)
    assert export_notes(kit.depot(), commit)
    assert show(kit.repository, commit) == "a person's, without us\nours"
    assert show(kit.repository, "main") == "on another commit"
    assert git(kit.repository, "rev-parse", f"{NOTES}^") == old
    git(kit.repository, "gc", "-q", "--prune=now")
    assert not export_notes(kit.depot(), commit)
    assert show(kit.repository, "main") == "on another commit"


def test_exporting_a_commit_without_a_note_has_no_effect(kit: WorkspaceKit) -> None:
    assert not export_notes(kit.depot(), work(kit))
    assert not git(kit.repository, "for-each-ref", "refs/notes")


def test_the_users_hooks_do_not_run(kit: WorkspaceKit) -> None:
    commit = brought(kit, "ours")
    hook = kit.repository / ".git/hooks/reference-transaction"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {kit.repository}/hook-ran\n")
    hook.chmod(0o755)
    assert export_notes(kit.depot(), commit)
    assert not (kit.repository / "hook-ran").exists()


def test_notes_are_exported_to_linked_worktrees_and_bare_repositories(kit: WorkspaceKit, tmp_path: Path) -> None:
    git(kit.repository, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    git(tmp_path, "clone", "-q", "--bare", str(kit.repository), str(tmp_path / "bare.git"))
    for number, place in enumerate((tmp_path / "side", tmp_path / "bare.git")):
        depot = Depot.open(tmp_path / f"state-{number}", repository=place)
        base = depot.resolve_base(None)
        commit = depot.commit(base.tree, (base.commit,), "x")
        depot.annotate(commit, "ours")
        assert export_branch(depot, commit, branch=BRANCH, expected_old=None).state == "done"
        assert export_notes(depot, commit)
        assert show(place, commit) == "ours"


def blocked(kit: WorkspaceKit, commit: str) -> str:
    """Return why the note cannot be exported; the branch is exported anyway and nothing else has changed."""
    before = repository_state(kit.repository, without="nothing")
    with pytest.raises(RepositoryError) as caught:
        export_notes(kit.depot(), commit)
    assert (caught.value.code, bool(caught.value.hint)) == ("notes_unusable", True)
    assert repository_state(kit.repository, without="nothing") == before
    return caught.value.message


def test_a_commit_that_was_not_exported_is_refused(kit: WorkspaceKit) -> None:
    commit = work(kit)
    kit.depot().annotate(commit, "ours")
    assert commit in blocked(kit, commit)


def test_a_conflicting_or_locked_ref_blocks_the_note_export(kit: WorkspaceKit) -> None:
    commit = brought(kit, "ours")
    git(kit.repository, "update-ref", f"{NOTES}/below", "main")
    assert NOTES in blocked(kit, commit)
    git(kit.repository, "update-ref", "-d", f"{NOTES}/below")
    (kit.repository / ".git/refs/notes").mkdir(exist_ok=True)
    (kit.repository / ".git/refs/notes/chargehand.lock").touch()
    assert "lock" in blocked(kit, commit)
    (kit.repository / ".git/refs/notes/chargehand.lock").unlink()
    assert export_notes(kit.depot(), commit)


def test_a_symbolic_notes_ref_blocks_the_note_export(kit: WorkspaceKit) -> None:
    commit = brought(kit, "ours")
    git(kit.repository, "symbolic-ref", NOTES, "refs/heads/main")
    assert "refs/heads/main" in blocked(kit, commit)


def test_a_ref_that_holds_no_notes(kit: WorkspaceKit) -> None:
    commit = brought(kit, "ours")
    git(kit.repository, "update-ref", NOTES, git(kit.repository, "rev-parse", "main:README.md"))
    blocked(kit, commit)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_objects_that_cannot_be_written(kit: WorkspaceKit) -> None:
    commit = brought(kit, "ours")
    objects = kit.repository / ".git/objects"
    places = [objects, *(place for place in objects.iterdir() if place.is_dir())]
    for place in places:
        place.chmod(0o500)
    try:
        assert "ermission" in blocked(kit, commit)
    finally:
        for place in places:
            place.chmod(0o755)
