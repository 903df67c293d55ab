"""What checks know of a test runner: how it is found and started, and what its end and its output mean."""

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
# Exit code with which pytest, and unittest from Python 3.12 on, say that they found no tests.
NO_TESTS_CODE = 5
# A gate of coverage fails a run whose tests all pass: it counts as a failure of that name.
COVERAGE_GATE = "(coverage)"


class Outcome(Struct, frozen=True, kw_only=True):
    """A check's status, a stable reason code where it did not pass, and how many tests ran where that is known."""

    status: CheckStatus
    reason: str = ""
    tests: int | None = None


class CheckScript(Struct, frozen=True):
    """What the shell runs for a command: its `text`, and the path of the JUnit `report` that it writes, if any.

    `keeps_report` says that the command itself asked for the report, which may be an output of the project.
    """

    text: str
    report: str | None = None
    keeps_report: bool = False


class RunnableCheck(Struct, frozen=True):
    """A command that a project's files call for, and what in them does."""

    command: str
    why: str


class TestName(NamedTuple):
    """A test's name in three parts: its place, its own name, and its variant, such as parameters or a subtest."""

    place: str
    own: str
    variant: str


class Runner:
    """A test runner of which only the exit code is known; each runner overrides what else it tells."""

    name: ClassVar[str]
    ecosystem: ClassVar[str] = ""
    """Of runners that share an ecosystem only the first one that is detected becomes a check."""
    module: ClassVar[str | None] = None
    """The module by which `python -m` starts it."""
    starts: ClassVar[tuple[str, ...]] = ()
    """Its program, with the words that must follow once options are left out: `npm run test`."""
    is_known: ClassVar[bool] = True
    """False for a program of any kind: reports of build tools and summaries then tell which tests ran."""
    names_failures_in_report: ClassVar[bool] = False
    """True if its report names each test that failed: with none named, another reason failed the run."""
    tells_files_apart: ClassVar[bool] = True
    """False where tests of one name in two files have one name in the output as well."""
    name_form: ClassVar[re.Pattern[str]] = late_pattern(r"(?:(?P<place>.*)::)?(?P<own>.*)(?P<variant>)", re.DOTALL)
    """Splits the name of any test into the parts of a `TestName`, of which each may be empty."""

    def detect(self, stack: Stack) -> RunnableCheck | None:
        """Return the command for this runner where a project's files call for it."""
        return None

    def is_started_by(self, program: str, arguments: list[str]) -> bool:
        """Tell whether a command, given by the base name of its program, starts this runner."""
        tasks = [word for word in arguments if not word.startswith(("-", "+"))]
        for start in self.starts:
            first, *others = start.split()
            if program == first and tasks[: len(others)] == others:
                return True
        return False

    def script(self, command: str) -> CheckScript:
        """Return what is run for a command, changed where the runner would not name its tests otherwise."""
        return CheckScript(command)

    def outcome(self, result: ExecResult, text: str, report: TestCounts | None) -> Outcome:
        """Return what a command's end means for its check.

        `text` is its output, `report` what a JUnit report counted, `None` where there is none that can be read. An
        exit code of 0 is not enough where a runner says how many tests ran: none is a failure.
        """
        code = result.exit_code
        if result.timed_out:
            return Outcome(status="timed_out", reason="timed_out", tests=report.ran if report else None)
        if result.limit is not None:
            return Outcome(status="failed", reason=result.limit, tests=report.ran if report else None)
        if code in _MISSING:
            return Outcome(status="missing", reason=_MISSING[code])
        outcome = self.judge(code, text, report)
        # `go test || true`, or a `TestMain` that drops the result of its tests, ends with 0 all the same.
        if outcome.status == "passed" and self.says_failed(text):
            return Outcome(status="failed", reason="exit_code_disagrees", tests=outcome.tests)
        return outcome

    def judge(self, code: int, text: str, report: TestCounts | None) -> Outcome:
        """Return what the exit code of a run that came to its own end means, with its output and its report."""
        return judge_exit(code)

    def says_failed(self, text: str) -> bool:
        """Tell whether the summary in an output says that tests failed."""
        return False

    def names(self, text: str) -> tuple[str, ...] | None:
        """Return the tests that an output says have run, sorted; `None` for a runner that does not name them.

        Before `::` stands the package (go), the binary (cargo) or the class that a test is in, where the output
        tells. A name that several tests share is there as often as it ran.
        """
        return tuple(sorted(self.find_names(text))) or None

    def find_names(self, text: str) -> list[str]:
        """Return the tests that an output names, in any order."""
        return []

    def failing_names(self, text: str, report: TestCounts | None) -> tuple[str, ...] | None:
        """Return the tests that failed, sorted, by the names that `names` gives them.

        `None` if the runner does not name every failure: an unnamed one could hide behind a known one.
        """
        return None

    def select(self, command: str, names: Sequence[str]) -> str | None:
        """Return the command changed so that it runs only these tests; `None` if the runner cannot be told.

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
    """Judge a run whose output counts its tests: a success without any is none."""
    if tests <= 0 and code in {0, NO_TESTS_CODE}:
        return Outcome(status="failed", reason="no_tests_ran", tests=0)
    return judge_exit(code, tests=tests)


def judge_silent(code: int) -> Outcome:
    """Judge a run without the count of tests that its runner always prints: a success is unconfirmed."""
    return Outcome(status="error", reason="no_report") if code == 0 else judge_exit(code)
