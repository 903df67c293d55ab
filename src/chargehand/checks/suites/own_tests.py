"""Find the tests in changed files, under the names that their runner gives them."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from chargehand.checks.failures import own_name
from chargehand.checks.paths import is_source
from chargehand.checks.ran_tests import RanTests
from chargehand.checks.suites.weakening import suites_of
from chargehand.checks.trees import TreeReader
from chargehand.core.records import Change

_MOST_OWN_TESTS = 200
"""Tests that one command can name."""
_MOST_NEIGHBOURS = 20


def find_own_tests(
    tests: Iterable[Change],
    reader: TreeReader,
    ran: Iterable[RanTests],
    before: Iterable[RanTests],
    *,
    isolated: bool = False,
) -> dict[str, tuple[str, ...]]:
    """Return by check the names of the tests in changed files, of those that ran on the tree or `before`.

    If the change is `isolated` to the tests whose text differs, return only these of a file. A check is left out
    if the tests of any file are unknown, or if they are most of its tests.
    """
    files = [(change.path, _names_in(change, reader, only_changed=isolated)) for change in tests]
    earlier = {each.check: each.names or () for each in before}
    found = dict[str, tuple[str, ...]]()
    for check, names in ((each.check, each.names) for each in ran if each.names is not None):
        by_name = dict[str, set[str]]()
        for name in {*names, *earlier.get(check, ())}:
            by_name.setdefault(own_name(check, name), set()).add(name)
        own = [
            _of_file(path, {name for each in inside for name in by_name.get(each, ())}) for path, inside in files
        ]
        if all(own) and len(set[str]().union(*own)) <= min(_MOST_OWN_TESTS, len(names) // 2):
            found[check] = tuple(sorted(set[str]().union(*own)))
    return found


def find_neighbours(
    path: str, own: Mapping[str, Sequence[str]], ran: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """Return by check the `own` tests and, after them, some others whose names contain that of a code file.

    A check is missing if it has no such test, or if these are most of its tests. `ran` are all tests by check.
    """
    stem = posixpath.splitext(posixpath.basename(path))[0].removeprefix("_")
    # An underscore separates words here: `test_price.py` has the tests of `price.py`.
    named = re.compile(rf"(?<![A-Za-z0-9]){re.escape(stem)}(?![A-Za-z0-9])", re.IGNORECASE)
    found = dict[str, tuple[str, ...]]()
    for check, names in own.items():
        others = [name for name in ran.get(check, ()) if name not in names and named.search(name)]
        others = others[:_MOST_NEIGHBOURS]
        if others and len(others) + len(names) <= len(ran[check]) // 2:
            found[check] = (*names, *others)
    return found


def _names_in(change: Change, reader: TreeReader, *, only_changed: bool) -> set[str]:
    old, new = (
        Counter((case.scope, case.name, case.body) for case in (suite.cases if suite is not None else ()))
        for suite in suites_of(change, reader, any_name=is_source(change.path))
    )
    # Without a body it is unknown whether the text of a test differs.
    changed = {name for _, name, _ in (old - new) + (new - old)} | {name for _, name, body in new if not body}
    return changed if only_changed and changed else {name for _, name, _ in old + new}


def _of_file(path: str, names: set[str]) -> set[str]:
    """Return the tests whose names contain the file's name; all tests if the runner names no files."""
    stem = re.compile(rf"(?<!\w){re.escape(posixpath.splitext(posixpath.basename(path))[0])}(?!\w)")
    return {name for name in names if stem.search(name)} or names
