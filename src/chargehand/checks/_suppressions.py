"""New suppressions: comments and types that make a linter, type checker or coverage skip a line."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterator

from chargehand.checks.surface.analysers import TYPE_CHECKERS
from chargehand.checks.surface.coverage import CoverageScope
from chargehand.core.records import Finding
from chargehand.core.text import late_pattern, printable

_COVERAGE = frozenset({"cov", "coverage", "nyc", "c8", "istanbul", "tarpaulin", "llvm"})
_LINTERS = frozenset({
    "ruff", "flake8", "pylint", "bandit", "eslint", "biome", "oxlint", "golangci", "staticcheck", "clippy",
    "rubocop", "phpstan", "phpcs", "shellcheck", "semgrep", "checkstyle", "tidy",
})  # fmt: skip
_KINDS = (
    (
        "coverage",
        _COVERAGE,
        late_pattern(
            r"#\s*pragma:\s*no\s*(?:cover|branch)\b|\b(?:istanbul|c8|v8)\s+ignore\s+\w+|\bLCOV_EXCL_LINE\b"
        ),
    ),
    (
        "a type checker",
        TYPE_CHECKERS,
        late_pattern(r"#\s*(?:type|pyright|ty|pyrefly)\s*:\s*ignore\b|@ts-(?:ignore|expect-error)\b"),
    ),
    (
        "a linter",
        _LINTERS,
        late_pattern(
            r"#\s*noqa\b|#\s*pylint\s*:\s*disable\b|#\s*nosec\b|#\s*nosemgrep\b|\b(?:eslint|oxlint)-disable(?:-next)?-line\b"
            r"|\bbiome-ignore\b|//\s*nolint\b|#!?\[\s*(?:allow|expect)\s*\(|\brubocop\s*:\s*disable\b|@SuppressWarnings\b"
            r"|@?phpstan-ignore\b|@?phpcs:(?:ignore|disable)\b|\bNOLINT\b|#\s*shellcheck\s+disable\b"
        ),
    ),
)
_ANY = late_pattern(r"\bAny\b|\bany\b")
# Text that may replace one `Any`, or several with the parameters between them.
_TYPE = late_pattern(r"[\w\[\](){}, .|\"':=*>-]+")
_LONGEST, _MOST_LINES = 300, 2_000


def find_suppressions(
    old: str | None, new: str | None, words: Collection[str], scope: CoverageScope | None = None
) -> Iterator[Finding]:
    """Yield new suppressions in a source file; a person decides if the `words` of checks start the tool.

    `scope` knows the lines that the project itself excludes from coverage.
    """
    if new is None or new == old:
        return
    for tool, programs, pattern in _KINDS:
        fresh = Counter(_matches(pattern, new)) - Counter(_matches(pattern, old or ""))
        if fresh:
            yield _describe(tool, fresh.total(), next(iter(fresh)), asks=not programs.isdisjoint(words))
    if scope is not None and (line := scope.find_excluded(old, _KINDS[0][-1].sub("", new))):
        yield _describe("coverage", 1, line, asks=not _COVERAGE.isdisjoint(words))
    if old is not None and (line := _find_widened(old, new)):
        yield _describe("a type checker", 1, line, asks=not TYPE_CHECKERS.isdisjoint(words))


def _matches(pattern: re.Pattern[str], text: str) -> list[str]:
    return [found[0] for found in pattern.finditer(text)]


def _find_widened(old: str, new: str) -> str | None:
    """Return the first line in which only a type changed, to `Any`; `None` without one.

    An agent writes the texts. Lines are compared by the text before the first and after the last `Any`: a pattern
    with a gap for each `Any` would take exponential time.
    """
    before, after = ({line.strip() for line in text.splitlines()} for text in (old, new))
    lost = [line for line in before - after if len(line) < _LONGEST][:_MOST_LINES]
    fresh = (line.strip() for line in new.splitlines())
    changed = (line for line in fresh if line not in before and len(line) < _LONGEST and ":" in line)
    for line in itertools.islice((each for each in changed if _ANY.search(each)), _MOST_LINES):
        parts = _ANY.split(line)
        first, last = parts[0], parts[-1]
        rest = (each[len(first) : len(each) - len(last)] for each in lost if _stands_between(each, first, last))
        # With one `Any` only a type changed; with several the text between them may be a type, too.
        if any(_TYPE.fullmatch(each) for each in rest):
            return line
    return None


def _stands_between(line: str, first: str, last: str) -> bool:
    return len(line) > len(first) + len(last) and line.startswith(first) and line.endswith(last)


def _describe(tool: str, count: int, text: str, *, asks: bool) -> Finding:
    times = f"{count} times" if count > 1 else "once"
    return Finding(
        rule="check_suppressed",
        severity="warning" if asks else "info",
        path="",
        message=f"it silences {tool} {times}: {printable(text)}",
        needs_person=asks,
    )
