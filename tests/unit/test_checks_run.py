"""Checks that really run: every way to fail, and the way to pass."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.crash_kit import command_line, wait_until
from tests.unit._local_sandbox import LocalSandbox

from chargehand.checks.execution import CheckOutput, CheckPlan, run_checks
from chargehand.checks.runners.table import runner_of
from chargehand.core.errors import SandboxDiedError
from chargehand.core.records import CheckResult
from chargehand.sandbox.contract import WORKSPACE

PYTEST = f"{sys.executable} -m pytest -q -p no:cacheprovider"
UNITTEST = f"{sys.executable} -m unittest discover"
TestFiles = Mapping[str, str]


class Kept(dict[str, bytes]):
    def put(self, content: bytes, *, kind: str, mission: str | None = None) -> str:
        name = f"{kind}-{len(self)}"
        self[name] = content
        return name


class Run:
    """Runs one command on made-up files and keeps all results."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.kept = Kept()
        self.outputs: dict[str, CheckOutput] = {}

    def __call__(
        self,
        command: str,
        files: TestFiles | None = None,
        *,
        seconds: float = 60.0,
        environment: TestFiles | None = None,
        directory: str = "",
        expires_on: bytes = b"",
    ) -> CheckResult:
        for path, content in {"pytest.ini": "[pytest]\n", **(files or {})}.items():
            target = self.place / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content)
        plan = CheckPlan(commands=(command,), seconds_each=seconds, directory=directory)
        cwd = f"{WORKSPACE}/{directory}".rstrip("/")
        # Loading the plugins installed for other tests takes pytest longer than loading itself.
        given = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **(environment or {})}
        sandbox = LocalSandbox(self.place, environment=given, cwd=cwd, expires_on=expires_on)
        coroutine = run_checks(
            plan, sandbox, keep=self.kept, mission="m-1", on_result=lambda r, o: self.outputs.update({r.name: o})
        )
        (result,) = asyncio.run(coroutine)
        assert result.name == command
        assert result.artifact in self.kept
        return result

    def text(self, result: CheckResult) -> str:
        assert result.artifact is not None
        return self.kept[result.artifact].decode()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def ended(result: CheckResult) -> tuple[str, str, int | None]:
    return result.status, result.reason, result.tests


PASSING = "def test_a():\n    assert True\n\ndef test_b():\n    assert 1\n"


def test_passing_pytest_counts_its_tests_and_removes_its_reports(
    run: Run, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    reports = tmp_path_factory.mktemp("reports")  # parallel tests have their reports in /tmp
    monkeypatch.setattr("chargehand.checks.runners.python._REPORT", f"{reports}/chargehand-report-")
    result = run(PYTEST, {"test_a.py": PASSING})
    assert ended(result) == ("passed", "", 2)
    assert result.exit_code == 0
    assert "2 passed" in run.text(result)
    assert list(reports.iterdir()) == []


def test_failing_tests_are_named_with_their_place(run: Run):
    result = run(PYTEST, {"test_a.py": PASSING + "\ndef test_bad():\n    one = 1\n    assert one == 2, 'why'\n"})
    assert ended(result) == ("failed", "tests_failed", 3)
    output = run.outputs[result.name]
    (failing,) = output.failing
    assert (failing.name, failing.file, failing.line) == ("test_a::test_bad", "test_a.py", 9)
    assert "why" in failing.message
    assert "test_bad" in output.tail


def test_a_failing_test_of_a_sub_directory_is_placed_in_the_repository(run: Run):
    files = {"api/tests/test_a.py": "def test_bad():\n    assert 0\n", "test_top.py": PASSING}
    result = run(PYTEST, files, directory="api")
    assert ended(result) == ("failed", "tests_failed", 1)
    (failing,) = run.outputs[result.name].failing
    assert (failing.file, failing.line) == ("api/tests/test_a.py", 2)
    plans = [CheckPlan(commands=("true",), directory=place).digest() for place in ("", "api", "web")]
    assert len(set(plans)) == 3


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"test_a.py": "x = 1\n"}, ("failed", "no_tests_ran", 0)),
        ({}, ("failed", "no_tests_ran", 0)),
        (
            {"test_a.py": "import pytest\n@pytest.mark.skip\ndef test_a(): assert 0\n"},
            ("failed", "no_tests_ran", 0),
        ),
        ({"test_a.py": "import nothing_of_that_name\n"}, ("failed", "collection_error", 0)),
        ({"test_a.py": PASSING, "test_b.py": "def (:\n"}, ("failed", "collection_error", 0)),
        ({"test_a.py": "import os\ndef test_a(): os._exit(0)\n"}, ("error", "no_report", None)),
        ({"test_a.py": PASSING, "conftest.py": "import os\nos._exit(0)\n"}, ("error", "no_report", None)),
        ({"test_a.py": PASSING, "pytest.py": "print('2 passed')\n"}, ("error", "no_report", None)),
        ({"pytest.ini": "[pytest]\naddopts = --of-no-such-name\n"}, ("failed", "usage_error", None)),
        ({"conftest.py": "import of_no_such_name\n", "test_a.py": PASSING}, ("failed", "collection_error", None)),
        ({"conftest.py": "raise ValueError('x')\n", "test_a.py": PASSING}, ("failed", "collection_error", None)),
        (
            {"test_a.py": "import pytest\n@pytest.fixture\ndef f(): 1/0\ndef test_a(f): ...\n"},
            ("failed", "tests_failed", 1),
        ),
    ],
)
def test_pytest_fails_closed(run: Run, files: TestFiles, expected: tuple[str, str, int | None]):
    assert ended(run(PYTEST, files)) == expected


