"""Which tests a check ran, as its runner tells, and which of the base's did not run on a tree.

Rules that read a test file know the ways in which a test is taken out of it; what did not run is lost whatever
made it vanish: a loader, a condition, an early exit, a class that is none any more.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from chargehand.checks._outcomes import runner_of
from chargehand.checks.junit import ReportError, read_junit
from chargehand.core.records import Finding
from chargehand.core.text import late_pattern, printable

_SHOWN = 5
_OUTPUTS = late_pattern(r"/(?:target|build)/")
# A test's name: its place, its own name, and which variant of it: parameters (`[1-2]`), subtests (`/case`).
_NAME = late_pattern(r"(?:(?P<place>.*)::)?(?P<own>.*)(?P<variant>)", re.DOTALL)
_NAME_BY_RUNNER = {
    "pytest": late_pattern(r"(?:(?P<place>[^\[]*)::)?(?P<own>[^\[]*)(?P<variant>.*)", re.DOTALL),
    "go": late_pattern(r"(?:(?P<place>[^:]*)::)?(?P<own>[^/]*)(?P<variant>.*)", re.DOTALL),
    "plain": late_pattern(r"(?:(?P<place>[^\[({]*)::)?(?P<own>[^\[({]*)(?P<variant>.*)", re.DOTALL),
}
# Tests come before the line of their package.
_GO = late_pattern(r"^\s*--- (?:PASS|FAIL): (?P<test>\S+)|^(?:ok|FAIL)[ \t]+(?P<package>\S+)", re.MULTILINE)
_CARGO = late_pattern(r"^test (?P<test>.+?) \.\.\. (?:ok|FAILED)|^running \d+ tests?$", re.MULTILINE)
# What cargo says before it starts a binary: its source, and its file with a hash; or whose examples it tries.
_CARGO_BINARY = late_pattern(
    r"^ +(?:Running (?:unittests )?(?P<source>\S+) \((?:\S*/)?(?P<crate>[^/\s]+?)-[0-9a-f]{16}\)"
    r"|Doc-tests (?P<documented>\S+))$",
    re.MULTILINE,
)
_CTEST = late_pattern(r"^ *\d+/\d+ Test +#\d+: (\S+) \.+ *(?:Passed|\*\*\*(?!Not Run|Skipped)\w+)", re.MULTILINE)
# An example in the documentation has no name but its item's: its line moves with every line above it.
_LINE = late_pattern(r" \(line \d+\)(?=$| - [a-z ]+$)")
# With `-v`: name, then module and class (from Python 3.11 on with the name again), then a docstring's first line.
_UNITTEST = late_pattern(
    r"^(?P<name>\w+) \((?P<place>[\w.]+)\)(?:\n[^\n]*?)? \.\.\. "
    r"(?:ok|FAIL|ERROR|expected failure|unexpected success)$",
    re.MULTILINE,
)
# TAP ("ok 1 - adds"), and the marks that node, mocha, jest and vitest set before a name, its duration behind it.
# TAP tells what a test is in by what is above it: a heading, or the line of a group that goes on with "{".
_NODE = late_pattern(
    r"^(?P<indent>[ \t]*)(?:# Subtest: (?P<heading>.+)"
    r"|(?:not )?ok \d+ - (?P<tap>.+?)(?:[ \t]+# time=[\d.]+m?s)?(?P<opens> \{)?"
    r"|[✔✓✖✗✕×] (?P<marked>.+?)(?: \(?\d[\d.]* ?m?s\)?)?)"
    r"(?P<not_run>[ \t]+# (?:SKIP|TODO)\b.*)?$",
    re.MULTILINE,
)
_TAP_INDENT = 4
_VITEST_FILE = late_pattern(r"^[ \t]*[✓❯×] (?:\S+ )?\S+\.\w+ \(\d+ tests?(?: \| [^)\n]*)?\)", re.MULTILINE)
# How runners sum up, for commands that start one by another program: what ran in each, and what was skipped.
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
    """The tests of one check that ran, passed or not; `None` is what its runner does not tell."""

    check: str
    names: tuple[str, ...] | None = None
    count: int | None = None


def names_in_output(runner: str, text: str) -> tuple[str, ...] | None:
    """Return the tests that an output says have run, `None` for a runner that does not name them.

    Before `::` stands the package (go), the binary (cargo) or the class that a test is in, where the output tells.
    What has no name of its own is there as often as it ran.
    """
    match runner:
        case "go":
            found, package = list[str](), list[str]()
            for line in _GO.finditer(text):
                if line["test"]:
                    package.append(line["test"])
                else:
                    found += [f"{line['package']}::{name}" for name in package]
                    package.clear()
            found += package
        case "cargo":
            found = _cargo_names(text)
        case "plain":
            found = _CTEST.findall(text)
        case "node":
            found = _node_names(text)
        case "unittest":
            tests = ((match["name"], match["place"]) for match in _UNITTEST.finditer(text))
            found = [f"{place.removesuffix(f'.{name}')}::{name}" for name, place in tests]
        case _:
            return None
    return tuple(sorted(found)) or None


def _cargo_names(text: str) -> list[str]:
    blocks = list[list[str]]()
    for line in _CARGO.finditer(text):
        if line["test"] is None or not blocks:
            blocks.append([])
        if line["test"] is not None:
            blocks[-1].append(line["test"])
    places = [each["documented"] or f"{each['crate']} {each['source']}" for each in _CARGO_BINARY.finditer(text)]
    # The two come by different streams, so only their order tells which belong together.
    if len(places) != len(blocks):
        return [name for block in blocks for name in block]
    return [f"{place}::{name}" for place, block in zip(places, blocks, strict=True) for name in block]


def names_in_reports(reports: Mapping[str, bytes]) -> tuple[str, ...] | None:
    """Return the tests that ran by a build tool's JUnit reports, given by path; `None` where one is unreadable.

    Before `::` stands the class, and before that the module whose `target` or `build` directory has the report.
    """
    found = list[str]()
    for path, content in reports.items():
        module = _OUTPUTS.split(f"/{path}", maxsplit=1)[0].lstrip("/")
        try:
            names = read_junit(content).names
        except ReportError:
            return None
        found += [f"{module}/{name}" if module else name for name in names]
    return tuple(sorted(found)) or None


def _node_names(text: str) -> list[str]:
    if _VITEST_FILE.search(text):  # beside its files it names the slow and the failing tests alone
        return []
    good, bad, groups = list[str](), set[str](), list[str]()
    for line in _NODE.finditer(text):
        depth = len(line["indent"]) // _TAP_INDENT
        if line["heading"] or line["opens"]:
            groups[depth:] = [line["heading"] or line["tap"]]
        name = line["tap"] or line["marked"]
        # What node sets above those that it tells again is no test.
        if name is None or line["not_run"] or name == "failing tests:":
            continue
        if line["tap"] and depth and len(groups) >= depth:
            name = f"{' > '.join(groups[:depth])}::{name}"
        if line[0].lstrip().startswith(("not ok", "✖", "✗", "✕", "×")):
            bad.add(name)  # told twice: where it ran, and again at the end
        else:
            good.append(name)
    return [*good, *bad.difference(good)]


def count_in_output(text: str) -> int | None:
    """Return how many tests ran by the summaries in an output, `None` where there is none that is known."""
    for summary in _SUMMARIES:
        found = [match.groupdict() for match in summary.finditer(text)]
        if found:
            return sum(int(each["all"]) - int(each.get("skipped") or 0) for each in found)
    return None


class TestMoves(Struct, frozen=True, kw_only=True):
    """What changed files say of tests that are not where they were, by their own names.

    `renamed` has new names by old ones. `rewritten` are tests of whose old text nothing is left, under that name.
    `added` says by check, of the files that it opened, how many tests of a name there are more, or fewer.
    """

    __test__ = False  # pytest would collect a class of this name

    renamed: Mapping[str, str] = field(default_factory=dict)
    rewritten: Collection[str] = ()
    added: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def find_lost_tests(
    before: Iterable[RanTests], after: Iterable[RanTests], moves: TestMoves
) -> tuple[Finding, ...]:
    """Return what ran on the base and not on a tree, check by check; each needs a person.

    A test that moved to another file or class is not lost, nor is one of several variants of a test that has as
    many as before. Where the base has tests of one name in several places, one that is new elsewhere stands for
    one that is gone only if its text is still there. What is not known of one side says nothing.
    """
    known = {ran.check: ran for ran in before}
    found = []
    for base, tree in ((known[ran.check], ran) for ran in after if ran.check in known):
        added, lost, message = moves.added.get(tree.check, {}), list[str](), ""
        if base.names is not None and tree.names is not None:
            runner = runner_of(tree.check)
            pattern = _NAME_BY_RUNNER.get(runner, _NAME)
            ran, runs = ([_LINE.sub("", name) for name in names] for names in (base.names, tree.names))
            lost = _find_lost_names(ran, runs, moves, pattern)
            if runner == "node" and not lost:
                # It does not tell files apart: a new test of one name stands for one that is gone, so that a name
                # runs as often as before although one more test of it was written.
                old, new = (Counter(_split_name(name, pattern).own for name in names) for names in (ran, runs))
                lost = sorted(
                    own for own, more in added.items() if more > 0 and old[own] > 0 and new[own] < old[own] + more
                )
            added = {}  # known by their names
        more_tests = max(0, sum(added.values()))
        if lost:
            more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
            names = ", ".join(map(printable, lost[:_SHOWN]))
            message = f"{len(lost)} tests that ran on the base did not run: {names}{more}"
        elif base.count is not None and tree.count is not None and tree.count < base.count + more_tests:
            written = f", {more_tests} were added" if more_tests else ""
            message = f"{base.count} tests ran on the base{written} and {tree.count} on the tree"
        if message:
            message = f"{printable(tree.check)}: {message}"
            found.append(
                Finding(rule="tests_lost", severity="warning", path=".", message=message, needs_person=True)
            )
    return tuple(found)


def _find_lost_names(
    before: Sequence[str], after: Sequence[str], moves: TestMoves, pattern: re.Pattern[str]
) -> list[str]:
    parts = {name: _split_name(name, pattern) for name in {*before, *after}}
    ran, runs = Counter(before), Counter(after)
    gained = Counter(parts[name].own + parts[name].variant for name in (runs - ran).elements())
    variants_before, variants_after = (Counter(parts[name][:2] for name in names) for names in (before, after))
    places = Counter(own for _, own in variants_before)
    lost = []
    for name in (ran - runs).elements():
        place, own, variant = parts[name]
        if variant and variants_after[place, own] >= variants_before[place, own]:
            continue
        # It runs from another place, or by another name.
        names = [moves.renamed[own] + variant] if own in moves.renamed else []
        # Of several with one name, which of them another one is can only be told by its text.
        if places[own] == 1 or own not in moves.rewritten:
            names.append(own + variant)
        if found := next((each for each in names if gained[each]), None):
            gained[found] -= 1
            continue
        lost.append(name)
    return lost


class _TestName(NamedTuple):
    place: str
    own: str
    variant: str


def _split_name(name: str, pattern: re.Pattern[str]) -> _TestName:
    found = pattern.fullmatch(name)
    assert found is not None  # each part may be empty
    return _TestName(found["place"] or "", found["own"], found["variant"])
