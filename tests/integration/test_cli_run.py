"""Whole missions from the command line, in the real sandbox: exit codes, documents and leftovers."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.conftest import git, make_repository, repository_state, write_files
from tests.used_state import used_state

from chargehand.cli.main import chargehand
from mission_kit import CHECK, FILES, GOLD

pytestmark = pytest.mark.needs_bwrap
PROJECT = f'[project]\nchecks = ["{CHECK}"]\n'
RESULT = {
    "mission", "status", "branch", "commit", "base", "export", "checkpoints", "reverted", "unread", "attempts",
    "cost_usd", "cost_known", "seconds", "reasons", "cause", "question", "role", "report", "directory",
    "rolled_back", "failures", "next", "parent", "task", "tasks", "known_failures", "flaky", "warnings",
}  # fmt: skip


class Cli:
    """A person at a command line, in a repository with a bug."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place
        self.repository = make_repository(place / "repo", {**FILES, "chargehand.toml": PROJECT})
        monkeypatch.chdir(self.repository)
        monkeypatch.setenv("HOME", str(place))
        monkeypatch.setenv("CHARGEHAND_HOME", str(used_state(place / "state")))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(place / "config"))
        # `used_state` prepares the results for a person without settings of version managers.
        for name in {name for name in os.environ if name.startswith(("PYENV_", "RUSTUP_"))}:
            monkeypatch.delenv(name)

    def __call__(self, *words: str, code: int = 0, input: str | None = None) -> Result:
        done = CliRunner().invoke(chargehand, list(words), input=input)
        assert done.exit_code == code, done.output
        return done

    def json(self, *words: str, code: int = 0) -> Any:
        done = self("--json", *words, code=code)
        assert done.stderr == ""
        return json.loads(done.stdout)

    def error_of(self, *words: str, code: int = 1) -> dict[str, str]:
        done = self(*words, "--json", code=code)
        assert done.stdout == ""
        error: dict[str, str] = json.loads(done.stderr)["error"]
        return error

    def run(self, script: str, *words: str, code: int = 0) -> dict[str, Any]:
        """Run a mission with a shell script as its agent."""
        agent = f"command:sh -c {shlex.quote(script)}"
        result: dict[str, Any] = self.json("run", "Mend add()", "--agent", agent, *words, code=code)
        assert set(result) == RESULT
        return result


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(tmp_path, monkeypatch)


def test_a_promoted_mission_from_its_result_to_its_undoing(cli: Cli) -> None:
    base = git(cli.repository, "rev-parse", "HEAD")
    before = repository_state(cli.repository)
    result = cli.run(GOLD)
    assert (result["status"], result["branch"], result["base"]) == ("promoted", "chargehand/mend-add", base)
    assert result["export"] == {"ref": "refs/heads/chargehand/mend-add", "state": "done", "reason": ""}
    assert git(cli.repository, "rev-parse", "chargehand/mend-add") == result["commit"]
    assert (result["checkpoints"], result["reverted"], result["reasons"]) == (1, [], [])
    (attempt,) = result["attempts"]
    assert (attempt["status"], attempt["verdict"], attempt["model"]) == ("succeeded", "green", None)
    assert result["cost_known"] is True
    assert repository_state(cli.repository) == before
    mission = result["mission"]

    shown = cli.json("mission", "show", mission)
    assert [verdict["status"] for verdict in shown["verdicts"]] == ["red", "green"]
    text = cli("mission", "show").stdout
    for part in ("promoted", "Mend add()", "git merge chargehand/mend-add", "cost 0.00 USD"):
        assert part in text
    assert cli("exec", "--mission", "last", "--", "cat", "calc/core.py").stdout.startswith(
        "def add(a, b):\n    return a + b"
    )
    assert cli.error_of("mission", "cancel", mission)["code"] == "not_cancellable"
    assert cli.error_of("mission", "discard", mission)["code"] == "not_discardable"
    rolled = cli.json("mission", "rollback", mission)
    assert rolled["commit"] != result["commit"]
    assert git(cli.repository, "diff", base, "chargehand/mend-add") == ""
    assert git(cli.repository, "rev-parse", "chargehand/mend-add^") == result["commit"]
    assert cli.error_of("mission", "rollback", mission)["code"] == "rolled_back"
    assert cli.json("audit", "verify")["ok"] is True
    assert repository_state(cli.repository) == before


def test_the_output_of_a_refused_mission(cli: Cli) -> None:
    before = repository_state(cli.repository, without="nothing")
    result = cli.run("true", code=1)
    assert (result["status"], result["branch"], result["commit"], result["export"]) == (
        "refused",
        None,
        None,
        None,
    )
    assert [reason["code"] for reason in result["reasons"]] == ["no_change"]
    outside = cli.run(f"{GOLD}; echo x > README.md", "--allow", "calc/**", code=1)
    assert outside["reverted"] == [{"path": "README.md", "rule": "area_outside"}]
    assert repository_state(cli.repository, without="nothing") == before
    text = cli("run", "Mend", "--agent", "command:true", code=1).stdout
    assert "refused" in text
    assert "no_change" in text


