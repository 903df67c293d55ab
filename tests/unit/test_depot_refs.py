"""Refs of the depot that are made without a git process: as git makes them, or left to git."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.conftest import git
from tests.workspace_kit import WorkspaceKit

from chargehand.workspace.depot import Depot
from chargehand.workspace.errors import GitError, RefMovedError

REF = "refs/chargehand/test/made"
ABSENT = "1" * 40


def processes(depot: Depot, ref: str, new: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Make a ref; return the number of git processes that this took."""
    calls: list[str] = []
    run = type(depot.git).run
    with monkeypatch.context() as patch:
        patch.setattr(type(depot.git), "run", lambda *args, **more: (calls.append(args[1]), run(*args, **more))[1])
        depot.swap(ref, new, None)
    return len(calls)


def test_a_new_ref_is_made_without_a_process_and_git_reads_it(
    kit: WorkspaceKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    depot, base = kit.depot(), kit.base()
    before = set(depot.path.rglob("*"))
    assert processes(depot, REF, base.commit, monkeypatch) == 0
    assert depot.git("for-each-ref", "--format=%(objectname)", REF).text == base.commit
    assert set(depot.path.rglob("*")) - before == {depot.path / REF, (depot.path / REF).parent}


@pytest.mark.parametrize("obstacle", ["packed", "locked", "strange name"])
def test_what_only_git_can_decide_is_left_to_git(
    kit: WorkspaceKit, monkeypatch: pytest.MonkeyPatch, obstacle: str
) -> None:
    depot, base = kit.depot(), kit.base()
    ref = "refs/chargehand/test/a.b" if obstacle == "strange name" else REF
    if obstacle == "packed":
        depot.git("pack-refs", "--all")
    if obstacle == "locked":
        lock = depot.path / f"{REF}.lock"
        lock.parent.mkdir(parents=True)
        lock.touch()
        with pytest.raises(GitError):
            depot.swap(ref, base.commit, None)
        assert depot.read_ref(ref) is None
        lock.unlink()
        lock = lock.with_name("another.lock")
        lock.touch()
        assert processes(depot, ref, base.commit, monkeypatch) == 0
    else:
        assert processes(depot, ref, base.commit, monkeypatch) == 1
    assert depot.read_ref(ref) == base.commit


def test_a_ref_is_refused_as_git_refuses_it(kit: WorkspaceKit) -> None:
    depot, base = kit.depot(), kit.base()
    for ref, commit in ((REF, ABSENT), ("refs/chargehand/../../out", base.commit)):
        with pytest.raises(GitError):
            depot.swap(ref, commit, None)
    depot.swap(REF, base.commit, None)
    for clash in (f"{REF}/below", REF.rpartition("/")[0]):
        with pytest.raises(GitError):
            depot.swap(clash, base.commit, None)
    assert depot.git("for-each-ref", "--format=%(refname)", "refs/chargehand/test").lines == [REF]


def test_of_many_makers_of_a_ref_one_succeeds(kit: WorkspaceKit) -> None:
    depot, base = kit.depot(), kit.base()
    commits = [depot.commit(base.tree, (base.commit,), f"commit {number}") for number in range(8)]

    def make(commit: str) -> bool:
        try:
            depot.swap(REF, commit, None)
        except RefMovedError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(make, commits))
    assert made.count(True) == 1
    assert depot.read_ref(REF) == commits[made.index(True)]


def test_a_depot_is_what_git_would_have_made(kit: WorkspaceKit, tmp_path: Path) -> None:
    depot = kit.depot()
    model = tmp_path / "model.git"
    model.mkdir()
    git(model, "init", "-q", "--bare", "--template=", "-b", "main")
    made = {
        line for line in git(depot.path, "config", "--list", "--local").splitlines() if line.startswith("core.")
    }
    assert made - {"core.logallrefupdates=false"} == set(git(model, "config", "--list", "--local").splitlines())
    directories = {path.relative_to(model) for path in model.rglob("*") if path.is_dir()}
    assert all((depot.path / each).is_dir() for each in directories)
    assert (depot.path / "HEAD").read_text() == (model / "HEAD").read_text()
    git(depot.path, "fsck", "--strict")
