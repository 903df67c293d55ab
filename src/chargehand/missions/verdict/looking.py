"""Inspects a change before it is judged, and prepares the observer of its checks' reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from chargehand.checks.reads import (
    PROJECT_FILES,
    ReadObserver,
    changed_code,
    changed_settings,
    watched_directories,
)
from chargehand.checks.soft_tests import changed_tests, code_under_test, inner_tests, support_in
from chargehand.core.records import Change
from chargehand.missions.sandboxes.packages import find_installed_copies
from chargehand.missions.services import DepotReader
from chargehand.workspace.depot import Depot


class ChangeLook(NamedTuple):
    """A change's code, settings and tests, and the `subject` of changed tests.

    `inner` has the base's text of changed files that are tests although their paths do not show it.
    """

    code: tuple[str, ...]
    reader: DepotReader
    settings: tuple[str, ...]
    tests: tuple[Change, ...]
    inner: dict[str, str]
    subject: Sequence[str]
    observer: ReadObserver


def look_at_change(
    depot: Depot, layer: Path | None, base_tree: str, tree: str, changes: Sequence[Change]
) -> ChangeLook:
    """Inspect a change from a base to a tree, whose checks run on a shared layer; may block."""

    def is_project(directory: str) -> bool:
        names = (f"{directory}/{name}" for name in PROJECT_FILES)
        return not directory or any(depot.lookup(tree, name) for name in names)

    code, reader = changed_code(changes), DepotReader(depot)
    copies = find_installed_copies(layer, code, reader, tree)
    settings = changed_settings(changes, is_project, reader)
    inner = inner_tests(changes, reader, base_tree)
    tests = changed_tests(changes, inner, reader)
    # Faults are put into code that the tests open: those reads are watched only if tests were changed.
    subject = code_under_test(entry.path for entry in depot.entries(tree)) if tests else ()
    subject = tuple(path for path in subject if path not in support_in(inner))
    places = watched_directories(code, copies, settings, subject, (test.path for test in tests))
    return ChangeLook(code, reader, settings, tests, inner, subject, ReadObserver(places, copies))
