"""cargo test."""

from __future__ import annotations

import re
from collections.abc import Sequence

from chargehand.checks.junit import TestCounts
from chargehand.checks.runners.base import (
    Outcome,
    RunnableCheck,
    Runner,
    append_words,
    judge_counted,
    judge_silent,
)
from chargehand.checks.stacks import Stack
from chargehand.core.text import late_pattern

_HAS_TEST = late_pattern(r"#\[\s*(?:\w+::)*(?:test|rstest)\b")
_RESULT = late_pattern(r"^test result: \w+\. (\d+) passed; (\d+) failed;", re.MULTILINE)
_RUNNING = late_pattern(r"^running (\d+) tests?$", re.MULTILINE)
_NAMED = late_pattern(r"^test (?P<test>.+?) \.\.\. (?:ok|(?P<failed>FAILED))|^running \d+ tests?$", re.MULTILINE)
# cargo's line before it starts a binary: its source, and its file with a hash; or the crate whose examples it
# runs.
_BINARY = late_pattern(
    r"^ +(?:Running (?:unittests )?(?P<source>\S+) \((?:\S*/)?(?P<crate>[^/\s]+?)-[0-9a-f]{16}\)"
    r"|Doc-tests (?P<documented>\S+))$",
    re.MULTILINE,
)


class CargoTest(Runner):
    """cargo test, which counts and names the tests of each binary; a test's place is its binary."""

    name = "cargo"
    ecosystem = "rust"
    starts = ("cargo test",)

    def detect(self, stack: Stack) -> RunnableCheck | None:
        """Return its command if sources contain tests."""
        if stack.has("Cargo.toml") and any(_HAS_TEST.search(text) for text in stack.sources("rust")):
            return RunnableCheck("cargo test", "Cargo.toml, and sources with #[test]")
        return None

    def judge(self, code: int, text: str, report: TestCounts | None) -> Outcome:
        """Judge by the results of all binaries together."""
        results = _RESULT.findall(text)
        if not results and not _RUNNING.search(text):
            return judge_silent(code)
        return judge_counted(code, sum(int(passed) + int(failed) for passed, failed in results))

    def says_failed(self, text: str) -> bool:
        """Return whether the result of any binary counts a failure."""
        return any(int(failed) for _, failed in _RESULT.findall(text))

    def failing_names(self, text: str, report: TestCounts | None) -> tuple[str, ...] | None:
        """Return the failed tests with their binaries, if their number matches the results."""
        found = self._names(text, only_failed=True)
        counted = sum(int(failed) for _, failed in _RESULT.findall(text))
        return tuple(sorted(found)) if found and len(found) == counted else None

    def select(self, command: str, names: Sequence[str]) -> str | None:
        """Name the tests after the two dashes."""
        # With and without its first part: the output does not always show whether that is the binary.
        tests = sorted({part for name in names for part in (name, name.partition("::")[2]) if part})
        return append_words(command, [*([] if " -- " in command else ["--"]), "--exact", *tests])

    def find_names(self, text: str) -> list[str]:
        """Return the tests with their binaries, if the output shows which belong together."""
        return self._names(text, only_failed=False)

    def _names(self, text: str, *, only_failed: bool) -> list[str]:
        blocks = list[list[str]]()
        for line in _NAMED.finditer(text):
            if line["test"] is None or not blocks:
                blocks.append([])
            if line["test"] is not None and (line["failed"] or not only_failed):
                blocks[-1].append(line["test"])
        places = [each["documented"] or f"{each['crate']} {each['source']}" for each in _BINARY.finditer(text)]
        # Binaries and their tests are named on two streams, so only the order shows which belong together.
        if len(places) != len(blocks):
            return [name for block in blocks for name in block]
        return [f"{place}::{name}" for place, block in zip(places, blocks, strict=True) for name in block]
