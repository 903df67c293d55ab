"""Real missions: known failures of the base and flaky tests are distinguished from failures of the change."""

from __future__ import annotations

import base64
import sqlite3
from pathlib import Path

import pytest
from command_line import Cli, Completed, repository, shell
from tests.crash_kit import wait_until
from tests.forked import REPEATS_ALL

pytestmark = pytest.mark.needs_bwrap
AS_EVER = {REPEATS_ALL: "yes"}  # flaky tests are found only with all repeats

CODE = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a + b\n"
HEAD = "import unittest\nfrom calc import add, sub\n\n\nclass T(unittest.TestCase):\n"
ADDS = "    def test_add(self):\n        self.assertEqual(add(2, 1), 3)\n"
SUBTRACTS = "    def test_sub(self):\n        self.assertEqual(sub(2, 1), 1)\n"
RED = {"calc.py": CODE, "test_calc.py": f"{HEAD}{ADDS}\n{SUBTRACTS}"}
GREEN = {"calc.py": CODE, "test_calc.py": f"{HEAD}{ADDS}"}
# Fails only in the first run in a sandbox: the file that it writes outlives the run.
TOGGLES = (
    "    def test_luck(self):\n        import pathlib\n        seen = pathlib.Path('/tmp/seen')\n"
    "        self.assertTrue(seen.exists() or seen.write_text('x') == 0)\n"
)
CHECK = ("--only-check", "python3 -m unittest -q")
COMMENT = shell("echo '# more' >> calc.py")
BREAK = shell("sed -i 's/return a + b/return a - b - 1/' calc.py")


def writes(path: str, text: str) -> str:
    """Return an agent that writes a file."""
    return shell(f"echo {base64.b64encode(text.encode()).decode()} | base64 -d > {path}")


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(tmp_path_factory.mktemp("cli"), **AS_EVER)


def run(
    cli: Cli, place: Path, agent: str, *words: str, text: str = "say more", check: str = CHECK[1]
) -> Completed:
    return cli.say("run", text, "--agent", agent, "--only-check", check, *words, cwd=place)


def test_an_accepted_known_failure_passes_and_a_new_failure_is_refused(cli: Cli, tmp_path: Path) -> None:
    place = repository(tmp_path / "repo", RED)
    done = run(cli, place, COMMENT, "--accept-known")
    assert (done.code, done.document["status"]) == (0, "promoted"), done
    assert done.document["known_failures"] == [
        {"check": CHECK[1], "count": 1, "tests": ["test_calc.T::test_sub"]}
    ], done
    assert done.document["attempts"][0]["verdict"] == "no_worse"
    report = cli.say("mission", "report", done.document["mission"], cwd=place, as_json=False).stdout
    assert "1 test fails (test_calc.T::test_sub) as on the base, 0 new" in report
    worse = run(cli, place, BREAK, "--accept-known")
    assert (worse.code, worse.document["status"]) == (1, "refused"), worse
    assert "new_failures" in worse.reasons
    assert "test_calc.T::test_add" in str(worse.document["reasons"])


def test_checks_that_cannot_run_on_the_base_are_named_with_their_remedy(cli: Cli, tmp_path: Path) -> None:
    # A fake pytest, with the message and the exit code of pytest for such a `conftest.py`.
    stand_in = "import sys\nprint(\"ImportError while loading conftest 'conftest.py'.\")\nsys.exit(4)\n"
    files = {"calc.py": CODE, "pytest.py": stand_in, "chargehand.toml": '[project]\nsetup = ""\n'}
    place = repository(tmp_path / "repo", files)
    done = run(cli, place, COMMENT, check="python3 -m pytest -q")
    assert (done.code, done.document["status"]) == (1, "refused"), done
    assert {"checks_blocked", "check_failed"} <= set(done.reasons), done
    assert done.document["cause"]["code"] == "checks_blocked"
    assert "project.setup" in done.document["cause"]["remedy"]


def test_an_unaccepted_known_failure_waits_for_a_person(cli: Cli, tmp_path: Path) -> None:
    place = repository(tmp_path / "repo", RED)
    waits = run(cli, place, COMMENT)
    assert (waits.code, waits.document["status"], waits.reasons) == (3, "waiting", {"known_failures"}), waits
    done = cli.say("mission", "promote", waits.document["mission"], cwd=place)
    assert (done.code, done.document["status"]) == (0, "promoted"), done


def test_a_known_failure_is_returned_to_the_agent_before_the_last_attempt(cli: Cli, tmp_path: Path) -> None:
    place = repository(tmp_path / "repo", RED)
    script = "if [ -e seen ]; then sed -i '6s/+/-/' calc.py; rm seen; else touch seen; fi"
    done = run(cli, place, shell(script), "--attempts", "2")
    assert (done.code, done.document["status"]) == (0, "promoted"), done
    assert [each["verdict"] for each in done.document["attempts"]] == ["no_worse", "green"]


