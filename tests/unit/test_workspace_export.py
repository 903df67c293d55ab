"""The exits of the depot: a branch by compare-and-swap, a fast-forward of a clean checkout, or nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import git, repository_state
from tests.workspace_kit import WorkspaceKit, agent

from chargehand.core.errors import RepositoryError
from chargehand.core.records import Export
from chargehand.workspace.checkout import fast_forward
from chargehand.workspace.depot import Depot
from chargehand.workspace.export import check_prefix, export_branch

BRANCH = "chargehand/work"


class Work:
    """A commit in the depot, ready for export: one file changed, one deleted, one added, one ignored added."""

    def __init__(self, place: Path) -> None:
        self.kit = WorkspaceKit(place)
        self.repository = self.kit.repository
        git(self.repository, "config", "user.name", "Ada")
        git(self.repository, "config", "user.email", "ada@example.org")
        self.depot: Depot = self.kit.depot()
        self.base = self.kit.base()
        workspace = self.kit.workspace("worktree", include=("*.log",))
        agent(
            workspace,
            "echo new > README.md; rm docs/a.md; echo n > added; mkdir d; echo l > d/x.log; ln -s added l",
        )
        self.commit = self.depot.commit(workspace.scan().tree, (self.base.commit,), "work")
        self.state = repository_state(self.repository)

    def export(self, branch: str = BRANCH, *, old: str | None = None) -> Export:
        return export_branch(self.kit.open(), self.commit, branch=branch, expected_old=old)

    def apply(self) -> Export:
        return fast_forward(self.kit.open(), self.commit, branch="main", at=self.base.commit)

    def untouched(self) -> bool:
        return repository_state(self.repository) == self.state


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path)


def test_export_creates_only_the_branch_and_is_repeatable(work: Work) -> None:
    done = work.export()
    assert (done.ref, done.state) == (f"refs/heads/{BRANCH}", "done")
    assert git(work.repository, "rev-parse", BRANCH) == work.commit
    assert git(work.repository, "fsck", "--strict", "--no-dangling") == ""
    assert work.untouched()
    assert not (work.repository / ".git/FETCH_HEAD").exists()
    assert work.export() == done, "a second export finds it done"


def test_export_moves_a_branch_only_from_the_expected_commit(work: Work) -> None:
    git(work.repository, "branch", BRANCH)
    blocked = work.export()
    assert (blocked.state, "exists already" in blocked.reason) == ("blocked", True)
    assert work.export(old="1" * 40).state == "blocked"
    assert git(work.repository, "rev-parse", BRANCH) == work.base.commit
    assert work.export(old=work.base.commit).state == "done"
    git(work.repository, "branch", "-q", "-D", BRANCH)
    later = work.depot.commit(work.base.tree, (work.commit,), "later")
    gone = export_branch(work.depot, later, branch=BRANCH, expected_old=work.commit)
    assert (gone.state, "at nothing" in gone.reason) == ("blocked", True)


@pytest.mark.parametrize(
    ("prepare", "branch", "said"),
    [
        (lambda work: git(work.repository, "branch", "chargehand"), BRANCH, "no room"),
        (lambda work: git(work.repository, "branch", f"{BRANCH}/x"), BRANCH, "no room"),
        (lambda work: None, "bad..name", "not a branch name"),
        (lambda work: None, "-x", "not a branch name"),
    ],
)
def test_a_conflicting_or_invalid_branch_name_blocks_the_export(
    work: Work, prepare: Callable[[Work], object], branch: str, said: str
) -> None:
    prepare(work)
    blocked = work.export(branch)
    assert blocked.state == "blocked"
    assert said in blocked.reason


def test_export_leaves_a_checked_out_branch_alone(work: Work, tmp_path: Path) -> None:
    git(work.repository, "worktree", "add", "-q", "-b", BRANCH, str(tmp_path / "side"))
    blocked = work.export(old=work.base.commit)
    assert (blocked.state, "checked out" in blocked.reason) == ("blocked", True)
    assert git(work.repository, "rev-parse", BRANCH) == work.base.commit


def test_the_users_hooks_do_not_run(work: Work) -> None:
    for hook in ("reference-transaction", "post-merge", "post-checkout"):
        path = work.repository / ".git/hooks" / hook
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\ntouch {work.repository}/hook-ran\n")
        path.chmod(0o755)
    assert (work.export().state, work.apply().state) == ("done", "done")
    assert not (work.repository / "hook-ran").exists()


def test_apply_brings_branch_and_files_along(work: Work) -> None:
    (work.repository / "untracked").write_text("mine\n")
    (work.repository / "docs/b.md").write_text("my edit\n")
    assert work.apply().state == "done"
    assert git(work.repository, "rev-parse", "main") == work.commit
    assert (work.repository / "README.md").read_text() == "new\n"
    assert not (work.repository / "docs/a.md").exists()
    assert git(work.repository, "status", "--porcelain") == "M docs/b.md\n?? untracked"
    assert work.apply().state == "done"


@pytest.mark.parametrize(
    ("path", "content"),
    [("README.md", "mine"), ("added", "mine"), ("d/x.log", "mine"), ("d", "mine"), ("l", "mine")],
)
def test_apply_never_overwrites_changes_of_the_user(work: Work, path: str, content: str) -> None:
    place = work.repository / path
    place.parent.mkdir(exist_ok=True)
    place.write_text(content)
    before = repository_state(work.repository)
    blocked = work.apply()
    assert blocked.state == "blocked"
    assert blocked.reason
    assert repository_state(work.repository) == before
    assert place.read_text() == content
    place.unlink()
    git(work.repository, "checkout", "--", ".")
    assert work.apply().state == "done"


def test_apply_is_refused_when_the_branch_moved_or_is_not_checked_out(work: Work) -> None:
    git(work.repository, "checkout", "-q", "-b", "side")
    assert "not checked out" in work.apply().reason
    git(work.repository, "checkout", "-q", "main")
    work.kit.commit("moved on")
    blocked = work.apply()
    assert (blocked.state, "moved to" in blocked.reason) == ("blocked", True)
    unrelated = work.depot.commit(work.base.tree, (), "root")
    moved = git(work.repository, "rev-parse", "main")
    refused = fast_forward(work.kit.open(), unrelated, branch="main", at=moved)
    assert (refused.state, "does not follow" in refused.reason) == ("blocked", True)
    git(work.repository, "checkout", "-q", "--detach")
    with pytest.raises(RepositoryError) as caught:
        work.apply()
    assert caught.value.code == "apply_detached"


@pytest.mark.parametrize(
    "written", [("README.md",), ("added", "docs/a.md"), ("README.md", "added", "d/x.log", "l")]
)
def test_apply_resumes_an_interrupted_fast_forward(work: Work, written: tuple[str, ...]) -> None:
    """Git writes files, then the index, then the ref: a crash may leave any prefix of that."""

    class Crash(BaseException):
        pass

    def crash(point: str) -> None:
        if point == "apply:journal":
            raise Crash

    with pytest.raises(Crash):
        fast_forward(work.kit.open(fault=crash), work.commit, branch="main", at=work.base.commit)
    for path in written:
        place, entry = work.repository / path, work.depot.lookup(work.depot.tree_of(work.commit), path)
        place.parent.mkdir(exist_ok=True)
        place.unlink(missing_ok=True)
        if entry is not None and path == "l":
            os.symlink("added", place)
        elif entry is not None:
            place.write_bytes(work.depot.read_blob(entry.id))
    assert work.apply().state == "done"
    assert git(work.repository, "status", "--porcelain") == ""


def test_apply_resumes_if_only_the_ref_was_not_updated(work: Work) -> None:
    work.apply()
    git(work.repository, "update-ref", "refs/heads/main", work.base.commit)
    journal = f'{{"branch":"main","at":"{work.base.commit}","commit":"{work.commit}"}}'
    (work.kit.root / "apply.json").write_text(journal)
    assert work.apply().state == "done"
    assert git(work.repository, "status", "--porcelain") == ""
    assert not (work.kit.root / "apply.json").exists()


def test_a_journal_does_not_make_local_changes_fair_game(work: Work) -> None:
    journal = f'{{"branch":"main","at":"{work.base.commit}","commit":"{work.commit}"}}'
    (work.kit.root / "apply.json").write_text(journal)
    (work.repository / "README.md").write_text("mine\n")
    (work.repository / "added").write_text("mine too\n")
    assert work.apply().state == "blocked"
    assert (work.repository / "README.md").read_text() == "mine\n"
    assert (work.repository / "added").read_text() == "mine too\n"


@pytest.mark.parametrize(
    ("prefix", "taken"), [("chargehand/", "chargehand"), ("team/bot/", "team"), ("team/bot-", "team")]
)
def test_a_branch_in_the_way_of_a_prefix_is_found(work: Work, prefix: str, taken: str) -> None:
    check_prefix(work.depot, prefix)
    git(work.repository, "branch", taken)
    with pytest.raises(RepositoryError, match=f"a branch '{taken}' exists") as caught:
        check_prefix(work.depot, prefix)
    assert caught.value.code == "branch_in_the_way"
    check_prefix(work.depot, "other/")
