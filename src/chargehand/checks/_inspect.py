"""Inspection: what can be said of a change without running anything."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from chargehand.checks._areas import OWN_CONFIG, AreaRules, Areas
from chargehand.checks._paths import Language, is_test_file, is_test_path, language_of
from chargehand.checks._reader import TreeReader
from chargehand.checks._secrets import blob_findings
from chargehand.checks._surface import Surface
from chargehand.checks._weakening import weakenings
from chargehand.core import Change, Finding, shown_path

_DIRECTORY = 0o040000


def inspect(changes: Sequence[Change], reader: TreeReader, base_tree: str, areas: Areas) -> tuple[Finding, ...]:
    """Return what the rules say of all changes from `base_tree`, by path.

    `changes` must be complete: a test counts as moved only when its new place is among them. Raises
    `ConfigError` for an area pattern that is not valid, and what `reader` raises.
    """
    rules, surface = AreaRules(areas), Surface(areas.commands)
    findings: list[Finding] = []
    for change in changes:
        findings += rules.findings(change)
        findings += _surface_finding(change, reader, surface, allowed=areas.check_surface_allowed)
        findings += blob_findings(change, reader, large_bytes=areas.large_bytes)
    findings += weakenings(changes, reader)
    return tuple(sorted(findings, key=lambda f: (f.path, f.line or 0, f.rule, f.message)))


def _surface_finding(change: Change, reader: TreeReader, surface: Surface, *, allowed: bool) -> list[Finding]:
    reason = surface.reason(change, reader)
    if reason is None:
        return []
    message = f"{shown_path(change.path)} decides how checks run: {reason}"
    return [
        Finding(
            rule="check_surface",
            severity="info" if allowed else "warning",
            path=change.path,
            message=message,
            needs_person=not allowed,
        )
    ]


def base_tests_tree_plan(
    changes: Sequence[Change], reader: TreeReader, base_tree: str, *, commands: Sequence[str] = ()
) -> Mapping[str, tuple[int, str] | None]:
    """Return the entries that put the base's tests and check surface back into the candidate tree.

    A path maps to its (mode, id) in the base, or to `None` where it has to go; removals come before
    additions, so that a file and a directory may swap places. What was added for a language that the base
    has no tests in stays: without it no test would run at all. Empty where nothing has to be put back: the
    candidate is then already judged by the base's tests.
    """
    surface = Surface(commands)
    touched = [change.path for change in changes if _judges(change, reader, surface)]
    found = {path: _file_at(reader, base_tree, path) for path in touched}
    plan = _without_first_tests(found, reader, base_tree)
    restored = {path for path, entry in plan.items() if entry is not None}
    needed = {folder for path in restored for folder in _folders(path)}
    for change in changes:
        in_the_way = change.path in needed or not restored.isdisjoint(_folders(change.path))
        if in_the_way and change.new_id is not None:
            plan.setdefault(change.path, None)
    return dict(sorted(plan.items(), key=lambda item: (item[1] is not None, item[0])))


_Plan = dict[str, tuple[int, str] | None]


def _without_first_tests(plan: _Plan, reader: TreeReader, base_tree: str) -> _Plan:
    """Drop removals for languages in which the base has nothing to be judged by."""
    if all(entry is not None for entry in plan.values()):
        return plan
    tested = {language_of(path) for path, _, _ in reader.entries(base_tree) if is_test_file(path)}
    return {path: entry for path, entry in plan.items() if entry is not None or _is_judged(path, tested)}


def _is_judged(path: str, tested: Collection[Language | None]) -> bool:
    language = language_of(path)
    return bool(tested) if language is None else language in tested


def _judges(change: Change, reader: TreeReader, surface: Surface) -> bool:
    own = change.path == OWN_CONFIG
    return own or is_test_path(change.path) or surface.reason(change, reader) is not None


def _file_at(reader: TreeReader, tree: str, path: str) -> tuple[int, str] | None:
    """Return the file at a path; a directory's files are changes of their own."""
    entry = reader.lookup(tree, path)
    return None if entry is None or entry[0] == _DIRECTORY else entry


def _folders(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts))]
