"""The tests that a check ran, as its runner reports, and the base's tests that did not run on a tree.

Rules that read a test file know the ways to remove a test from it; here a test that did not run is lost whatever
the cause: a loader, a condition, an early exit, a class that is no longer a test class.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct, field

from chargehand.checks.junit import ReportError, read_junit
from chargehand.checks.runners.base import Runner, TestName
from chargehand.checks.runners.table import runner_of
from chargehand.core.records import Finding
from chargehand.core.text import late_pattern, printable

_SHOWN = 5
_OUTPUTS = late_pattern(r"/(?:target|build)/")
# A documentation example is named after its item and line: the line moves with every line above it.
_LINE = late_pattern(r" \(line \d+\)(?=$| - [a-z ]+$)")
# `parameterized` and `ddt` name a test by its number and its first parameter: `test_add_0_two`.
_NUMBERED = late_pattern(r"(?P<test>.*?_\d+)_\w+")
# Runners' summaries, for commands that start a runner through another program: tests that ran and were skipped.
_SUMMARIES = tuple(
    late_pattern(pattern, re.MULTILINE)
    for pattern in (
        r"^(?:\[\w+\] )?Tests run: (?P<all>\d+), Failures: \d+, Errors: \d+, Skipped: (?P<skipped>\d+)$",
        r"^Ran (?P<all>\d+) tests? in [\d.]+s(?:\n\n(?:OK|FAILED) \([^\n]*?\bskipped=(?P<skipped>\d+)[^\n]*)?$",
        r"^=* ?(?:\d+ failed, )?(?P<all>\d+) passed\b.* in [\d.]+s",
        r"^\d+% tests passed, \d+ tests failed out of (?P<all>\d+)$",
        r"^OK \((?P<all>\d+) tests?, \d+ assertions?\)$",
        r"^(?P<all>\d+) (?:examples?|runs), \d+ (?:failures|assertions)",
        r"^test result: \w+\. (?P<all>\d+) passed;",
        r"^\W{0,3}\s?pass (?P<all>\d+)$",
        r"^\s*Tests:?\s+(?:\d+ (?:failed|skipped|todo)[,|\s]+)*(?P<all>\d+) passed\b",
        r"^\s*(?P<all>\d+) passing\b",
    )
)


class RanTests(Struct, frozen=True, kw_only=True):
    """The tests of one check that ran, passed or not; `None` if its runner does not report them."""

    check: str
    names: tuple[str, ...] | None = None
    count: int | None = None


def names_in_reports(
    reports: Mapping[str, bytes],
) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """Return the tests that ran and those that failed, from a build tool's JUnit reports, given by path.

    Each is `None` if there are no reports or one cannot be read. Before `::` comes the class, and before that the
    module whose `target` or `build` directory has the report.
    """
    found, failed = list[str](), set[str]()
    for path, content in reports.items():
        module = _OUTPUTS.split(f"/{path}", maxsplit=1)[0].lstrip("/")
        try:
            counts = read_junit(content)
        except ReportError:
            return None, None
        prefix = f"{module}/" if module else ""
        found += [prefix + name for name in counts.names]
        failed.update(prefix + name for name in counts.bad_names)
    return tuple(sorted(found)) or None, tuple(sorted(failed)) or None


def count_in_output(text: str) -> int | None:
    """Return the number of tests by the summaries in an output, `None` without a known summary."""
    for summary in _SUMMARIES:
        found = [match.groupdict() for match in summary.finditer(text)]
        if found:
            return sum(int(each["all"]) - int(each.get("skipped") or 0) for each in found)
    return None


class TestMoves(Struct, frozen=True, kw_only=True):
    """Tests that changed files moved, renamed, rewrote or added, by their own names.

    `renamed` maps old names to new ones. `rewritten` are tests under an old name with entirely new text. `added`
    gives by check, for the files that it opened, how many more or fewer tests of a name there are.
    """

    __test__ = False  # pytest would collect a class of this name

    renamed: Mapping[str, str] = field(default_factory=dict)
    rewritten: Collection[str] = ()
    added: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def find_lost_tests(
    before: Iterable[RanTests], after: Iterable[RanTests], moves: TestMoves
) -> tuple[Finding, ...]:
    """Return the tests that ran on the base but not on a tree, check by check; each needs a person.

    A test that moved to another file or class is not lost, nor is a renamed variant of a test with as many
    variants as before. If the base has tests of one name in several places, a new one elsewhere replaces a missing
    one only if the old text still exists. If the base's run reported tests and the tree's run reports no tests,
    all of them are lost; a run on the base that reported no tests proves nothing.
    """
    known = {ran.check: ran for ran in before}
    found = []
    for base, tree in ((known[ran.check], ran) for ran in after if ran.check in known):
        added, lost, message = moves.added.get(tree.check, {}), list[str](), ""
        if base.names is not None and tree.names is not None:
            runner = runner_of(tree.check)
            ran, runs = ([_LINE.sub("", name) for name in names] for names in (base.names, tree.names))
            lost = _find_lost_names(ran, runs, moves, runner)
            if not lost and not runner.tells_files_apart:
                # A new test of the same name may replace a missing one: the name then runs as often as before
                # although one more test of it was written.
                old, new = (Counter(runner.split_name(name).own for name in names) for names in (ran, runs))
                lost = sorted(
                    own for own, more in added.items() if more > 0 and old[own] > 0 and new[own] < old[own] + more
                )
            added = {}  # known by their names
        more_tests = max(0, sum(added.values()))
        was, now = _count(base), _count(tree)
        if lost:
            more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
            names = ", ".join(map(printable, lost[:_SHOWN]))
            message = f"{len(lost)} tests that ran on the base did not run: {names}{more}"
        elif was is not None and now is not None and now < was + more_tests:
            written = f", {more_tests} were added" if more_tests else ""
            message = f"{was} tests ran on the base{written} and {now} on the tree"
        elif was and now is None:
            # A process that exits early with 0 prints no tests and no count: that is not a success.
            message = f"{was} tests ran on the base, and the run on the tree reports none"
        if message:
            message = f"{printable(tree.check)}: {message}"
            found.append(
                Finding(rule="tests_lost", severity="warning", path=".", message=message, needs_person=True)
            )
    return tuple(found)


def _count(ran: RanTests) -> int | None:
    """Return the known number of tests that ran."""
    return ran.count if ran.count is not None or ran.names is None else len(ran.names)


def _find_lost_names(before: Sequence[str], after: Sequence[str], moves: TestMoves, runner: Runner) -> list[str]:
    parts = {name: runner.split_name(name) for name in {*before, *after}}
    ran, runs = Counter(before), Counter(after)
    fresh = tuple((runs - ran).elements())
    gained = Counter(parts[name].own + parts[name].variant for name in fresh)
    variants_before, variants_after = (Counter(parts[name][:2] for name in names) for names in (before, after))
    places = Counter(own for _, own in variants_before)
    lost = []
    for name in (ran - runs).elements():
        place, own, variant = parts[name]
        if variant and variants_after[place, own] >= variants_before[place, own]:
            continue
        # It runs from another place, or under another name.
        names = [moves.renamed[own] + variant] if own in moves.renamed else []
        # If several share the name, only the text shows which of them another one is.
        if places[own] == 1 or own not in moves.rewritten:
            names.append(own + variant)
        names += _find_same_number(parts[name], (parts[each] for each in fresh))
        if found := next((each for each in names if gained[each]), None):
            gained[found] -= 1
            continue
        lost.append(name)
    return lost


def _find_same_number(lost: TestName, fresh: Iterable[TestName]) -> list[str]:
    """Return the new tests that may be a generated test with another parameter: same class, name and number."""
    number = _NUMBERED.fullmatch(lost.own)
    if number is None:
        return []
    of_class = (each for each in fresh if (each.place, each.variant) == (lost.place, lost.variant))
    return [
        each.own + each.variant
        for each in of_class
        if (found := _NUMBERED.fullmatch(each.own)) is not None and found["test"] == number["test"]
    ]
