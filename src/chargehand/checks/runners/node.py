"""The test runners of node: `npm test`, jest, vitest, mocha, ava, tap and `node --test`."""

from __future__ import annotations

import re

from chargehand.checks.failure_excerpts import read_failures
from chargehand.checks.junit import TestCounts
from chargehand.checks.runners.base import (
    COVERAGE_GATE,
    Outcome,
    RunnableCheck,
    Runner,
    judge_counted,
    judge_exit,
)
from chargehand.checks.stacks import Stack, table
from chargehand.core.text import late_pattern

_PLACEHOLDER = "no test specified"  # of the script that `npm init` writes
# jest and vitest ("Tests: 1 failed, 2 passed, 3 total"), mocha ("2 passing"), node --test ("# pass 2").
_SUMMARY = late_pattern(
    r"^\s*Tests:?\s+(?=\d|no tests)(.*)$|^\s*(\d+ (?:passing|failing|pending)\b)", re.MULTILINE
)
_TAP_RAN = late_pattern(r"^\W{0,3}\s?(?:pass|fail) (\d+)$", re.MULTILINE)
_RAN = late_pattern(r"(\d+) (?:passed|failed|passing|failing)\b")
_BAD = late_pattern(r"(\d+) (?:failed|failing)\b")
_TAP_BAD = late_pattern(r"^\W{0,3}\s?fail (\d+)$", re.MULTILINE)
# tap writes no counts: the points at the left margin are counted, if there is a plan such as "1..51".
_TAP_PLAN = late_pattern(r"^1\.\.\d+\b", re.MULTILINE)
_TAP_POINT = late_pattern(r"^(?P<bad>not )?ok \d+\b(?!.*[ \t]# (?:SKIP|TODO)\b)", re.MULTILINE | re.IGNORECASE)
# nyc, c8 and vitest; jest; `node --test`.
_COVERAGE_FAILED = late_pattern(
    r"^(?:ERROR: Coverage for \w+ \(|Jest: .*coverage threshold .*not met"
    r"|\W{0,3}\s?Error: [\d.]+% \w+ coverage does not meet threshold)",
    re.MULTILINE,
)
_UNLOADED = late_pattern(r"^\s*Test (?:Suites:|Files)\s+\d+ failed\b|Test suite failed to run", re.MULTILINE)
# TAP ("ok 1 - adds"), and the marks of node, mocha, jest and vitest before a name, with its duration after it. In
# TAP a test's group is above it: a heading, or the line of a group that ends with "{".
_NAMED = late_pattern(
    r"^(?P<indent>[ \t]*)(?:# Subtest: (?P<heading>.+)"
    r"|(?:not )?ok \d+ - (?P<tap>.+?)(?:[ \t]+# time=[\d.]+m?s)?(?P<opens> \{)?"
    r"|[✔✓✖✗✕×] (?P<marked>.+?)(?: \(?\d[\d.]* ?m?s\)?)?)"
    r"(?P<not_run>[ \t]+# (?:SKIP|TODO)\b.*)?$",
    re.MULTILINE,
)
_TAP_INDENT = 4
_VITEST_FILE = late_pattern(r"^[ \t]*[✓❯×] (?:\S+ )?\S+\.\w+[ \t]+\(\d+ tests?(?: \| [^)\n]*)?\)", re.MULTILINE)