@pytest.mark.parametrize(
    ("path", "change", "obstacle"),
    [
        (
            "tests/hidden.py",
            "mkdir tests/hidden.py; echo x > tests/hidden.py/y",
            "'tests/hidden.py' is a directory",
        ),
        ("tests/hidden.py", "ln -s ../README.md tests/hidden.py", "'tests/hidden.py' is a symbolic link"),
        ("tests/hidden.py", "mv tests other; ln -s other tests", "'tests' is a symbolic link"),
        ("more/hidden.py", "echo x > more", "'more' is not a directory"),
    ],
)
def test_an_obstacle_at_the_path_of_an_acceptance_file_is_refused(
    cli: Cli, path: str, change: str, obstacle: str
) -> None:
    hidden = cli.place / "hidden.py"
    hidden.write_text("import unittest\n")
    words = ("--check-file", f"{hidden}:{path}", "--only-check", "true")
    result = cli.run(f"{GOLD}; {change}", *words, code=1)
    (reason,) = (each for each in result["reasons"] if each["code"] == "acceptance_path")
    assert obstacle in reason["message"]


@pytest.mark.parametrize("path", ["calc", "README.md/x.py"])
def test_an_acceptance_file_that_the_base_leaves_no_place_for_is_refused_at_once(cli: Cli, path: str) -> None:
    file = cli.place / "hidden.py"
    file.write_text("import unittest\n")
    words = ("run", "x", "--agent", "command:true", "--check-file", f"{file}:{path}")
    error = cli.error_of(*words, code=2)
    assert (error["code"], path.partition("/")[0] in error["message"]) == ("usage", True)
    assert cli.json("mission", "list")["missions"] == []


def test_without_checks_a_person_decides(cli: Cli) -> None:
    other = make_repository(cli.place / "other", {"README": "one\n"})
    result = cli.run("echo two > README", "--repo", str(other), code=3)
    assert (result["status"], result["reasons"][0]["code"]) == ("waiting", "checks_missing")
    mission = result["mission"]
    assert f"chargehand mission promote {mission}" in cli("mission", "show", mission).stdout
    promoted = cli.json("mission", "promote", mission, "--reason", "read it")
    assert (promoted["status"], promoted["export"]["state"]) == ("promoted", "done")
    assert git(other, "show", "chargehand/mend-add:README") == "two"
    assert "approved by os:" in cli("mission", "log", mission).stdout
    waiting = cli.run("echo three > README", "--repo", str(other), code=3)["mission"]
    assert cli.json("mission", "cancel", waiting)["status"] == "cancelled"
    discarded = cli.json("mission", "discard", waiting, "--reason", "not wanted")
    assert discarded["status"] == "discarded"
    assert discarded["reasons"][0]["message"].startswith("os:")
    assert discarded["reasons"][0]["message"].endswith(" discarded the mission: not wanted")


def test_gates_that_are_added_and_replaced(cli: Cli) -> None:
    added = cli.run(GOLD, "--check", "test -e nosuch", code=1)
    assert [reason["code"] for reason in added["reasons"]] == ["check_failed"]
    replaced = cli("run", "x", "--agent", "command:sh -c 'echo x >> README.md'", "--only-check", "true")
    assert "promoted" in replaced.stdout
    assert "--only-check" in replaced.stdout
    acceptance = cli.place / "acceptance.py"
    acceptance.write_text("from calc.core import add\nassert add(1, 1) == 2\n")
    words = ("--only-check", "python3 -m accept", "--check-file", f"{acceptance}:accept.py")
    assert cli.run("true; echo x >> README.md", *words, code=1)["status"] == "refused"
    good = cli.run(GOLD, *words)
    assert "accept.py" not in git(cli.repository, "ls-tree", "--name-only", good["commit"])


def test_the_only_configured_agent_is_taken_and_named(cli: Cli) -> None:
    cli("config", "set", "agents.fixer.command", '["sed", "-i", "s/a - b/a + b/", "calc/core.py"]')
    done = cli("run", "--file", "-", input="Mend add()\nin calc/core.py\n")
    assert "agent     fixer (the only one configured)" in done.stdout
    assert done.stdout.index("base      main @ ") < done.stdout.index("promoted")
    assert "git merge chargehand/mend-add-in-calc-core-py" in done.stdout


def test_apply_moves_the_branch_or_says_why_not(cli: Cli) -> None:
    base = git(cli.repository, "rev-parse", "HEAD")
    write_files(cli.repository, {"calc/core.py": "mine\n"})
    blocked = cli("run", "Mend", "--agent", f'command:sh -c "{GOLD}"', "--apply", "--json", code=3)
    assert json.loads(blocked.stdout)["status"] == "promoted"
    assert git(cli.repository, "rev-parse", "HEAD") == base
    assert (cli.repository / "calc/core.py").read_text() == "mine\n"
    git(cli.repository, "checkout", "-q", "--", ".")
    done = cli.run(GOLD, "--apply")
    assert git(cli.repository, "rev-parse", "main") == done["commit"]
    assert "a + b" in (cli.repository / "calc/core.py").read_text()
    assert git(cli.repository, "status", "--porcelain") == ""