def test_pytest_whose_exit_code_is_hidden_does_not_pass(run: Run):
    files = {"test_a.py": "def test_a():\n    assert 0\n"}
    assert ended(run(f"{PYTEST} || true", files)) == ("failed", "exit_code_disagrees", 1)
    assert ended(run(f"{PYTEST} | cat", files)) == ("failed", "tests_failed", 1)
    assert ended(run(f"{PYTEST}; true", files)) == ("failed", "tests_failed", 1)


def test_options_in_pytest_addopts_are_respected(run: Run):
    files = {"test_a.py": PASSING}
    assert ended(run(PYTEST, files, environment={"PYTEST_ADDOPTS": "-k test_b"})) == ("passed", "", 1)
    assert ended(run(f"PYTEST_ADDOPTS='-k test_b' {PYTEST}", files)) == ("passed", "", 1)
    assert ended(run(f"export PYTEST_ADDOPTS=-v; {PYTEST}", files)) == ("passed", "", 2)


def test_a_report_that_the_command_asks_for_itself_is_read(run: Run):
    files = {"test_a.py": PASSING, "out.xml": "<testsuite><testcase name='forged'/></testsuite>"}
    assert ended(run(f"{PYTEST} --junitxml=out.xml", files)) == ("passed", "", 2)
    assert ended(run(f"true || {PYTEST} --junitxml=out.xml", files)) == ("error", "no_report", None)


def test_missing_and_unusable_commands(run: Run):
    assert ended(run("no-such-program --at-all")) == ("missing", "command_not_found", None)
    assert ended(run("./script.sh", {"script.sh": "exit 0\n"})) == ("missing", "not_executable", None)
    assert ended(run(f"{sys.executable} -S -m pytest")) == ("missing", "command_not_found", None)


def test_plain_commands_pass_and_fail_by_their_exit_code(run: Run):
    assert ended(run("true")) == ("passed", "", None)
    result = run("echo out; echo err >&2; exit 3")
    assert ended(result) == ("failed", "exit_code", None)
    assert result.exit_code == 3
    assert sorted(run.text(result).split()) == ["err", "out"]


def test_no_failing_part_of_a_line_is_lost(run: Run):
    assert ended(run("false | true")) == ("failed", "exit_code", None)
    assert ended(run("false; true")) == ("failed", "exit_code", None)
    assert ended(run("false || true")) == ("passed", "", None)


def test_output_of_both_streams_is_kept_in_order(run: Run):
    result = run("for i in 1 2 3; do echo out$i; sleep 0.05; echo err$i >&2; sleep 0.05; done")
    assert run.text(result).split() == ["out1", "err1", "out2", "err2", "out3", "err3"]


def test_large_output_keeps_head_and_tail(run: Run):
    result = run(f"{sys.executable} -c \"print('first'); print('x' * 3_000_000); print('last')\"")
    content = run.text(result)
    assert len(content) < 1_100_000
    assert content.startswith("first\n")
    assert content.endswith("last\n")
    assert "bytes left out" in content


def test_output_is_safe_to_show(run: Run):
    result = run("printf '\\033[31mred\\033[0m\\n'")
    assert run.outputs[result.name].tail == "red\n"


def test_a_timeout_is_no_pass_and_leaves_no_process(run: Run):
    result = run("sleep 300 & echo $! > pid; echo begun; wait", expires_on=b"begun\n")
    assert ended(result) == ("timed_out", "timed_out", None)
    pid = int((run.place / "pid").read_text())
    wait_until(lambda: command_line(pid)[:1] != ["sleep"])


