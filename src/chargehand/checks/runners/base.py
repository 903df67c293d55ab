"""The interface of a test runner: detection, start, and interpretation of its exit and output."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from msgspec import Struct

from chargehand.checks.junit import TestCounts
from chargehand.checks.stacks import Stack
from chargehand.core.records import CheckStatus
from chargehand.core.text import late_pattern
from chargehand.sandbox.contract import ExecResult

# Exit codes of the shell.
_MISSING = {126: "not_executable", 127: "command_not_found"}
# Exit code for "no tests found" of pytest, and of unittest from Python 3.12 on.
NO_TESTS_CODE = 5
# A coverage gate fails a run whose tests all pass: it counts as a failure of that name.
COVERAGE_GATE = "(coverage)"


class Outcome(Struct, frozen=True, kw_only=True):
    """A check's status, a stable reason code if it did not pass, and the number of tests if known."""

    status: CheckStatus
    reason: str = ""
    tests: int | None = None


class CheckScript(Struct, frozen=True):
    """The shell script for a command: its `text`, and the path of the JUnit `report` that it writes, if any.

    `keeps_report` means that the command itself asked for the report, which may be an output of the project.
    """

    text: str
    report: str | None = None
    keeps_report: bool = False


class RunnableCheck(Struct, frozen=True):
    """A detected command, and the evidence for it in the project's files."""

    command: str
    why: str


class TestName(NamedTuple):
    """A test's name in three parts: its place, its own name, and its variant, such as parameters or a subtest."""

    place: str
    own: str
    variant: str


class Runner:
    """A test runner with only an exit code; each runner overrides the further facts that it reports."""

    name: ClassVar[str]
    ecosystem: ClassVar[str] = ""
    """Only the first detected runner of an ecosystem becomes a check."""
    module: ClassVar[str | None] = None
    """The module with which `python -m` starts it."""
    starts: ClassVar[tuple[str, ...]] = ()
    """Its program, with the words that must follow apart from options: `npm run test`."""
    is_known: ClassVar[bool] = True
    """False for an arbitrary program: build tools' reports and summaries then show which tests ran."""
    names_failures_in_report: ClassVar[bool] = False
    """True if its report names each failed test: without named tests, the run failed for another reason."""
    tells_files_apart: ClassVar[bool] = True
    """False if tests of one name in two files have the same name in the output."""
    name_form: ClassVar[re.Pattern[str]] = late_pattern(r"(?:(?P<place>.*)::)?(?P<own>.*)(?P<variant>)", re.DOTALL)
    """Splits the name of any test into the parts of a `TestName`; each part may be empty."""

    def detect(self, stack: Stack) -> RunnableCheck | None:
        """Return the command for this runner if a project's files call for it."""
        return None

    def is_started_by(self, program: str, arguments: list[str]) -> bool:
        """Return whether a command, given by the base name of its program, starts this runner."""
        tasks = [word for word in arguments if not word.startswith(("-", "+"))]
        for start in self.starts:
            first, *others = start.split()
            if program == first and tasks[: len(others)] == others:
                return True
        return False

    def script(self, command: str) -> CheckScript:
        """Return the script for a command, changed if the runner would not name its tests otherwise."""
        return CheckScript(command)

    def outcome(self, result: ExecResult, text: str, report: TestCounts | None) -> Outcome:
        """Return the outcome of a check from its command's end.

        `text` is its output, `report` the counts of its JUnit report, `None` without a readable one. An exit code
        of 0 is not enough if a runner reports how many tests ran: a run without tests is a failure.
        """
        code = result.exit_code
        if result.timed_out:
            return Outcome(status="timed_out", reason="timed_out", tests=report.ran if report else None)
        if result.limit is not None:
            return Outcome(status="failed", reason=result.limit, tests=report.ran if report else None)
        if code in _MISSING:
            return Outcome(status="missing", reason=_MISSING[code])
        outcome = self.judge(code, text, report)
        # `go test || true`, or a `TestMain` that drops the result of its tests, still exits with 0.
        if outcome.status == "passed" and self.says_failed(text):
            return Outcome(status="failed", reason="exit_code_disagrees", tests=outcome.tests)
        return outcome

    def judge(self, code: int, text: str, report: TestCounts | None) -> Outcome:
        """Return the outcome for the exit code of a completed run, its output and its report."""
        return judge_exit(code)

    def says_failed(self, text: str) -> bool:
        """Return whether the summary in an output reports failed tests."""
        return False

    def names(self, text: str) -> tuple[str, ...] | None:
        """Return the tests that ran according to an output, sorted; `None` for a runner that does not name them.

        Before `::` comes the package (go), the binary (cargo) or the class of a test, if the output shows it. A
        name that several tests share appears as often as it ran.
        """
        return tuple(sorted(self.find_names(text))) or None

    def find_names(self, text: str) -> list[str]:
        """Return the tests that an output names, in any order."""
        return []

    def failing_names(self, text: str, report: TestCounts | None) -> tuple[str, ...] | None:
        """Return the failed tests, sorted, by the names that `names` gives them.

        `None` if the runner does not name every failure: an unnamed one could hide behind a known one.
        """
        return None

    def select(self, command: str, names: Sequence[str]) -> str | None:
        """Return the command changed so that it runs only these tests; `None` if the runner cannot select tests.

        A test that the runner does not find may make it run all of them.
        """
        return None

    def split_name(self, name: str) -> TestName:
        """Return the parts of a test's name."""
        found = self.name_form.fullmatch(name)
        assert found is not None  # each part may be empty
        return TestName(found["place"] or "", found["own"], found["variant"])


_OPERATOR = late_pattern(r"[;&|()<>\n`]|\$\(")


def append_words(command: str, words: Sequence[str]) -> str | None:
    """Return a command with more words at its end; `None` if it consists of several commands."""
    return None if _OPERATOR.search(command) else f"{command} {shlex.join(words)}"


def judge_exit(code: int, *, tests: int | None = None) -> Outcome:
    """Judge a run by its exit code alone."""
    if code == 0:
        return Outcome(status="passed", tests=tests)
    return Outcome(status="failed", reason="exit_code", tests=tests)


def judge_counted(code: int, tests: int) -> Outcome:
    """Judge a run whose output counts its tests: a success without tests is not a success."""
    if tests <= 0 and code in {0, NO_TESTS_CODE}:
        return Outcome(status="failed", reason="no_tests_ran", tests=0)
    return judge_exit(code, tests=tests)


def judge_silent(code: int) -> Outcome:
    """Judge a run without the usual count of tests: a success is unconfirmed."""
    return Outcome(status="error", reason="no_report") if code == 0 else judge_exit(code)