def test_a_blocked_export_waits_for_a_person(cli: Cli) -> None:
    # A broken ref, which no check before the work sees.
    (cli.repository / ".git/refs/heads/chargehand").write_text("")
    result = cli.run(GOLD, code=3)
    assert (result["status"], result["branch"], result["export"]["state"]) == ("promoted", None, "blocked")
    assert "chargehand" in result["export"]["reason"]


def test_a_mission_ends_at_its_time_limit(cli: Cli) -> None:
    result = cli.run("echo x >> README.md; sleep 1000", "--time", "1s", code=4)
    assert (result["status"], result["attempts"][0]["status"]) == ("exhausted", "timed_out")
    assert result["checkpoints"] == 1


def test_attempts_and_their_checkpoints(cli: Cli) -> None:
    script = f'test -n "$CHARGEHAND_REPORT" && {GOLD} || echo x >> README.md'
    result = cli.run(script, "--attempts", "2", "--red-base", "go")
    assert [attempt["verdict"] for attempt in result["attempts"]] == ["red", "green"]
    mission = result["mission"]
    points = cli.json("checkpoint", "list", mission)["checkpoints"]
    assert len(points) == result["checkpoints"] == 2
    first, last = points[0]["commit"], points[1]["commit"]
    assert "calc/core.py" in cli("checkpoint", "diff", first, last, "--mission", mission, "--stat").stdout
    restored = cli.json("checkpoint", "restore", mission, first[:10])
    assert restored["checkpoint"]["tree"] == points[0]["tree"]
    assert len(cli.json("checkpoint", "list", mission)["checkpoints"]) == 3
    refused = cli("mission", "promote", mission, "--json", code=1)
    assert json.loads(refused.stderr)["error"]["code"] == "not_green"


def test_an_uncommitted_configuration_is_noted(cli: Cli) -> None:
    write_files(cli.repository, {"chargehand.toml": f"# mine\n{PROJECT}"})
    done = cli("run", "x", "--agent", f'command:sh -c "{GOLD}"')
    assert "chargehand.toml is not committed" in done.stdout
    assert "uncommitted changes are not part of it" in done.stdout


def test_exec_is_the_command(cli: Cli) -> None:
    before = repository_state(cli.repository)
    done = cli("exec", "--", "sh", "-c", "ls; echo said >&2; rm README.md; exit 7", code=7)
    assert (done.stdout, done.stderr) == ("README.md\ncalc\nchargehand.toml\ntests\n", "said\n")
    document = cli.json("exec", "--", "sh", "-c", "echo out; echo err >&2; exit 3", code=3)
    keys = {"exit_code", "stdout", "stderr", "seconds", "truncated", "tier", "tier_reason", "limit", "judged"}
    assert set(document) == keys
    assert (document["exit_code"], document["stdout"], document["stderr"]) == (3, "out\n", "err\n")
    assert (document["truncated"], document["tier"]) == (False, "process")
    assert cli("exec", "--", "nosuch", code=127).stdout == ""
    stopped = cli.json("exec", "--time", "1s", "--", "sleep", "1000", code=137)
    assert (stopped["exit_code"], stopped["limit"]) == (137, "wall_time")
    for words in (["--base", "nosuch"], ["--mission", "nosuch"], ["--time", "soon"], ["--repo", str(cli.place)]):
        assert cli("exec", *words, "--", "true", code=125).stderr.startswith("error: ")
    assert cli("exec", "--", "printf", "\\033[31m\\377").stdout_bytes == b"\x1b[31m\xff"
    assert repository_state(cli.repository) == before
    assert cli.json("mission", "list")["missions"] == []


def test_setup_is_built_and_its_failure_is_reported(cli: Cli) -> None:
    assert "nothing to build" in cli("project", "setup").stdout
    write_files(
        cli.repository, {"chargehand.toml": '[project]\nsetup = "mkdir -p build && echo made > build/it"\n'}
    )
    assert cli.json("project", "setup")["setup"].startswith("mkdir")
    assert cli("exec", "--", "cat", "build/it").stdout == "made\n"
    write_files(cli.repository, {"chargehand.toml": '[project]\nsetup = "echo broken; exit 9"\n'})
    failed = cli("project", "setup", "--json", code=1)
    error = json.loads(failed.stderr)["error"]
    assert error["code"] == "setup_failed"
    assert "broken" in error["message"].splitlines()


def test_the_doctor_finds_everything_here(cli: Cli) -> None:
    report = cli.json("doctor")
    assert report["ok"] is True
    assert {"python", "git", "state", "bubblewrap", "isolation", "network"} <= {p["name"] for p in report["parts"]}
    assert "Sandbox: process works" in cli("doctor").stdout