class NodeTest(Runner):
    """`npm test` with any of node's runners, which can be distinguished only by their output."""

    name = "node"
    ecosystem = "node"
    starts = (
        *("npm test", "npm t", "npm run test", "bun test", "bun t", "bun run test"),
        *("jest", "vitest", "mocha", "ava", "tap"),
    )
    tells_files_apart = False

    def detect(self, stack: Stack) -> RunnableCheck | None:
        """Return `npm test` if package.json has a custom script for it."""
        script = table(stack.json("package.json"), "scripts").get("test")
        if isinstance(script, str) and script.strip() and _PLACEHOLDER not in script:
            return RunnableCheck("npm test", "package.json has a test script")
        return None

    def is_started_by(self, program: str, arguments: list[str]) -> bool:
        """Recognise it by its programs, and `node` by its option."""
        return super().is_started_by(program, arguments) or (program == "node" and "--test" in arguments)

    def judge(self, code: int, text: str, report: TestCounts | None) -> Outcome:
        """Judge by the counts of all summaries together; without one, a script may not be a runner at all."""
        summaries = [words or line for words, line in _SUMMARY.findall(text)]
        counts = _TAP_RAN.findall(text) + [n for line in summaries for n in _RAN.findall(line)]
        tests = sum(map(int, counts))
        if self._has_points_alone(text):
            tests = len(_TAP_POINT.findall(text))
        elif not counts and not summaries:
            return judge_exit(code)
        if code and tests and not self.says_failed(text):
            gate = self._fails_coverage_alone(text)
            return Outcome(status="failed", reason="exit_code" if gate else "no_test_failed", tests=tests)
        return judge_counted(code, tests)

    def says_failed(self, text: str) -> bool:
        """Return whether any summary counts a failure."""
        return self._count_bad(text) > 0

    def _count_bad(self, text: str) -> int:
        if self._has_points_alone(text):
            return sum(1 for bad in _TAP_POINT.findall(text) if bad)
        summaries = [words or line for words, line in _SUMMARY.findall(text)]
        return sum(map(int, _TAP_BAD.findall(text) + [n for line in summaries for n in _BAD.findall(line)]))

    def _has_points_alone(self, text: str) -> bool:
        """Return whether the output is TAP without a summary of its counts, as tap's is."""
        return bool(_TAP_PLAN.search(text)) and not _SUMMARY.search(text) and not _TAP_RAN.search(text)

    def _fails_coverage_alone(self, text: str) -> bool:
        """Return whether all tests passed, but too little of the code ran."""
        return bool(_COVERAGE_FAILED.search(text)) and not _UNLOADED.search(text) and not self.says_failed(text)

    def failing_names(self, text: str, report: TestCounts | None) -> tuple[str, ...] | None:
        """Return the failed tests, from their results or from the failure report: as many as were counted.

        TAP points without a summary have file names at the left margin, and each group names its own tests.
        """
        if self._fails_coverage_alone(text):
            return (COVERAGE_GATE,)
        gate = {COVERAGE_GATE} if _COVERAGE_FAILED.search(text) else set[str]()
        bad, count = self._split_names(text)[1], self._count_bad(text)
        if bad and self._has_points_alone(text):
            return tuple(sorted(bad | gate))
        for found in (bad, {each.name for each in read_failures(text)} - {""}):
            if found and len(found) == count:
                return tuple(sorted(found | gate))
        return None

    def find_names(self, text: str) -> list[str]:
        """Return the tests with the groups that TAP puts them in."""
        good, bad = self._split_names(text)
        return [*good, *bad.difference(good)]

    def _split_names(self, text: str) -> tuple[list[str], set[str]]:
        """Return the tests that passed, each as often as it ran, and those that failed."""
        if _VITEST_FILE.search(text):  # apart from files, vitest names only slow and failing tests
            return [], set()
        good = list[str]()
        bad = set[str]()
        groups = list[str]()
        for line in _NAMED.finditer(text):
            depth = len(line["indent"]) // _TAP_INDENT
            if line["heading"] or line["opens"]:
                groups[depth:] = [line["heading"] or line["tap"]]
            name = line["tap"] or line["marked"]
            # The heading above node's repeated list of failures is not a test.
            if name is None or line["not_run"] or name == "failing tests:":
                continue
            if line["tap"] and depth and len(groups) >= depth:
                name = f"{' > '.join(groups[:depth])}::{name}"
            if line[0].lstrip().startswith(("not ok", "✖", "✗", "✕", "×")):
                bad.add(name)  # named twice: at its run, and again at the end
            else:
                good.append(name)
        return good, bad