def test_a_test_named_in_the_request_must_pass(cli: Cli, tmp_path: Path) -> None:
    place = repository(tmp_path / "repo", RED)
    done = run(cli, place, COMMENT, "--accept-known", text="make test_sub pass")
    assert (done.code, done.reasons) == (1, {"check_failed", "still_failing"}), done
    strict = run(cli, place, COMMENT, "--red-base", "go")
    assert (strict.code, strict.reasons) == (1, {"check_failed", "still_failing"}), strict


@pytest.mark.parametrize("policy", ["accept_known", "stop"])
def test_the_project_configures_the_policy_for_a_failing_base(cli: Cli, tmp_path: Path, policy: str) -> None:
    place = repository(tmp_path / "repo", {**RED, "chargehand.toml": f"[project]\nred_base = '{policy}'\n"})
    done = run(cli, place, COMMENT)
    wanted = (0, "promoted") if policy == "accept_known" else (1, "failed")
    assert (done.code, done.document["status"]) == wanted, done


def test_the_base_question_names_the_tests_and_each_answer_takes_effect(cli: Cli, tmp_path: Path) -> None:
    place = repository(tmp_path / "repo", RED)

    def ask(agent: str = COMMENT) -> Completed:
        asked = run(cli, place, agent, "--red-base", "ask")
        assert (asked.code, asked.reasons) == (3, {"base_red"}), asked
        return asked

    def answer(result: Completed, word: str) -> str:
        assert cli.say("mission", "answer", result.document["mission"], word, cwd=place).code == 0
        cli.say("worker", "--until-idle", cwd=place)
        wait_until(lambda: cli.state(result).status not in ("planned", "running"))
        return cli.state(result).status

    asked = ask()
    question = asked.document["question"]
    assert "test_calc.T::test_sub" in question["text"]
    assert question["options"] == ["accept", "leave out", "run again", "fix", "stop"]
    assert answer(asked, "run again") == "waiting"
    bases = [verdict for verdict in cli.state(asked).verdicts if verdict.scope == "base"]
    assert len(bases) == 2, "the checks ran on the base once more"
    assert answer(asked, "accept") == "promoted"
    assert answer(ask(), "leave out") == "promoted"
    assert answer(ask(), "fix") == "refused"
    assert answer(ask(), "stop") == "failed"


def test_failures_without_names_are_compared_by_line(cli: Cli, tmp_path: Path) -> None:
    lint = "grep -rn X --include '*.py' . | sed 's/.*/error: &/' >&2; ! grep -rq X --include '*.py' ."
    place = repository(tmp_path / "repo", {"calc.py": f"{CODE}# X old\n"})
    same = run(cli, place, shell("sed -i '1i # more' calc.py"), "--accept-known", check=lint)
    assert (same.code, same.document["status"]) == (0, "promoted"), same
    more = run(cli, place, shell("echo '# X new' >> calc.py"), "--accept-known", check=lint)
    assert (more.code, more.document["status"]) == (1, "refused"), more


def test_a_test_that_is_flaky_on_the_base_is_not_blamed_on_the_agent(cli: Cli, tmp_path: Path) -> None:
    place = repository(tmp_path / "repo", {"calc.py": CODE, "test_calc.py": f"{HEAD}{ADDS}\n{TOGGLES}"})
    for line in ("first", "second"):
        done = run(cli, place, shell(f"echo '# {line}' >> calc.py"))
        assert (done.code, done.document["status"]) == (0, "promoted"), done
        [flaky] = done.document["flaky"]
        assert (flaky["test"], flaky["on_base"]) == ("test_calc.T::test_luck", True)
    shown = cli.say("mission", "show", done.document["mission"], cwd=place, as_json=False).stdout
    assert "test_luck failed in" in shown


def test_a_flaky_test_that_a_change_breaks_for_good_needs_a_person(cli: Cli, tmp_path: Path) -> None:
    place = repository(tmp_path / "repo", {"calc.py": CODE, "test_calc.py": f"{HEAD}{ADDS}\n{TOGGLES}"})
    assert run(cli, place, COMMENT).code == 0, "it is flaky on the base, and that is remembered"
    broken = f"{HEAD}{ADDS}\n    def test_luck(self):\n        self.fail()\n"
    waits = run(cli, place, writes("test_calc.py", broken))
    assert waits.code == 3, waits
    assert "without the change it passes now and then" in str(waits.document["reasons"])


