"""Which tests a check ran, as its runner tells, and which of the base's did not run on a tree.

Rules that read a test file know the ways in which a test is taken out of it; what did not run is lost whatever
made it vanish: a loader, a condition, an early exit, a class that is none any more.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from chargehand.checks._outcomes import runner_of
from chargehand.core.records import Finding
from chargehand.core.text import printable

_SHOWN = 5
# Where the name of one variant of a test begins: parameters (`[1-2]`), subtests (`/case`).
_VARIANT = {"pytest": "[", "go": "/"}
_GO = re.compile(r"^\s*--- (?:PASS|FAIL): (\S+)", re.MULTILINE)
_CARGO = re.compile(r"^test (.+?) \.\.\. (?:ok|FAILED)", re.MULTILINE)
# An example in the documentation has no name but its item's: its line moves with every line above it.
_LINE = re.compile(r" \(line \d+\)$")
# With `-v`: name, then module and class (from Python 3.11 on with the name again), then a docstring's first line.
_UNITTEST = re.compile(
    r"^(?P<name>\w+) \((?P<place>[\w.]+)\)(?:\n[^\n]*?)? \.\.\. "
    r"(?:ok|FAIL|ERROR|expected failure|unexpected success)$",
    re.MULTILINE,
)
# TAP ("ok 1 - adds"), and the marks that node, mocha, jest and vitest set before a name, its duration behind it.
_NODE = re.compile(
    r"^[ \t]*(?:(?:not )?ok \d+ - (?P<tap>.+?)(?:[ \t]+# time=[\d.]+m?s)?(?: \{)?"
    r"|[✔✓✖✗✕×] (?P<marked>.+?)(?: \(?\d[\d.]* ?m?s\)?)?)"
    r"(?P<not_run>[ \t]+# (?:SKIP|TODO)\b.*)?$",
    re.MULTILINE,
)
_VITEST_FILE = re.compile(r"^[ \t]*[✓❯×] (?:\S+ )?\S+\.\w+ \(\d+ tests?(?: \| [^)\n]*)?\)", re.MULTILINE)
# How runners sum up, for commands that start one by another program: what ran in each, and what was skipped.
_SUMMARIES = tuple(
    re.compile(pattern, re.MULTILINE)
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

    A name that several packages, binaries or files have is there as often as it ran.
    """
    match runner:
        case "go":
            found = _GO.findall(text)
        case "cargo":
            found = _CARGO.findall(text)
        case "node":
            found = _node_names(text)
        case "unittest":
            found = [_unittest_name(match["name"], match["place"]) for match in _UNITTEST.finditer(text)]
        case _:
            return None
    return tuple(sorted(found)) or None


def _node_names(text: str) -> list[str]:
    if _VITEST_FILE.search(text):  # beside its files it names the slow and the failing tests alone
        return []
    lines = [match for match in _NODE.finditer(text) if not match["not_run"]]
    good, bad = list[str](), set[str]()
    for line in lines:
        name = line["tap"] or line["marked"]
        if name == "failing tests:":  # what node sets above those that it tells again
            continue
        if line[0].lstrip().startswith(("not ok", "✖", "✗", "✕", "×")):
            bad.add(name)  # told twice: where it ran, and again at the end
        else:
            good.append(name)
    return [*good, *bad.difference(good)]


def _unittest_name(name: str, place: str) -> str:
    return f"{place.removesuffix(f'.{name}')}::{name}"


def count_in_output(text: str) -> int | None:
    """Return how many tests ran by the summaries in an output, `None` where there is none that is known."""
    for summary in _SUMMARIES:
        found = [match.groupdict() for match in summary.finditer(text)]
        if found:
            return sum(int(each["all"]) - int(each.get("skipped") or 0) for each in found)
    return None


def find_lost_tests(
    before: Iterable[RanTests], after: Iterable[RanTests], renamed: Mapping[str, str]
) -> tuple[Finding, ...]:
    """Return what ran on the base and not on a tree, check by check; each needs a person.

    `renamed` has new names of tests by old ones, without module, class and variant. A test that moved to another
    file or class is not lost, nor is one of several variants of a test that has as many as before. What is not
    known of one side says nothing.
    """
    known = {ran.check: ran for ran in before}
    pairs = ((known[ran.check], ran) for ran in after if ran.check in known)
    messages = ((ran.check, _describe_loss(base, ran, renamed)) for base, ran in pairs)
    return tuple(
        Finding(
            rule="tests_lost",
            severity="warning",
            path=".",
            message=f"{printable(check)}: {message}",
            needs_person=True,
        )
        for check, message in messages
        if message
    )


def _describe_loss(base: RanTests, tree: RanTests, renamed: Mapping[str, str]) -> str:
    if base.names is not None and tree.names is not None:
        variant = _VARIANT.get(runner_of(tree.check))
        before, after = ([_LINE.sub("", name) for name in names] for names in (base.names, tree.names))
        lost = _find_lost_names(before, after, renamed, variant=variant)
        if lost:
            more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
            names = ", ".join(map(printable, lost[:_SHOWN]))
            return f"{len(lost)} tests that ran on the base did not run: {names}{more}"
    if base.count is not None and tree.count is not None and tree.count < base.count:
        return f"{base.count} tests ran on the base and {tree.count} on the tree"
    return ""


def _find_lost_names(
    before: Sequence[str], after: Sequence[str], renamed: Mapping[str, str], *, variant: str | None
) -> list[str]:
    def whole_test(name: str) -> str:
        return name.partition(variant)[0] if variant else name

    ran, runs = Counter(before), Counter(after)
    gained = Counter(_bare_name(name) for name in (runs - ran).elements())
    variants_before, variants_after = Counter(map(whole_test, before)), Counter(map(whole_test, after))
    lost = []
    for name in (ran - runs).elements():
        whole, bare = whole_test(name), _bare_name(name)
        if whole != name and variants_after[whole] >= variants_before[whole]:
            continue
        own = whole_test(bare)
        # It runs from another place, or by another name.
        if found := next(
            (each for each in (bare, renamed.get(own, own) + bare[len(own) :]) if gained[each]), None
        ):
            gained[found] -= 1
            continue
        lost.append(name)
    return lost


def _bare_name(name: str) -> str:
    """Return a test's name without module and class."""
    return name.rpartition("::")[2]
