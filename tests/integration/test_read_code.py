"""Green means that the checks read the change: unread files are named, and alone they are not green."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Cli, Completed, repository, shell
from tests import forked
from tests.conftest import git

from chargehand.core.state import MissionState

pytestmark = pytest.mark.needs_bwrap

TEST = (
    "import unittest\n\n\nclass T(unittest.TestCase):\n    def test_add(self):\n"
    "        from calc import add\n        self.assertEqual(add(2, 1), 3)\n"
)
PYTHON = {
    "calc.py": "def add(a, b):\n    return a + b\n",
    "spare.py": "def spare():\n    return 1\n",
    "test_calc.py": TEST,
    "README.md": "calc\n",
}
UNITTEST = "python3 -m unittest -q"
NODE = {
    "lib/calc.js": "exports.add = (a, b) => a + b;\n",
    "lib/spare.js": "exports.spare = () => 1;\n",
    "calc.test.js": (
        "const test = require('node:test'), assert = require('node:assert');\n"
        "test('add', () => assert.equal(require('./lib/calc').add(2, 1), 3));\n"
    ),
    "package.json": json.dumps({"name": "calc", "version": "1.0.0", "scripts": {"test": "node --test"}}),
}
C = {
    "calc.c": "int add(int a, int b) { return a + b; }\n",
    "spare.c": "int spare(void) { return 1; }\n",
    "test.c": "int add(int, int);\nint main(void) { return add(2, 1) != 3; }\n",
    "run.sh": "set -e\ncc calc.c test.c -o /tmp/t\n/tmp/t\n",
}
# A program that the check names by its whole path is part of the check.
SHELL = {
    "bin/greet.sh": "echo hello\n",
    "bin/spare.sh": "echo spare\n",
    "check.sh": 'for name in greet.sh; do test "$(sh bin/$name)" = hello || exit 1; done\n',
}
# Files, check, a changed file that the check reads, a changed file that it does not read.
ECOSYSTEMS = [
    pytest.param(PYTHON, UNITTEST, "calc.py", "spare.py", id="unittest"),
    pytest.param(NODE, "node --test", "lib/calc.js", "lib/spare.js", id="node"),
    pytest.param(C, "sh run.sh", "calc.c", "spare.c", id="c"),
    pytest.param(SHELL, "sh check.sh", "bin/greet.sh", "bin/spare.sh", id="shell"),
]


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(tmp_path_factory.mktemp("cli"))


def change(cli: Cli, repo: Path, check: str, *paths: str) -> Completed:
    """Run a mission that adds an empty line to files."""
    return cli.say(
        "run",
        "m",
        "--agent",
        shell(f"for f in {' '.join(paths)}; do echo >> $f; done"),
        "--only-check",
        check,
        cwd=repo,
    )


@pytest.mark.parametrize(("files", "check", "read", "unread"), ECOSYSTEMS)
def test_a_change_that_no_check_read_is_not_green(
    cli: Cli, tmp_path: Path, files: dict[str, str], check: str, read: str, unread: str
) -> None:
    repo = repository(tmp_path / "repo", files)
    promoted = change(cli, repo, check, read)
    assert (promoted.code, promoted.document["unread"]) == (0, []), promoted
    partly = change(cli, repo, check, read, unread)
    assert (partly.code, partly.document["status"], partly.document["unread"]) == (0, "promoted", [unread]), partly
    waiting = change(cli, repo, check, unread)
    assert (waiting.code, waiting.document["status"], waiting.reasons) == (3, "waiting", {"change_unread"}), (
        waiting
    )
    assert (waiting.document["unread"], waiting.document["attempts"][0]["verdict"]) == ([unread], "missing")
    assert unread in waiting.document["reasons"][0]["message"]
    allowed = cli.say("mission", "promote", waiting.document["mission"], cwd=repo)
    assert (allowed.code, allowed.document["status"]) == (0, "promoted"), allowed


def test_files_other_than_code_need_not_be_read(cli: Cli, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo", PYTHON)
    promoted = change(cli, repo, UNITTEST, "README.md", "notes.txt")
    assert (promoted.code, promoted.document["unread"]) == (0, []), promoted


def test_unread_new_code_needs_a_person_and_deleted_code_does_not(cli: Cli, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo", PYTHON)
    added = cli.say("run", "m", "--agent", "command:cp calc.py new.py", "--only-check", UNITTEST, cwd=repo)
    assert (added.code, added.reasons, added.document["unread"]) == (3, {"change_unread"}, ["new.py"])
    gone = cli.say("run", "m", "--agent", "command:rm spare.py", "--only-check", UNITTEST, cwd=repo)
    assert (gone.code, gone.document["unread"]) == (0, []), gone


def test_tests_that_ran_do_not_make_up_for_code_that_did_not(cli: Cli, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo", PYTHON)
    promoted = change(cli, repo, UNITTEST, "test_calc.py")
    assert (promoted.code, promoted.document["unread"]) == (0, []), promoted
    waiting = change(cli, repo, UNITTEST, "test_calc.py", "spare.py")
    assert (waiting.code, waiting.reasons, waiting.document["unread"]) == (3, {"change_unread"}, ["spare.py"])


def test_unread_files_are_shown_and_logged(cli: Cli, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo", PYTHON)
    partly = change(cli, repo, UNITTEST, "calc.py", "spare.py")
    mission = partly.document["mission"]
    assert [verdict.unread for verdict in cli.state(partly).verdicts] == [None, ("spare.py",)]
    shown = cli.say("mission", "show", mission, cwd=repo).document
    assert (shown["unread"], shown["verdicts"][-1]["unread"]) == (["spare.py"], ["spare.py"])
    for command in ("show", "log"):
        code, text, _ = forked.run(("mission", command, mission), cwd=repo, environ=cli.environ)
        assert (code, "spare.py" in text) == (0, True), (command, text)


COPY = "cd .venv/lib/python3*/site-packages && mkdir calc && cp /workspace/src/calc/*.py calc/"
LAYOUT = {
    "src/calc/__init__.py": "",
    "src/calc/sums.py": "def add(a, b):\n    return a + b\n",
    "test_calc.py": TEST.replace("calc import", "calc.sums import"),
    ".gitignore": ".venv/\n",
}


@pytest.mark.parametrize(
    "lint", [(), ("--check", "cat src/calc/*.py > /dev/null")], ids=["alone", "with a linter"]
)
def test_a_copy_that_setup_installed_is_not_the_tree(cli: Cli, tmp_path: Path, lint: tuple[str, ...]) -> None:
    """The tests import the base's installed copy, so a tree that cannot even be parsed would pass them."""
    config = f'[project]\nsetup = "python3 --version; {COPY}"\nchecks = ["python -m unittest -q"]\n'
    repo = repository(tmp_path / "repo", LAYOUT | {"chargehand.toml": config})
    agent = shell("printf '\\\\050' >> src/calc/sums.py")
    waiting = cli.say("run", "m", "--agent", agent, *lint, cwd=repo)
    assert (waiting.code, waiting.document["status"], waiting.reasons) == (3, "waiting", {"loaded_elsewhere"}), (
        waiting
    )
    assert "site-packages/calc/sums.py" in waiting.document["reasons"][0]["message"]
    state: MissionState = cli.state(waiting)
    assert state.verdicts[-1].elsewhere[0].endswith("/site-packages/calc/sums.py")
    assert git(repo, "branch", "--list", "chargehand/*") == ""