UNIT = "import unittest\nclass A(unittest.TestCase):\n    def test_a(self): self.assertTrue({})\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"test_a.py": UNIT.format("1")}, ("passed", "", 1)),
        ({"test_a.py": UNIT.format("0")}, ("failed", "exit_code", 1)),
        ({}, ("failed", "no_tests_ran", 0)),
        ({"test_a.py": UNIT.format("self.skipTest('x')")}, ("failed", "no_tests_ran", 0)),
        ({"test_a.py": "import nothing_of_that_name\n"}, ("failed", "collection_error", 1)),
        ({"test_a.py": "import os\nos._exit(0)\n"}, ("error", "no_report", None)),
    ],
)
def test_unittest_fails_closed(run: Run, files: TestFiles, expected: tuple[str, str, int | None]):
    assert ended(run(UNITTEST, files)) == expected


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python -m unittest", "python -m unittest -v"),
        (
            "cd a && python -m unittest discover -q 2>&1 | tee x",
            "cd a && python -m unittest discover -q -v 2>&1 | tee x",
        ),
        ("python -m unittest a; python -m unittest b # c", "python -m unittest a -v; python -m unittest b -v # c"),
        ("python -m unittest -k 'a|b' \"$A\" >x", "python -m unittest -k 'a|b' \"$A\" -v >x"),
        ("python -m unittest \\\n -q\ntrue", "python -m unittest \\\n -q -v\ntrue"),
        *(
            (command, command)
            for command in (
                "find . -exec python -m unittest {} +",
                "find . -exec python -m unittest {} \\;",
                "python -m unittest -- a",
                "python -m unittest $(ls)",
                'python -m unittest "$(ls)"',
                "python -m unittest `ls`",
            )
        ),
    ],
)
def test_unittest_runs_with_the_verbose_option(command: str, script: str):
    assert runner_of(command).script(command).text == script


def test_several_runs_of_unittest_are_added_up(run: Run):
    files = {"test_a.py": UNIT.format("1"), "test_b.py": UNIT.format("1")}
    command = f"{UNITTEST} -p test_a.py && {UNITTEST} -p test_b.py"
    assert ended(run(command, files)) == ("passed", "", 2)
    assert ended(run(f"{UNITTEST} -p test_a.py; {UNITTEST} -p test_c.py || true", files)) == (
        "failed",
        "no_tests_ran",
        0,
    )


CARGO_OK = "running 2 tests\ntest a ... ok\ntest result: ok. 2 passed; 0 failed; 0 ignored; 0 measured\n"
CARGO_NONE = "running 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored; 0 measured\n"
BROKEN = ("failed", "no_test_failed", 1)
UNLOADED = ("failed", "collection_error", 1)
CARGO_IGNORED = "running 2 tests\ntest result: ok. 0 passed; 0 failed; 2 ignored; 0 measured\n"


