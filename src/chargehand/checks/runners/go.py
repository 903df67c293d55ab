"""go test."""

from __future__ import annotations

import re
from collections.abc import Sequence

from chargehand.checks.junit import TestCounts
from chargehand.checks.runners.base import CheckScript, Outcome, RunnableCheck, Runner, judge_exit
from chargehand.checks.stacks import Stack
from chargehand.core.text import late_pattern

_PACKAGE = late_pattern(r"^(?:ok|FAIL)[ \t]+\S+(?![^\n]*\[no tests to run\])[^\n]*$", re.MULTILINE)
_UNBUILT = late_pattern(r"^FAIL[ \t]+\S+ \[(?:build|setup) failed\]$", re.MULTILINE)
_FAILED = late_pattern(r"^--- FAIL: ", re.MULTILINE)
_ENDED_BADLY = late_pattern(r"^FAIL$", re.MULTILINE)
_TEST = late_pattern(r"^\s*--- (?:PASS|FAIL): ", re.MULTILINE)
# Tests come before the line of their package.
_NAMED = late_pattern(r"^\s*--- (?:PASS|FAIL): (?P<test>\S+)|^(?:ok|FAIL)[ \t]+(?P<package>\S+)", re.MULTILINE)


_BAD = late_pattern(r"^\s*--- FAIL: (?P<test>\S+)|^(?:ok|(?P<bad>FAIL))[ \t]+(?P<package>\S+)", re.MULTILINE)
_IDENTIFIER = late_pattern(r"\w+")


class GoTest(Runner):
    """go test, whose variants are subtests, `TestAdd/zero`; a test's place is its package."""

    name = "go"
    ecosystem = "go"
    starts = ("go test",)
    name_form = late_pattern(r"(?:(?P<place>[^:]*)::)?(?P<own>[^/]*)(?P<variant>.*)", re.DOTALL)

    def detect(self, stack: Stack) -> RunnableCheck | None:
        """Return its command if a module has test files."""
        if stack.has("go.mod") and (tests := stack.tests("go")):
            return RunnableCheck("go test ./...", f"go.mod and {tests[0]}")
        return None

    def script(self, command: str) -> CheckScript:
        """Ask for the names of tests, which it prints only with `-v`."""
        return CheckScript(f'export GOFLAGS="${{GOFLAGS:+$GOFLAGS }}-v"\n{command}')

    def judge(self, code: int, text: str, report: TestCounts | None) -> Outcome:
        """Judge by the exit code; a success needs a package that had tests to run."""
        if code == 0 and not _PACKAGE.search(text):
            return Outcome(status="failed", reason="no_tests_ran", tests=0)
        tests = len(_TEST.findall(text)) or None  # without -v only packages are listed
        if code and _UNBUILT.search(text):
            return Outcome(status="failed", reason="collection_error", tests=tests)
        return judge_exit(code, tests=tests)

    def says_failed(self, text: str) -> bool:
        """Return whether a test failed, and its package's run with it."""
        return _FAILED.search(text) is not None and _ENDED_BADLY.search(text) is not None

    def failing_names(self, text: str, report: TestCounts | None) -> tuple[str, ...] | None:
        """Return the failed tests with their packages, if every failed package names one."""
        found, tests = set[str](), list[str]()
        for line in _BAD.finditer(text):
            if line["test"]:
                tests.append(line["test"])
                continue
            if line["bad"] and not tests:  # it could not be built, or ended without a message
                return None
            found.update(f"{line['package']}::{name}" for name in tests)
            tests.clear()
        return tuple(sorted(found)) or None if not tests else None

    def select(self, command: str, names: Sequence[str]) -> str | None:
        """Select the tests by a pattern, and bypass go's result cache."""
        tests = sorted({self.split_name(name).own for name in names})
        if not all(map(_IDENTIFIER.fullmatch, tests)):
            return None
        return f'export GOFLAGS="${{GOFLAGS:+$GOFLAGS }}-count=1 -run=^({"|".join(tests)})\\$"\n{command}'

    def find_names(self, text: str) -> list[str]:
        """Return the tests with their packages, including those running when the output ends."""
        found, package = list[str](), list[str]()
        for line in _NAMED.finditer(text):
            if line["test"]:
                package.append(line["test"])
            else:
                found += [f"{line['package']}::{name}" for name in package]
                package.clear()
        return found + package