def test_an_editable_install_is_the_tree(cli: Cli, tmp_path: Path) -> None:
    link = "echo /workspace/src > $(echo .venv/lib/python3*)/site-packages/calc.pth"
    config = f'[project]\nsetup = "python3 --version; {link}"\nchecks = ["python -m unittest -q"]\n'
    repo = repository(tmp_path / "repo", LAYOUT | {"chargehand.toml": config})
    promoted = cli.say("run", "m", "--agent", shell("echo >> src/calc/sums.py"), cwd=repo)
    assert (promoted.code, promoted.document["unread"]) == (0, []), promoted
    broken = cli.say("run", "m", "--agent", shell("printf '\\\\050' >> src/calc/sums.py"), cwd=repo)
    assert (broken.code, broken.reasons) == (1, {"check_failed"}), broken


# Patterns hide the names: a file that a command names is its surface by another rule.
READS_ALL = "cat run.od* .hidden/too* pkg/tool.jso* 2> /dev/null || :; python3 -m unittest -q"


# Each kind of name, as a changed file and as a new one.
SETTINGS = [(path, known) for path in ("run.odd", ".hidden/tool", "pkg/tool.json") for known in (True, False)]
IN_SUITE = {("run.odd", False), (".hidden/tool", True), ("pkg/tool.json", True)}