def test_a_run_that_stops_at_a_known_failure_is_inconclusive(cli: Cli, tmp_path: Path) -> None:
    first = SUBTRACTS.replace("test_sub", "test_a_sub")
    place = repository(tmp_path / "repo", {"calc.py": CODE, "test_calc.py": f"{HEAD}{first}\n{ADDS}"})
    done = run(cli, place, BREAK, "--accept-known", check="python3 -m unittest -q -f")
    assert (done.code, done.reasons) == (3, {"failures_untold"}), done
    refused = run(cli, place, BREAK, check="python3 -m unittest -q -f")
    assert (refused.code, refused.reasons) == (1, {"check_failed"}), refused


def test_a_newly_flaky_test_needs_approval_unless_configured(cli: Cli, tmp_path: Path) -> None:
    place = repository(tmp_path / "repo", GREEN)
    agent = writes(
        "calc.py",
        "import pathlib\n\n\ndef add(a, b):\n    seen = pathlib.Path('/tmp/seen')\n"
        "    return a + b if seen.exists() else seen.write_text('x') - 9\n\n\ndef sub(a, b):\n    return a - b\n",
    )
    waits = run(cli, place, agent, "--attempts", "3")
    assert (waits.code, waits.reasons) == (3, {"flaky_test"}), waits
    assert len(waits.document["attempts"]) == 1, "no further attempt is paid for"
    assert waits.document["flaky"][0]["on_base"] is False
    refuses = repository(tmp_path / "strict", {**GREEN, "chargehand.toml": "[project]\nflaky = 'refuse'\n"})
    refused = run(cli, refuses, agent)
    assert (refused.code, refused.document["status"]) == (1, "refused"), refused
    accepts = repository(tmp_path / "mild", {**GREEN, "chargehand.toml": "[project]\nflaky = 'accept'\n"})
    accepted = run(cli, accepts, agent)
    assert (accepted.code, accepted.document["status"]) == (0, "promoted"), accepted


def test_an_approved_flaky_test_is_known_to_the_next_mission(cli: Cli, tmp_path: Path) -> None:
    place = repository(tmp_path / "repo", GREEN)
    agent = writes("test_calc.py", f"{GREEN['test_calc.py']}\n{TOGGLES}")
    waits = run(cli, place, agent, "--apply")
    assert (waits.code, waits.reasons) == (3, {"flaky_test"}), waits
    assert cli.say("mission", "promote", waits.document["mission"], cwd=place).code == 0
    after = run(cli, place, COMMENT)
    assert (after.code, after.document["status"]) == (0, "promoted"), after
    assert [each["on_base"] for each in after.document["flaky"]] == [True]


def fail_earlier_runs(cli: Cli) -> None:
    """Make the store record that the checks failed in their earlier runs on candidates."""
    with sqlite3.connect(cli.home / "store.db") as raw:
        changed = raw.execute(
            'UPDATE verdicts SET verdict = CAST(replace(CAST(verdict AS TEXT), \'"status":"passed"\','
            " '\"status\":\"failed\"') AS BLOB) WHERE plan_digest LIKE 'own/%'"
        )
        assert changed.rowcount > 0
    raw.close()


def test_a_tree_that_failed_once_needs_a_person(tmp_path: Path) -> None:
    """A tree on which a check failed once needs a person: `promote` warns first, and obeys the second time."""
    cli = Cli(tmp_path / "person", **AS_EVER)
    place = repository(tmp_path / "repo", GREEN)
    assert run(cli, place, COMMENT).code == 0
    fail_earlier_runs(cli)
    waits = run(cli, place, COMMENT)
    assert (waits.code, waits.reasons) == (3, {"flaky_test"}), waits
    assert "failed in 1 of 2 runs of this same tree" in waits.document["reasons"][0]["message"]
    promoted = cli.say("mission", "promote", waits.document["mission"], cwd=place)
    assert (promoted.code, promoted.document["status"]) == (0, "promoted"), promoted

    surface = run(cli, place, shell("touch conftest.py"))
    assert (surface.code, surface.document["status"]) == (3, "waiting"), surface
    fail_earlier_runs(cli)
    mission = surface.document["mission"]
    told = cli.say("mission", "promote", mission, cwd=place)
    assert (told.code, told.error["code"]) == (1, "two_verdicts"), told
    assert cli.state(surface).status == "waiting"
    obeyed = cli.say("mission", "promote", mission, cwd=place)
    assert (obeyed.code, obeyed.document["status"]) == (0, "promoted"), obeyed


def test_new_tests_run_three_times(cli: Cli, tmp_path: Path) -> None:
    place = repository(tmp_path / "repo", GREEN)
    luck = TOGGLES.replace(
        "seen.exists() or seen.write_text('x') == 0", "not seen.exists() and seen.write_text('x')"
    )
    agent = writes("test_calc.py", f"{GREEN['test_calc.py']}\n{luck}")
    waits = run(cli, place, agent, check="python3 -m unittest -v")
    assert (waits.code, waits.reasons) == (3, {"flaky_test"}), waits
