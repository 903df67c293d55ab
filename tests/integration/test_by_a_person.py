"""Decisions that only a person makes: promote, roll back, discard, restore an earlier tree."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Cli, Completed, finish, repository, shell
from test_crashes import descendants, survivors, wait_until
from tests.conftest import git, repository_state, write_files

pytestmark = pytest.mark.needs_bwrap

TESTED = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "test_calc.py": (
        "import unittest\nfrom calc import add\n\n\nclass T(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(add(2, 1), 1)\n"
    ),
}
UNITTEST = "python3 -m unittest -q"
TWO_TREES = shell(
    "if [ $CHARGEHAND_ATTEMPT = 1 ]; then echo one > f.txt; exit 1; fi; echo two > g.txt; git checkout -q f.txt"
)


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(tmp_path_factory.mktemp("cli"))


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return repository(tmp_path / "repo")


def decide(cli: Cli, verb: str, result: Completed, *words: str, cwd: Path) -> Completed:
    return cli.say("mission", verb, result.document["mission"], *words, cwd=cwd)


def tip(repo: Path, result: Completed) -> str:
    """Return the commit of the mission's branch."""
    return git(repo, "rev-parse", result.document["branch"])


def test_a_changed_check_surface_waits_for_approval_by_a_person(cli: Cli, repo: Path) -> None:
    before = repository_state(repo)
    waiting = cli.run(repo, agent=shell("sed -i s/a/b/ f.txt; touch conftest.py"))
    assert (waiting.code, waiting.document["status"]) == (3, "waiting"), waiting
    assert waiting.reasons == {"change_unread", "check_surface"}
    done = decide(cli, "promote", waiting, "--reason", "I read it", cwd=repo)
    assert (done.code, done.document["status"]) == (0, "promoted"), done
    assert git(repo, "diff", "--name-only", "main", tip(repo, done)) == "conftest.py\nf.txt"
    assert repository_state(repo) == before
    twice = decide(cli, "promote", waiting, cwd=repo)
    assert (twice.code, twice.error["code"]) == (1, "promoted"), twice
    assert cli.state(done).status == "promoted"


def test_without_checks_a_person_decides(cli: Cli, repo: Path) -> None:
    waiting = cli.say("run", "mend", "--agent", "command:sed -i s/a/b/ f.txt", cwd=repo)
    assert (waiting.code, waiting.document["status"], waiting.reasons) == (3, "waiting", {"checks_missing"})
    assert decide(cli, "promote", waiting, cwd=repo).code == 0


def test_a_failed_result_cannot_be_promoted_by_a_person(cli: Cli, repo: Path) -> None:
    before = repository_state(repo, without="\0")
    red = cli.say("run", "m", "--agent", "command:sed -i s/a/b/ f.txt", "--only-check", "false", cwd=repo)
    assert (red.code, red.document["status"], red.reasons) == (1, "refused", {"check_failed"})
    still = decide(cli, "promote", red, cwd=repo)
    assert (still.code, still.stdout, still.error["code"]) == (1, "", "not_green"), still
    assert still.error["hint"]
    assert cli.state(red).status == "refused"
    nothing = cli.run(repo, agent="command:true")
    assert nothing.reasons == {"no_change"}
    assert decide(cli, "promote", nothing, cwd=repo).error["code"] == "no_change"
    assert repository_state(repo, without="\0") == before


