"""From how a command ended to a check's status: whatever is not clearly a pass fails."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from chargehand.checks._commands import Runner
from chargehand.checks._junit import TestCounts
from chargehand.core.records import CheckStatus
from chargehand.sandbox.contract import ExecResult

_NO_MODULE = re.compile(r"No module named '?(?:pytest|unittest)\b")
_UNITTEST_RAN = re.compile(r"^Ran (\d+) tests? in ", re.MULTILINE)
_UNITTEST_SKIPPED = re.compile(r"^(?:OK|FAILED) \(.*?\bskipped=(\d+)", re.MULTILINE)
_UNITTEST_UNLOADED = re.compile(r"^ERROR: .*\bunittest\.loader\._FailedTest\b", re.MULTILINE)
"""A module that cannot be imported: unittest counts it as a test that ran."""
_CARGO_RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed;", re.MULTILINE)
_CARGO_RUNNING = re.compile(r"^running (\d+) tests?$", re.MULTILINE)
_GO_PACKAGE = re.compile(r"^(?:ok|FAIL)[ \t]+\S+(?![^\n]*\[no tests to run\])[^\n]*$", re.MULTILINE)
_GO_UNBUILT = re.compile(r"^FAIL[ \t]+\S+ \[(?:build|setup) failed\]$", re.MULTILINE)
_GO_TEST = re.compile(r"^\s*--- (?:PASS|FAIL): ", re.MULTILINE)
# jest and vitest ("Tests: 1 failed, 2 passed, 3 total"), mocha ("2 passing"), node --test ("# pass 2").
_NODE_SUMMARY = re.compile(
    r"^\s*Tests:?\s+(?=\d|no tests)(.*)$|^\s*(\d+ (?:passing|failing|pending)\b)", re.MULTILINE
)
_NODE_TAP = re.compile(r"^\W{0,3}\s?(?:pass|fail) (\d+)$", re.MULTILINE)
_NODE_RAN = re.compile(r"(\d+) (?:passed|failed|passing|failing)\b")
_NODE_BAD = re.compile(r"(\d+) (?:failed|failing)\b")
_NODE_TAP_BAD = re.compile(r"^\W{0,3}\s?fail (\d+)$", re.MULTILINE)
_PYTEST_NO_TESTS, _PYTEST_USAGE, _UNITTEST_NO_TESTS = 5, 4, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A check's status, a stable reason code where it did not pass, and how many tests ran where told."""

    status: CheckStatus
    reason: str = ""
    tests: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What is known of a finished command: `report` is `None` where the runner left none that can be read."""

    exit_code: int
    text: str
    report: TestCounts | None = None


def outcome_of(runner: Runner, result: ExecResult, text: str, report: TestCounts | None) -> Outcome:
    """Return what a command's end means for its check."""
    if result.timed_out:
        return Outcome(status="timed_out", reason="timed_out", tests=report.ran if report else None)
    if result.limit is not None:
        return Outcome(status="failed", reason=result.limit, tests=report.ran if report else None)
    if result.exit_code == 127:
        return Outcome(status="missing", reason="command_not_found")
    if result.exit_code == 126:
        return Outcome(status="missing", reason="not_executable")
    return _OUTCOMES[runner](Ran(exit_code=result.exit_code, text=text, report=report))


def _pytest(ran: Ran) -> Outcome:
    if ran.report is None:
        return _pytest_without_report(ran)
    report = ran.report
    if report.collection_errors:
        return Outcome(status="failed", reason="collection_error", tests=report.ran)
    if ran.exit_code == _PYTEST_NO_TESTS or (report.ran == 0 and not report.bad):
        return Outcome(status="failed", reason="no_tests_ran", tests=0)
    if report.bad:
        reason = "tests_failed" if ran.exit_code else "exit_code_disagrees"
        return Outcome(status="failed", reason=reason, tests=report.ran)
    return _by_exit_code(ran, tests=report.ran)


def _pytest_without_report(ran: Ran) -> Outcome:
    if ran.exit_code == 0:
        return Outcome(status="error", reason="no_report")
    if ran.exit_code == _PYTEST_NO_TESTS:
        return Outcome(status="failed", reason="no_tests_ran", tests=0)
    if ran.exit_code == 1 and _NO_MODULE.search(ran.text):
        return Outcome(status="missing", reason="command_not_found")
    return Outcome(status="failed", reason="usage_error" if ran.exit_code == _PYTEST_USAGE else "exit_code")


def _unittest(ran: Ran) -> Outcome:
    counts = _UNITTEST_RAN.findall(ran.text)
    if not counts:
        return Outcome(status="error", reason="no_report") if ran.exit_code == 0 else _by_exit_code(ran)
    skipped = _UNITTEST_SKIPPED.findall(ran.text)
    tests = int(counts[-1]) - (int(skipped[-1]) if skipped else 0)
    if ran.exit_code and _UNITTEST_UNLOADED.search(ran.text):
        return Outcome(status="failed", reason="collection_error", tests=tests)
    return _counted(ran, tests)


def _cargo(ran: Ran) -> Outcome:
    results = _CARGO_RESULT.findall(ran.text)
    if not results and not _CARGO_RUNNING.search(ran.text):
        return Outcome(status="error", reason="no_report") if ran.exit_code == 0 else _by_exit_code(ran)
    return _counted(ran, sum(int(passed) + int(failed) for passed, failed in results))


def _go(ran: Ran) -> Outcome:
    if ran.exit_code == 0 and not _GO_PACKAGE.search(ran.text):
        return Outcome(status="failed", reason="no_tests_ran", tests=0)
    tests = len(_GO_TEST.findall(ran.text)) or None
    if ran.exit_code and _GO_UNBUILT.search(ran.text):
        return Outcome(status="failed", reason="collection_error", tests=tests)
    return _by_exit_code(ran, tests=tests)


def _node(ran: Ran) -> Outcome:
    summaries = [words or line for words, line in _NODE_SUMMARY.findall(ran.text)]
    counts = _NODE_TAP.findall(ran.text) + [n for line in summaries for n in _NODE_RAN.findall(line)]
    if not counts and not summaries:
        return _by_exit_code(ran)
    bad = _NODE_TAP_BAD.findall(ran.text) + [n for line in summaries for n in _NODE_BAD.findall(line)]
    tests = sum(map(int, counts))
    if ran.exit_code and tests and not sum(map(int, bad)):
        return Outcome(status="failed", reason="no_test_failed", tests=tests)
    return _counted(ran, tests)


def _counted(ran: Ran, tests: int) -> Outcome:
    if tests <= 0 and ran.exit_code in {0, _UNITTEST_NO_TESTS}:
        return Outcome(status="failed", reason="no_tests_ran", tests=0)
    return _by_exit_code(ran, tests=tests)


def _by_exit_code(ran: Ran, *, tests: int | None = None) -> Outcome:
    if ran.exit_code == 0:
        return Outcome(status="passed", tests=tests)
    return Outcome(status="failed", reason="exit_code", tests=tests)


_OUTCOMES: dict[Runner, Callable[[Ran], Outcome]] = {
    "pytest": _pytest,
    "unittest": _unittest,
    "cargo": _cargo,
    "go": _go,
    "node": _node,
    "plain": _by_exit_code,
}
