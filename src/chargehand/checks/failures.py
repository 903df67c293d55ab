"""The failures of a check, and which of them its base has too.

A project whose base is red can still be worked on if a change adds no failure. Failures are compared test by test
if the runner names each failed test, else by the output lines that look like errors.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence

from msgspec import Struct

from chargehand.checks.failure_excerpts import error_lines
from chargehand.checks.runners.base import COVERAGE_GATE
from chargehand.checks.runners.table import runner_of
from chargehand.core.records import CheckResult
from chargehand.core.text import late_pattern

_MOST_LINES = 2_000
# Places, durations, sizes and counts differ from run to run; numbers within a name stay. The host name of a
# sandbox has 12 digits.
_VARIES = late_pattern(
    r"0x[0-9a-fA-F]+|/tmp/[^\s:'\"]+|(?<![\w.-])[0-9a-f]{12}(?![\w-])|(?<![\w.-])\d[\d.,]*(?=\b|[a-z]{1,2}\b)"
)
# A line that only counts: the count follows from the other lines.
_SUMMARY = late_pattern(r"\b0 (?:errors?|fail(?:ures?|ed|ing)|warnings?|problems?)\b")
_STOPS_EARLY = late_pattern(
    r"(?:^|\s)(?:-[qvslbc]*[xf][qvslbc]*|--exitfirst|--?failfast|--maxfail\S*|--bail\S*|--fail-fast)(?=\s|$)"
)
# pytest reports this wherever the option is set.
_STOPPED = late_pattern(r"^!+ stopping after \d+ failures !+$", re.MULTILINE)
_SPACES = late_pattern(r"\s+")


class CheckFailures(Struct, frozen=True, kw_only=True):
    """The failures of one check.

    `tests` names all failed tests, `None` if the runner does not name each of them; `lines` are then the error
    lines of the output without numbers that vary, `None` if the output was truncated or has no such line.
    `stopped` means that the run ended at a failure, so that later tests did not run.
    """

    reason: str
    tests: tuple[str, ...] | None = None
    lines: tuple[str, ...] | None = None
    stopped: bool = False


class Comparison(Struct, frozen=True, kw_only=True):
    """The failures of a check, split by whether the base has them too.

    Both are names of tests, or lines if not `named`. `told` is false if the two sides cannot be compared.
    """

    known: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    named: bool = True
    told: bool = True


def describe_failures(
    command: str, reason: str, text: str, tests: Sequence[str] | None, *, cut: bool
) -> CheckFailures:
    """Return a check's failures from its output and the names from its runner; `cut` means truncated output."""
    if tests is not None:
        stopped = bool(_STOPS_EARLY.search(command) or _STOPPED.search(text))
        return CheckFailures(reason=reason, tests=tuple(tests), stopped=stopped)
    found = [] if cut else map(_normalise, error_lines(text))
    lines = sorted(line for line in found if not _SUMMARY.search(line))
    return CheckFailures(reason=reason, lines=tuple(lines) if 0 < len(lines) <= _MOST_LINES else None)


def compare_failures(
    before: CheckFailures | None, after: CheckFailures, *, excused: Collection[str] = ()
) -> Comparison:
    """Compare the failures on a tree with those on its base, `None` if the check passed there.

    Tests that are `excused` count as known. A check that ends for another reason (a timeout, a missing command)
    has a new failure.
    """
    if after.tests is not None:
        known = {*excused, *(before.tests or () if before is not None else ())}
        mine = set(after.tests)
        # Without names on the base there is no evidence that these are the same tests.
        told = before is None or before.tests is not None or mine <= known
        return Comparison(known=tuple(sorted(mine & known)), new=tuple(sorted(mine - known)), told=told)
    if before is None or before.reason != after.reason:
        return Comparison(named=False, new=(after.reason,))
    if before.lines is None or after.lines is None:
        return Comparison(named=False, told=False)
    more = Counter(after.lines) - Counter(before.lines)
    if more:
        return Comparison(named=False, new=tuple(sorted(more)))
    return Comparison(named=False, known=after.lines)


def counts_tests(command: str) -> bool:
    """Return whether a command starts a test runner that counts or names its tests."""
    return runner_of(command).is_known


def select_tests(command: str, tests: Sequence[str]) -> str | None:
    """Return a command changed to run only these tests, `None` if its runner cannot; see `Runner.select`."""
    return runner_of(command).select(command, tests) if tests else None


def own_name(command: str, test: str) -> str:
    """Return the name of a test without its file, class and parameters."""
    return runner_of(command).split_name(test).own.rpartition("::")[2]


def failed_without_a_test(check: CheckResult, failures: CheckFailures) -> bool:
    """Return whether tests ran and all passed, so that a gate over the whole run failed the check."""
    if failures.tests is not None:
        return set(failures.tests) == {COVERAGE_GATE}
    return bool(check.tests) and check.reason == "exit_code" and runner_of(check.name).names_failures_in_report


def _normalise(line: str) -> str:
    return _SPACES.sub(" ", _VARIES.sub("0", line)).strip()
