"""Which tests a check ran, as its runner tells, and which of the base's did not run on a tree.

Rules that read a test file know the ways in which a test is taken out of it; what did not run is lost whatever
made it vanish: a loader, a condition, an early exit, a class that is none any more.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chargehand.checks._outcomes import runner_of
from chargehand.core.records import Finding
from chargehand.core.text import printable

_SHOWN = 5
# Where the name of one variant of a test begins: parameters (`[1-2]`), subtests (`/case`).
_VARIANT = {"pytest": "[", "go": "/"}
_GO = re.compile(r"^\s*--- (?:PASS|FAIL): (\S+)", re.MULTILINE)
_CARGO = re.compile(r"^test (.+?) \.\.\. (?:ok|FAILED)", re.MULTILINE)
# TAP ("ok 1 - adds"), and the marks that node, mocha, jest and vitest set before a name, its duration behind it.
_NODE = re.compile(
    r"^[ \t]*(?:(?:not )?ok \d+ - (?P<tap>.+?)|[✔✓✖✗✕×] (?P<marked>.+?)(?: \(?\d[\d.]* ?m?s\)?)?)"
    r"(?P<not_run>[ \t]+# (?:SKIP|TODO)\b.*)?$",
    re.MULTILINE,
)
# How runners sum up, for commands that start one by another program: what ran in each, and what was skipped.
_SUMMARIES = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^(?:\[\w+\] )?Tests run: (?P<all>\d+), Failures: \d+, Errors: \d+, Skipped: (?P<skipped>\d+)$",
        r"^Ran (?P<all>\d+) tests? in [\d.]+s$",
        r"^=* ?(?:\d+ failed, )?(?P<all>\d+) passed\b.* in [\d.]+s",
        r"^\d+% tests passed, \d+ tests failed out of (?P<all>\d+)$",
        r"^OK \((?P<all>\d+) tests?, \d+ assertions?\)$",
        r"^(?P<all>\d+) (?:examples?|runs), \d+ (?:failures|assertions)",
        r"^test result: \w+\. (?P<all>\d+) passed;",
        r"^\W{0,3}\s?pass (?P<all>\d+)$",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RanTests:
    """The tests of one check that ran, passed or not; `None` is what its runner does not tell."""

    check: str
    names: tuple[str, ...] | None = None
    count: int | None = None


def names_in_output(runner: str, text: str) -> tuple[str, ...] | None:
    """Return the tests that an output says have run, `None` for a runner that does not name them."""
    match runner:
        case "go":
            found = _GO.findall(text)
        case "cargo":
            found = _CARGO.findall(text)
        case "node":
            lines = (match for match in _NODE.finditer(text) if not match["not_run"])
            found = [match["tap"] or match["marked"] for match in lines]
        case _:
            return None
    return tuple(sorted(set(found))) or None


def count_in_output(text: str) -> int | None:
    """Return how many tests ran by the summaries in an output, `None` where there is none that is known."""
    for summary in _SUMMARIES:
        found = [match.groupdict() for match in summary.finditer(text)]
        if found:
            return sum(int(each["all"]) - int(each.get("skipped") or 0) for each in found)
    return None


def find_lost_tests(before: Iterable[RanTests], after: Iterable[RanTests]) -> tuple[Finding, ...]:
    """Return what ran on the base and not on a tree, check by check; each needs a person.

    A test that moved to another file or class is not lost, nor is one of several variants of a test that has as
    many as before. What is not known of one side says nothing.
    """
    known = {ran.check: ran for ran in before}
    pairs = ((known[ran.check], ran) for ran in after if ran.check in known)
    messages = ((ran.check, _describe_loss(base, ran)) for base, ran in pairs)
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


def _describe_loss(base: RanTests, tree: RanTests) -> str:
    if base.names is not None and tree.names is not None:
        lost = _find_lost_names(base.names, tree.names, variant=_VARIANT.get(runner_of(tree.check)))
        if lost:
            more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
            names = ", ".join(map(printable, lost[:_SHOWN]))
            return f"{len(lost)} tests that ran on the base did not run: {names}{more}"
    if base.count is not None and tree.count is not None and tree.count < base.count:
        return f"{base.count} tests ran on the base and {tree.count} on the tree"
    return ""


def _find_lost_names(before: Sequence[str], after: Sequence[str], *, variant: str | None) -> list[str]:
    def whole_test(name: str) -> str:
        return name.partition(variant)[0] if variant else name

    kept, gained = set(after), Counter(_bare_name(name) for name in set(after) - set(before))
    variants_before, variants_after = Counter(map(whole_test, before)), Counter(map(whole_test, after))
    lost = []
    for name in before:
        whole, bare = whole_test(name), _bare_name(name)
        if name in kept or (whole != name and variants_after[whole] >= variants_before[whole]):
            continue
        if gained[bare] > 0:  # it runs from another place
            gained[bare] -= 1
            continue
        lost.append(name)
    return lost


def _bare_name(name: str) -> str:
    """Return a test's name without module and class."""
    return name.rpartition("::")[2]
