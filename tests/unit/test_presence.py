"""A promoted change is found on a branch however a person brought it there, and is missed once it is gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import git, make_repository, repository_state, write_files

from chargehand.core.records import Base, Presence
from chargehand.workspace.depot import Depot
from chargehand.workspace.errors import GitError
from chargehand.workspace.presence import find_change

LINES = "".join(f"line {number}\n" for number in range(40))
CHANGED = LINES.replace("line 20\n", "line twenty\n")


class Branch:
    """A repository whose branch `result` has a change in two files, and its depot, which has the commit too."""

    def __init__(self, place: Path) -> None:
        self.repo = make_repository(place / "repo", {"a.txt": LINES, "b.txt": "b\n", "other.txt": "o\n"})
        self.depot = Depot.open(place / "depot", repository=self.repo)
        self.base = self.depot.resolve_base("main")
        self.git("checkout", "-qb", "result")
        self.write({"a.txt": CHANGED, "new.txt": "new\n"})
        self.commit = self.save("the change")
        self.depot.resolve_base("result")
        self.git("checkout", "-q", "main")

    def git(self, *words: str) -> str:
        return git(self.repo, *words)

    def write(self, files: dict[str, str]) -> None:
        write_files(self.repo, files)

    def save(self, message: str, files: dict[str, str] | None = None) -> str:
        self.write(files or {})
        self.git("add", "-A")
        self.git("commit", "-qm", message)
        return self.git("rev-parse", "HEAD").strip()

    def find(self, base: Base | None = None, commit: str | None = None) -> tuple[Presence, str] | None:
        before = repository_state(self.repo)
        found = find_change(self.depot, "main", base or self.base, commit or self.commit)
        assert repository_state(self.repo) == before
        return None if found is None else (found.presence, found.by)


@pytest.fixture
def branch(tmp_path: Path) -> Branch:
    return Branch(tmp_path)


def merge(branch: Branch) -> None:
    branch.save("mine", {"other.txt": "mine\n"})
    branch.git("merge", "-q", "--no-edit", "result")


def squash(branch: Branch) -> None:
    branch.save("mine", {"other.txt": "mine\n"})
    branch.git("merge", "-q", "--squash", "result")
    branch.save("squashed, with another file", {"b.txt": "b, too\n"})


def rebase(branch: Branch) -> None:
    branch.save("mine", {"a.txt": LINES.replace("line 1\n", "line one\n")})
    branch.git("rebase", "-q", "main", "result")
    branch.git("checkout", "-q", "main")
    branch.git("merge", "-q", "--ff-only", "result")


def amend(branch: Branch) -> None:
    branch.git("merge", "-q", "--ff-only", "result")
    branch.git("commit", "--amend", "-qm", "a better message")


def revert_twice(branch: Branch) -> None:
    branch.git("merge", "-q", "--ff-only", "result")
    branch.git("revert", "--no-edit", "HEAD")
    branch.git("revert", "--no-edit", "HEAD")


def work_on(branch: Branch) -> None:
    branch.git("merge", "-q", "--ff-only", "result")
    branch.save("later work on the same files", {"a.txt": CHANGED.replace("twenty", "XX"), "new.txt": "newer\n"})


def revert_another(branch: Branch) -> None:
    another = branch.save("another", {"other.txt": "another\n"})
    branch.git("merge", "-q", "--no-edit", "result")
    branch.git("revert", "--no-edit", another)


@pytest.mark.parametrize("bring", [merge, squash, rebase, amend, revert_twice, work_on, revert_another])
def test_a_change_is_present_however_it_came(branch: Branch, bring: Callable[[Branch], None]) -> None:
    bring(branch)
    found = branch.find()
    assert found is not None
    assert found[0] == "present"


def test_the_commit_itself_at_the_tip_is_found_without_a_search(branch: Branch) -> None:
    branch.git("merge", "-q", "--ff-only", "result")
    assert branch.find() == ("present", "")


def leave(branch: Branch) -> None:
    branch.save("mine", {"other.txt": "mine\n"})


def reset(branch: Branch) -> None:
    branch.git("merge", "-q", "--ff-only", "result")
    branch.git("reset", "-q", "--hard", "HEAD^")
    branch.save("another history", {"other.txt": "mine\n"})


def amend_content(branch: Branch) -> None:
    branch.git("merge", "-q", "--ff-only", "result")
    branch.write({"new.txt": "something else\n"})
    branch.git("add", "-A")
    branch.git("commit", "--amend", "-q", "--no-edit")


def start_anew(branch: Branch) -> None:
    branch.git("checkout", "-q", "--orphan", "fresh")
    branch.save("an orphan", {"other.txt": "mine\n"})
    branch.git("branch", "-qM", "fresh", "main")


@pytest.mark.parametrize("lose", [leave, reset, amend_content, start_anew])
def test_a_change_that_is_in_no_commit_of_the_branch_is_absent(
    branch: Branch, lose: Callable[[Branch], None]
) -> None:
    lose(branch)
    assert branch.find() == ("absent", "")


def revert(branch: Branch) -> str:
    branch.git("merge", "-q", "--ff-only", "result")
    branch.save("more", {"a.txt": CHANGED.replace("line 1\n", "line one\n")})
    branch.git("revert", "--no-edit", branch.commit)
    return branch.git("rev-parse", "HEAD").strip()


def revert_with_own_message(branch: Branch) -> str:
    revert(branch)
    branch.git("commit", "--amend", "-qm", "it broke everything")
    return branch.git("rev-parse", "HEAD").strip()


def revert_by_message(branch: Branch) -> str:
    branch.git("merge", "-q", "--ff-only", "result")
    files = {"a.txt": LINES.replace("line 21\n", "line 21, near the change\n"), "b.txt": "also\n"}
    return branch.save(f"Back\n\nThis reverts commit {branch.commit}, which broke it.", files)


def revert_a_squash(branch: Branch) -> str:
    squash(branch)
    branch.git("revert", "--no-edit", "HEAD")
    return branch.git("rev-parse", "HEAD").strip()


def revert_a_merge(branch: Branch) -> str:
    merge(branch)
    branch.git("revert", "--no-edit", "-m", "1", "HEAD")
    return branch.git("rev-parse", "HEAD").strip()


def revert_three_times(branch: Branch) -> str:
    revert_twice(branch)
    branch.git("revert", "--no-edit", "HEAD")
    return branch.git("rev-parse", "HEAD").strip()


def put_files_back(branch: Branch) -> str:
    branch.git("merge", "-q", "--ff-only", "result")
    branch.save("half", {"a.txt": LINES})
    (branch.repo / "new.txt").unlink()
    branch.save("the other half", {"b.txt": "also\n"})
    return ""


def merge_without_content(branch: Branch) -> str:
    branch.save("mine", {"other.txt": "mine\n"})
    branch.git("merge", "-q", "--no-edit", "-s", "ours", "result")
    return ""


@pytest.mark.parametrize(
    "undo",
    [
        revert,
        revert_with_own_message,
        revert_by_message,
        revert_a_squash,
        revert_a_merge,
        revert_three_times,
        put_files_back,
        merge_without_content,
    ],
)
def test_a_change_is_undone_by_a_commit_that_takes_it_back(branch: Branch, undo: Callable[[Branch], str]) -> None:
    by = undo(branch)
    found = branch.find()
    assert found == ("undone", by)


def test_a_second_promotion_is_found_by_its_own_patch(branch: Branch) -> None:
    branch.git("checkout", "-q", "result")
    second = branch.save("the second", {"b.txt": "second\n"})
    branch.depot.resolve_base("result")
    branch.git("checkout", "-q", "main")
    branch.save("mine", {"other.txt": "mine\n"})
    branch.git("cherry-pick", branch.commit, second)
    picked = branch.git("rev-parse", "HEAD").strip()
    assert branch.find(commit=second) == ("present", picked)


def test_a_binary_change_is_told_from_its_inverse(branch: Branch) -> None:
    branch.git("checkout", "-q", "result")
    (branch.repo / "b.txt").write_bytes(b"\0\1\2" * 50)
    commit = branch.save("binary")
    branch.depot.resolve_base("result")
    base = branch.depot.resolve_base(branch.commit)
    branch.git("checkout", "-q", "main")
    branch.git("merge", "-q", "--ff-only", "result")
    branch.save("mine", {"other.txt": "mine\n"})
    found = branch.find(base, commit)
    assert found is not None
    assert found[0] == "present"
    branch.git("revert", "--no-edit", commit)
    found = branch.find(base, commit)
    assert found is not None
    assert found[0] == "undone"


def test_a_deleted_branch_says_nothing(branch: Branch) -> None:
    branch.git("checkout", "-q", "--detach")
    branch.git("branch", "-qD", "main")
    assert branch.find() is None


def test_the_commit_is_found_after_the_person_deleted_its_branch_and_objects(branch: Branch) -> None:
    squash(branch)
    branch.git("branch", "-qD", "result")
    branch.git("reflog", "expire", "--expire=now", "--all")
    branch.git("gc", "-q", "--prune=now")
    found = branch.find()
    assert found is not None
    assert found[0] == "present"


def test_no_program_of_the_persons_configuration_runs(branch: Branch) -> None:
    ran = branch.repo.parent / "ran"
    (branch.repo / ".git/info/attributes").write_text("*.txt diff=own\n")
    for key in ("diff.external", "diff.own.textconv", "diff.own.command", "core.pager", "gpg.program"):
        branch.git("config", key, f"touch {ran}; cat")
    branch.git("config", "log.showSignature", "true")
    squash(branch)
    ran.unlink(missing_ok=True)
    assert branch.find() is not None
    assert not ran.exists()


def test_a_repository_with_missing_objects_is_an_error_and_not_a_fate(branch: Branch) -> None:
    squash(branch)
    tip = branch.git("rev-parse", "HEAD^{tree}").strip()
    (branch.repo / ".git/objects" / tip[:2] / tip[2:]).unlink()
    with pytest.raises(GitError):
        branch.find()