@pytest.mark.parametrize(
    ("path", "known"),
    [pytest.param(*each, marks=() if each in IN_SUITE else pytest.mark.soak) for each in SETTINGS],
)
def test_settings_that_a_check_opens_are_its_surface(cli: Cli, tmp_path: Path, path: str, known: bool) -> None:
    """No rule knows these names: they count because a check opens them."""
    files = PYTHON | {"pkg/package.json": "{}"} | ({path: "old\n"} if known else {})
    repo = repository(tmp_path / "repo", files)
    agent = shell(f"mkdir -p .hidden; echo new >> {path}; echo >> calc.py")
    waiting = cli.say("run", "m", "--agent", agent, "--only-check", READS_ALL, cwd=repo)
    assert (waiting.code, waiting.reasons) == (3, {"check_surface"}), waiting
    assert path in waiting.document["reasons"][0]["message"]
    unseen = cli.say("run", "m", "--agent", agent, "--only-check", UNITTEST, cwd=repo)
    assert (unseen.code, unseen.document["status"]) == (0, "promoted"), unseen


def test_data_and_prose_that_a_check_opens_are_not(cli: Cli, tmp_path: Path) -> None:
    paths = ("data/table.json", "README.md", "tests/fixture.json")
    repo = repository(tmp_path / "repo", PYTHON | dict.fromkeys(paths, "1\n"))
    agent = shell("".join(f"echo 1 >> {path}; " for path in paths) + "echo >> calc.py")
    reads = " ".join(f"{path[:-2]}*" for path in paths)
    promoted = cli.say("run", "m", "--agent", agent, "--only-check", f"cat {reads} && {UNITTEST}", cwd=repo)
    assert (promoted.code, promoted.document["status"]) == (0, "promoted"), promoted


@pytest.mark.parametrize(
    "path", ["docs/conf.py", pytest.param("benchmarks/speed.py", marks=pytest.mark.soak), "eslint.config.js"]
)
def test_code_apart_from_checked_code_is_reported_without_a_question(cli: Cli, tmp_path: Path, path: str) -> None:
    repo = repository(tmp_path / "repo", PYTHON | {path: "x = 1\n"})
    promoted = change(cli, repo, UNITTEST, path)
    assert (promoted.code, promoted.document["unread"]) == (0, [path]), promoted
    # Not if a check opens another file in its directory.
    reading = f"cat {path.rpartition('/')[0] or '.'}/* > /dev/null; {UNITTEST}"
    if "/" in path:
        waiting = cli.say(
            "run",
            "m",
            "--agent",
            f"command:cp calc.py {path[:-3]}_more.py",
            "--only-check",
            f"cat {path} && {UNITTEST}",
            cwd=repo,
        )
        assert (waiting.code, waiting.reasons) == (3, {"change_unread"}), waiting
    else:
        assert change(cli, repo, reading, path).document["unread"] == []


SELF_TEST = "if __name__ == '__main__':\n    import sys\n\n    sys.exit(add(2, 1) != 3)\n"


def test_code_named_in_a_check_is_judged_as_changed(cli: Cli, tmp_path: Path) -> None:
    """The base's broken file does not replace it."""
    fixed = f"def add(a, b):\n    return a + b\n\n\n{SELF_TEST}"
    compiled = repository(tmp_path / "compiled", {"calc.py": fixed.replace("a + b", "a +* b")})
    mend, check = shell("sed -i 's/a .* b/a + b/' calc.py"), "python3 -m py_compile calc.py"
    done = cli.say("run", "m", "--agent", mend, "--only-check", check, cwd=compiled)
    assert (done.code, done.document["status"]) == (0, "promoted"), done
    # If the check runs the file, the file could exit early: a person decides, and can promote.
    tested = repository(tmp_path / "tested", {"calc.py": fixed.replace("a + b", "a - b")})
    waits = cli.say("run", "m", "--agent", mend, "--only-check", "python3 calc.py --self-test", cwd=tested)
    assert (waits.code, waits.reasons) == (3, {"check_surface"}), waits
    done = cli.say("mission", "promote", waits.document["mission"], cwd=tested)
    assert (done.code, done.document["status"]) == (0, "promoted"), done
