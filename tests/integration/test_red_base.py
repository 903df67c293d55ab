"""Checks that already fail on the base are reported, and handled as requested, before an agent does anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Cli, repository, shell
from tests.crash_kit import wait_until

pytestmark = pytest.mark.needs_bwrap

RED = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "test_calc.py": (
        "import unittest\nfrom calc import add\n\n\nclass T(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(add(2, 1), 3)\n"
    ),
}
CHECK = ("--only-check", "python3 -m unittest -q")
MEND = shell("sed -i 's/a - b/a + b/' calc.py")


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(tmp_path_factory.mktemp("cli"))


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return repository(tmp_path / "repo", RED)


def test_red_base_stop_ends_the_mission_before_the_agent_starts(cli: Cli, repo: Path) -> None:
    result = cli.say("run", "mend it", "--agent", MEND, *CHECK, "--red-base", "stop", cwd=repo)
    assert (result.code, result.document["status"], result.reasons) == (1, "failed", {"base_red"}), result
    state = cli.state(result)
    assert (state.attempts, state.request.red_base if state.request else "") == ([], "stop")
    assert "python3 -m unittest -q" in result.document["reasons"][0]["message"]


def test_red_base_ask_waits_for_a_person_and_follows_the_answer(cli: Cli, repo: Path) -> None:
    result = cli.say("run", "mend it", "--agent", MEND, *CHECK, "--red-base", "ask", cwd=repo)
    assert (result.code, result.document["status"], result.reasons) == (3, "waiting", {"base_red"}), result
    assert cli.state(result).attempts == []
    asked = result.document["question"]
    assert len(set(asked["meanings"])) == len(asked["options"]) == 5
    assert not any(meaning in asked["text"] for meaning in asked["meanings"])
    mission = result.document["mission"]
    assert cli.say("mission", "answer", mission, "fix", cwd=repo).code == 0
    done = cli.say("worker", "--until-idle", cwd=repo)
    # The worker that the answer started may have been quicker, and still be busy.
    wait_until(lambda: cli.state(result).status not in ("planned", "running"))
    assert cli.state(result).status == "promoted", done
    other = cli.say("run", "mend it", "--agent", MEND, *CHECK, "--red-base", "ask", cwd=repo)
    cli.say("mission", "answer", other.document["mission"], "stop", cwd=repo)
    cli.say("worker", "--until-idle", cwd=repo)
    wait_until(lambda: cli.state(other).status not in ("planned", "running", "waiting"))
    state = cli.state(other)
    assert (state.status, state.attempts, [reason.code for reason in state.reasons]) == (
        "failed",
        [],
        ["base_red"],
    )


@pytest.mark.parametrize("aim", ["go", "acceptance", "green"])
def test_an_expected_base_result_asks_no_question(cli: Cli, tmp_path: Path, aim: str) -> None:
    files = {**RED, "calc.py": RED["calc.py"].replace("-", "+")} if aim == "green" else RED
    repo = repository(tmp_path / "repo", files)
    (tmp_path / "accept.py").write_text(RED["test_calc.py"])
    words = {
        "go": (),
        "acceptance": ("--red-base", "ask", "--check-file", f"{tmp_path}/accept.py:test_accept.py"),
        "green": ("--red-base", "stop"),
    }[aim]
    script = "echo '# more' >> calc.py" if aim == "green" else "sed -i 's/a - b/a + b/' calc.py"
    result = cli.say("run", "mend it", "--agent", shell(script), *CHECK, *words, cwd=repo)
    assert (result.code, result.document["status"]) == (0, "promoted"), result


def test_a_test_that_the_request_names_is_the_aim(cli: Cli, tmp_path: Path) -> None:
    test = (
        "from calc import add\nimport unittest\n\n\nclass TestAdd(unittest.TestCase):\n    def test_adds(self):\n"
    )
    files = {
        "calc.py": "def add(a, b):\n    return a - b\n",
        "test_calc.py": f"{test}        self.assertEqual(add(2, 1), 3)\n",
    }
    place = repository(tmp_path / "repo", files)
    script = "sed -i 's/a - b/a + b/' calc.py"
    words = ("--agent", shell(script), "--only-check", "python3 -m unittest -v", "--red-base", "ask")
    assert cli.say("run", "make test_adds pass", *words, cwd=place).document["status"] == "promoted"


def base_reused(cli: Cli, mission: str, cwd: Path) -> bool:
    """Return whether a mission reused an earlier verdict on its base."""
    log = cli.say("mission", "log", mission, cwd=cwd).stdout
    events = [json.loads(line) for line in log.splitlines()]
    if len(events) == 1:
        events = events[0]["events"]
    [base] = [
        each["payload"]
        for each in events
        if each["type"] == "verdict.given" and each["payload"]["verdict"]["scope"] == "base"
    ]
    return bool(base["reused"])


def test_the_verdict_of_a_promoted_tree_is_reused_for_the_next_base(cli: Cli, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo", {**RED, "calc.py": RED["calc.py"].replace("-", "+")})
    (tmp_path / "accept.py").write_text(RED["test_calc.py"])
    accept = ("--check-file", f"{tmp_path}/accept.py:test_accept.py")

    def run(line: str, *words: str) -> bool:
        script = f"echo '# {line}' >> calc.py"
        result = cli.say("run", line, "--agent", shell(script), *CHECK, "--apply", *words, cwd=repo)
        assert (result.code, result.document["status"]) == (0, "promoted"), result
        return base_reused(cli, result.document["mission"], repo)

    assert not run("the first")
    assert run("on what the first one left")
    # Its checks ran with a file that is not in the tree: the result for the tree without it is unknown.
    assert not run("with a file of its own", *accept)
    assert not run("with that file again: the tree was judged with it, as a base it is not", *accept)
    assert not run("on what was judged with more than it has")
    other = shell("echo '# other' >> calc.py")
    result = cli.say("run", "other", "--agent", other, "--only-check", "true", "--apply", cwd=repo)
    assert not base_reused(cli, result.document["mission"], repo), "another check is another verdict"


def test_a_result_whose_environment_changed_is_no_known_base(cli: Cli, tmp_path: Path) -> None:
    files = {**RED, "calc.py": RED["calc.py"].replace("-", "+"), "setup.sh": "mkdir -p .chargehand/made\n"}
    files["chargehand.toml"] = '[project]\nsetup = "sh setup.sh"\nsetup_inputs = ["setup.sh"]\n'
    repo = repository(tmp_path / "repo", files)
    script = "echo 'touch .chargehand/made/more' >> setup.sh"
    words = ("--agent", shell(script), *CHECK, "--apply", "--allow", "setup.sh", "--yes")
    first = cli.say("run", "more set-up", *words, cwd=repo)
    assert first.stdout, first
    if first.document["status"] == "waiting":
        cli.say("mission", "promote", first.document["mission"], cwd=repo)
    assert cli.state(first).status == "promoted", first
    next_one = cli.say("run", "again", "--agent", shell("echo '# x' >> calc.py"), *CHECK, "--yes", cwd=repo)
    assert next_one.document["status"] == "promoted", next_one
    assert not base_reused(cli, next_one.document["mission"], repo)