def test_tests_changed_on_purpose(cli: Cli, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo", TESTED)
    change = shell("sed -i 's/a - b/a + b/' calc.py; sed -i 's/2, 1), 1/2, 1), 3/' test_calc.py")
    red = cli.say("run", "add adds", "--agent", change, "--only-check", UNITTEST, cwd=repo)
    assert (red.code, red.document["status"], red.reasons) == (3, "waiting", {"base_tests_fail"}), red
    failed = [check for check in cli.state(red).verdicts[-1].checks if check.status != "passed"]
    assert [check.base_tests for check in failed] == [True]
    done = decide(cli, "promote", red, "--reason", "the test was wrong", cwd=repo)
    assert (done.code, done.document["status"]) == (0, "promoted"), done


def test_roll_back_and_let_in_again(cli: Cli, repo: Path) -> None:
    before = repository_state(repo)
    promoted = cli.run(repo)
    first = tip(repo, promoted)
    back = decide(cli, "rollback", promoted, cwd=repo)
    assert back.code == 0, back
    assert git(repo, "rev-parse", f"{tip(repo, promoted)}^") == first, "nothing moves back"
    assert git(repo, "diff", "main", tip(repo, promoted)) == ""
    twice = decide(cli, "rollback", promoted, cwd=repo)
    assert (twice.code, twice.error["code"]) == (1, "rolled_back")
    assert twice.error["hint"]
    again = decide(cli, "promote", promoted, cwd=repo)
    assert again.code == 0, again
    assert git(repo, "diff", first, tip(repo, promoted)) == ""
    assert git(repo, "rev-list", "--count", f"main..{tip(repo, promoted)}") == "3"
    assert repository_state(repo) == before


def test_roll_back_leaves_a_branch_that_was_moved(cli: Cli, repo: Path, tmp_path: Path) -> None:
    promoted = cli.run(repo)
    branch, own = promoted.document["branch"], tmp_path / "own"
    git(repo, "worktree", "add", "-q", str(own), branch)
    write_files(own, {"mine.txt": "mine\n"})
    git(own, "add", "-A")
    git(own, "commit", "-qm", "mine")
    mine = git(own, "rev-parse", "HEAD")
    blocked = decide(cli, "rollback", promoted, cwd=repo)
    assert (blocked.code, blocked.document["export"]["state"]) == (3, "blocked"), blocked
    assert "mission rollback" in blocked.document["export"]["reason"]
    assert git(repo, "rev-parse", branch) == mine
    git(own, "reset", "-q", "--hard", promoted.document["commit"])
    checked_out = decide(cli, "rollback", promoted, cwd=repo)
    assert (checked_out.code, "checked out" in checked_out.document["export"]["reason"]) == (3, True), checked_out
    git(own, "checkout", "-q", "--detach")
    done = decide(cli, "rollback", promoted, cwd=repo)
    assert done.code == 0, done
    assert git(repo, "diff", "main", branch) == ""


def test_discard(cli: Cli, repo: Path) -> None:
    waiting = cli.run(repo, agent=shell("touch conftest.py"))
    gone = decide(cli, "discard", waiting, cwd=repo)
    assert (gone.code, gone.document["status"]) == (0, "discarded"), gone
    late = decide(cli, "promote", waiting, cwd=repo)
    assert (late.code, late.error["code"]) == (1, "not_promotable")
    assert late.error["hint"]
    promoted = cli.run(repo)
    kept = decide(cli, "discard", promoted, cwd=repo)
    assert (kept.code, kept.error["code"]) == (1, "not_discardable")
    assert "undoes its promotion" in kept.error["hint"]


def test_cancel_from_another_process(cli: Cli, repo: Path) -> None:
    before = repository_state(repo, without="\0")
    process = cli.start(
        "run", "mend", "--agent", shell("echo half > f.txt; sleep 300"), "--only-check", "true", cwd=repo
    )
    wait_until(lambda: any(state.attempts for state in cli.missions(repo)))
    wait_until(lambda: len(descendants(process.pid)) >= 5)
    below = descendants(process.pid)
    [state] = cli.missions(repo)
    assert state.status == "running"
    busy = cli.say("mission", "promote", state.id, cwd=repo)
    assert (busy.code, busy.error["code"]) == (1, "mission_held"), busy
    cancelled = cli.say("mission", "cancel", state.id, cwd=repo)
    assert (cancelled.code, cancelled.document["status"]) == (0, "cancelled"), cancelled
    result = finish(process)
    assert (result.code, result.document["status"], result.reasons) == (1, "cancelled", {"cancelled"}), result
    wait_until(lambda: not survivors(below))
    assert repository_state(repo, without="\0") == before
    over = cli.say("mission", "cancel", state.id, cwd=repo)
    assert (over.code, over.error["code"]) == (1, "not_cancellable")


def test_an_earlier_checkpoint_is_restored_and_merged(cli: Cli, repo: Path) -> None:
    promoted = cli.run(repo, "--attempts", "2", agent=TWO_TREES)
    assert promoted.code == 0, promoted
    first, second = cli.state(promoted).checkpoints
    assert git(repo, "diff", "--name-only", "main", tip(repo, promoted)) == "g.txt"
    mission = promoted.document["mission"]
    restored = cli.say("checkpoint", "restore", mission, first.commit[:10], cwd=repo)
    assert restored.code == 0, restored
    assert restored.document["checkpoint"]["tree"] == first.tree
    merged = decide(cli, "promote", promoted, cwd=repo)
    assert merged.code == 0, merged
    assert git(repo, "diff", "--name-only", "main", tip(repo, promoted)) == "f.txt\ng.txt"
    assert cli.state(promoted).verdicts[-1].scope == "merged"
    cli.say("checkpoint", "restore", mission, second.commit, cwd=repo)
    held = decide(cli, "promote", promoted, cwd=repo)
    assert (held.code, held.error["code"]) == (1, "no_change"), held
    assert cli.state(promoted).status == "promoted"
    assert decide(cli, "rollback", promoted, cwd=repo).code == 0
    alone = decide(cli, "promote", promoted, cwd=repo)
    assert alone.code == 0, alone
    assert git(repo, "diff", "--name-only", "main", tip(repo, promoted)) == "g.txt"
    unknown = cli.say("checkpoint", "restore", mission, "0000000", cwd=repo)
    assert (unknown.code, unknown.error["code"]) == (2, "not_found")


def test_apply_that_cannot_be_done_any_more_leaves_a_promotion(cli: Cli, repo: Path) -> None:
    waiting = cli.run(repo, "--apply", agent=shell("sed -i s/a/b/ f.txt; touch conftest.py"))
    assert waiting.code == 3
    git(repo, "checkout", "-q", "--detach")
    promoted = decide(cli, "promote", waiting, cwd=repo)
    assert (promoted.code, promoted.document["status"]) == (3, "promoted"), promoted
    git(repo, "checkout", "-q", "main")
    done = decide(cli, "promote", waiting, cwd=repo)
    assert done.code == 0, done
    assert (repo / "f.txt").read_text() == "baa\n"
    assert git(repo, "status", "--porcelain") == ""