@pytest.mark.parametrize(
    ("program", "arguments", "output", "code", "expected"),
    [
        ("cargo", "test", CARGO_OK + CARGO_NONE, 0, ("passed", "", 2)),
        ("cargo", "test", CARGO_NONE, 0, ("failed", "no_tests_ran", 0)),
        ("cargo", "+nightly test", CARGO_IGNORED, 0, ("failed", "no_tests_ran", 0)),
        ("cargo", "test", "Compiling\n", 0, ("error", "no_report", None)),
        ("cargo", "test", "error[E0425]\n", 101, ("failed", "exit_code", None)),
        ("cargo", "build", "Compiling\n", 0, ("passed", "", None)),
        ("go", "test ./...", "ok  \ta/b\t0.01s\n?   \ta/c\t[no test files]\n", 0, ("passed", "", None)),
        ("go", "test -v ./...", "--- PASS: TestA (0.00s)\nok  \ta/b\t0.01s\n", 0, ("passed", "", 1)),
        ("go", "test ./...", "?   \ta/c\t[no test files]\n", 0, ("failed", "no_tests_ran", 0)),
        ("go", "test ./...", "ok  \ta/b\t0.01s [no tests to run]\n", 0, ("failed", "no_tests_ran", 0)),
        ("go", "test ./...", "FAIL\ta/b\t0.01s\n", 1, ("failed", "exit_code", None)),
        ("go", "test -v ./...", "--- PASS: TestA (0.00s)\nFAIL\ta/c [build failed]\n", 1, UNLOADED),
        ("go", "test -v ./...", "--- FAIL: TestA (0.00s)\nFAIL\ta/c\t0.01s\n", 1, ("failed", "exit_code", 1)),
        (
            "npm",
            "test",
            "FAIL a.test.js\n  ● Test suite failed to run\nTests:       1 passed, 1 total\n",
            1,
            BROKEN,
        ),
        ("npm", "test", "Tests:       1 skipped, 5 passed, 6 total\n", 0, ("passed", "", 5)),
        ("npm", "test", "Tests:       3 skipped, 3 total\n", 0, ("failed", "no_tests_ran", 0)),
        ("npm", "run test", " Tests  4 passed (4)\n", 0, ("passed", "", 4)),
        ("npm", "test", "  0 passing (1ms)\n", 0, ("failed", "no_tests_ran", 0)),
        ("npm", "test", "# tests 0\n# pass 0\n# fail 0\n", 0, ("failed", "no_tests_ran", 0)),
        ("npm", "test", "all fine\n", 0, ("passed", "", None)),
        ("npm", "run lint", "  0 passing (1ms)\n", 0, ("passed", "", 0)),
    ],
)
def test_outcomes_of_other_runners_follow_their_output(
    run: Run, program: str, arguments: str, output: str, code: int, expected: tuple[str, str, int | None]
):
    run.place.joinpath("printed").write_text(output)
    script = run.place / "bin" / program
    script.parent.mkdir()
    script.write_text(f"#!/bin/sh\ncat printed\nexit {code}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    path = f"{script.parent}:{os.environ['PATH']}"
    assert ended(run(f"{program} {arguments}", environment={"PATH": path})) == expected


def test_every_command_runs_whatever_the_others_say(tmp_path: Path):
    plan = CheckPlan(commands=("false", "true", "exit 2"))
    results = asyncio.run(run_checks(plan, LocalSandbox(tmp_path), keep=Kept(), mission=None))
    assert [(r.name, r.status) for r in results] == [("false", "failed"), ("true", "passed"), ("exit 2", "failed")]


SUREFIRE = """<testsuite><testcase name="{}" classname="a.T"/></testsuite>"""


def test_tests_are_named_by_the_reports_of_this_run(tmp_path: Path) -> None:
    old, new = "core/target/surefire-reports/TEST-a.Old.xml", "core/target/surefire-reports/TEST-a.T.xml"
    (tmp_path / old).parent.mkdir(parents=True)
    (tmp_path / old).write_text(SUREFIRE.format("never"))
    (tmp_path / "mvn").write_text(f"#!/bin/sh\necho '{SUREFIRE.format('adds')}' > {new}\n")
    (tmp_path / "mvn").chmod(0o755)
    kept, plan = Kept(), CheckPlan(commands=("./mvn -q test",))
    (result,) = asyncio.run(run_checks(plan, LocalSandbox(tmp_path), keep=kept, mission=None))
    assert (result.status, result.tests) == ("passed", 1)
    assert result.ran is not None
    assert json.loads(kept[result.ran]) == ["core/a.T::adds"]


@pytest.mark.parametrize("command", ["true", "echo 'ok 1 - adds'; echo 1..1"])
def test_the_mark_of_a_check_is_removed(tmp_path: Path, command: str) -> None:
    sandbox = LocalSandbox(tmp_path)
    asyncio.run(run_checks(CheckPlan(commands=(command,)), sandbox, keep=Kept(), mission=None))
    marks = {word for words in sandbox.commands for word in words if word.endswith(".mark")}
    assert len(marks) == 1
    assert not [mark for mark in marks if Path(mark).exists()]


def test_a_sandbox_that_dies_is_no_red_check(tmp_path: Path):
    # Each moment belongs to the first check; by any later one, the check has been reported.
    for moment in (1, 2, 3, 4, 5):
        told: list[CheckResult] = []
        sandbox = LocalSandbox(tmp_path, dies_at=moment)
        plan = CheckPlan(commands=("true", "true"))
        with pytest.raises(SandboxDiedError):
            asyncio.run(
                run_checks(plan, sandbox, keep=Kept(), mission=None, on_result=lambda r, _, t=told: t.append(r))
            )
        assert len(told) == (moment == 5)


def test_without_bash_sh_runs_the_commands(tmp_path: Path):
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "sh").symlink_to("/bin/sh")
    sandbox = LocalSandbox(tmp_path, environment={"PATH": str(tools)})
    plan = CheckPlan(commands=("exit 0", "false; exit 0"))
    results = asyncio.run(run_checks(plan, sandbox, keep=Kept(), mission=None))
    assert [r.status for r in results] == ["passed", "failed"]
    assert [argv[:3] for argv in sandbox.commands if argv[-1] in plan.commands] == [("sh", "-e", "-c")] * 2


def test_a_pipe_in_place_of_the_report_ends_in_an_error(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("chargehand.checks.execution._READ_SECONDS", 0.7)
    plant = "import os, re\ndef pytest_unconfigure():\n"
    plant += "    p = re.search('--junitxml=(.*)', os.environ['PYTEST_ADDOPTS'])[1]\n"
    plant += "    os.unlink(p) if os.path.exists(p) else None\n    os.mkfifo(p)\n"
    assert ended(run(PYTEST, {"test_a.py": PASSING, "conftest.py": plant})) == ("error", "no_report", None)
