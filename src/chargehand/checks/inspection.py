"""Inspection: findings on a change without running anything."""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from chargehand.checks._dependencies import dependency_findings
from chargehand.checks._dependencies import is_dependency_file as is_dependency_file  # part of this public API
from chargehand.checks._facts import Facts, read_facts, sample
from chargehand.checks.areas import OWN_CONFIG, Areas, area_rules
from chargehand.checks.cache import InspectionCache, key_of, plan_version, sealed, unsealed
from chargehand.checks.paths import holds_tests, is_test_file, is_test_path, language_of
from chargehand.checks.suites.weakening import Pair, weakenings
from chargehand.checks.surface.coverage import find_unmeasured
from chargehand.checks.surface.rules import Surface
from chargehand.checks.trees import TreeReader
from chargehand.core.records import Change, Finding
from chargehand.core.text import printable, shown_path

_SHOWN = 5
_DIRECTORY = 0o040000


class Inspection(Struct, frozen=True, kw_only=True):
    """The result of inspection, and how much of the change it saw.

    The content of `looked` of `total` changes was inspected, `cached` of those from the cache. `degraded` means
    that time ran out first: there may be further findings. `reason` names the uninspected part, in a sample too.
    """

    findings: tuple[Finding, ...]
    looked: int
    total: int
    cached: int
    seconds: float
    degraded: bool = False
    reason: str = ""

    @property
    def critical(self) -> tuple[Finding, ...]:
        """The findings that discard a change at once."""
        return tuple(found for found in self.findings if found.severity == "critical")


class Limits(Struct, frozen=True, kw_only=True):
    """The bounds of one inspection: `seconds`, and a sample of `files` chosen by `seed`; `None` is no bound."""

    seconds: float | None = None
    files: int | None = None
    seed: str = ""


def inspect(changes: Sequence[Change], reader: TreeReader, base_tree: str, areas: Areas) -> tuple[Finding, ...]:
    """Return the rules' findings on all changes from `base_tree`, by path; see `examine`."""
    return examine(changes, reader, base_tree, areas).findings


def examine(
    changes: Sequence[Change],
    reader: TreeReader,
    base_tree: str,
    areas: Areas,
    *,
    cache: InspectionCache | None = None,
    limits: Limits | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Inspection:
    """Inspect changes from `base_tree`; findings are ordered by path.

    `changes` must be complete: a test counts as moved only if its new place is among them. Areas are always
    checked on all paths; `limits` bound all other rules, and if time runs out the result is `degraded`. Raises
    `ConfigError` for an invalid area pattern, and the errors of `reader` and `cache`.
    """
    limits = limits or Limits()
    began = monotonic()
    ends = None if limits.seconds is None else began + limits.seconds
    rules, surface = area_rules(areas), Surface(areas, reader, base_tree)
    chosen = tuple(changes)
    if limits.files is not None and len(chosen) > limits.files:
        chosen = sample(chosen, surface, files=limits.files, seed=limits.seed)
    known, hits = _read_known(
        chosen, reader, base_tree, surface, areas, cache, in_time=lambda: ends is None or monotonic() < ends
    )
    found = [finding for change in changes for finding in rules.findings(change)]
    found += _findings_of_each(changes, known, areas)
    found += _findings_of_all(changes, known, reader, base_tree)
    found += find_unmeasured((change for change in changes if change.path in known), reader, surface.coverage)
    unread = []
    if len(chosen) < len(changes):
        unread.append(f"a sample of {len(chosen)} of {len(changes)} changes, the riskiest first")
    if left := [shown_path(change.path) for change in chosen if change.path not in known]:
        names = ", ".join(left[:_SHOWN]) + (" …" if len(left) > _SHOWN else "")
        unread.append(f"not looked at within {limits.seconds:g} s: {len(left)} of {len(chosen)} ({names})")
    return Inspection(
        findings=tuple(sorted(found, key=lambda f: (f.path, f.line or 0, f.rule, f.message))),
        looked=len(known),
        total=len(changes),
        cached=hits,
        seconds=monotonic() - began,
        degraded=len(known) < len(chosen),
        reason="; ".join(unread),
    )


def _read_known(
    changes: Sequence[Change],
    reader: TreeReader,
    base_tree: str,
    surface: Surface,
    areas: Areas,
    cache: InspectionCache | None,
    *,
    in_time: Callable[[], bool],
) -> tuple[dict[str, Facts], int]:
    """Return the facts of changes by path, as far as time allows, and the number found in the cache."""
    plan = plan_version(areas, reader, base_tree) if cache else ""
    keys = {change.path: key_of(change, plan=plan) for change in changes} if cache else {}
    kept = cache.get(tuple(keys.values())) if cache else {}
    known: dict[str, Facts] = {}
    fresh: dict[str, bytes] = {}
    hits = 0
    for change in changes:
        if not in_time():
            break
        key = keys.get(change.path, "")
        facts = unsealed(key, kept[key]) if key in kept else None
        hits += facts is not None
        if facts is None:
            facts = read_facts(change, reader, surface, large_bytes=areas.large_bytes)
            entry = sealed(key, facts) if cache else None
            if entry is not None:
                fresh[key] = entry
        known[change.path] = facts
    # In one write at the end: the next inspection continues from here, even if time ran out.
    if cache and fresh:
        cache.put(fresh)
    return known, hits


def _findings_of_each(changes: Sequence[Change], known: Mapping[str, Facts], areas: Areas) -> Iterator[Finding]:
    """Yield the findings on each single change, and on the size of all of them together."""
    allowed = areas.check_surface_allowed
    for path, facts in known.items():
        yield from (replace(found, path=path) for found in facts.findings)
        silenced = f"it disables a checker ({printable(facts.silenced)})" if facts.silenced else None
        if (why := facts.surface or silenced) is not None:
            yield Finding(
                rule="check_surface",
                severity="info" if allowed else "warning",
                path=path,
                message=f"{shown_path(path)} decides how checks run: {why}",
                needs_person=not allowed,
            )
        # A change of the check surface already needs a person, unless it was allowed.
        if facts.later is not None and (facts.surface is None or allowed):
            yield Finding(
                rule="runs_later",
                severity="warning",
                path=path,
                message=f"{shown_path(path)} runs later, outside the sandbox: {facts.later}",
                needs_person=True,
            )
    size = sum(facts.size for facts in known.values())
    if len(changes) > areas.large_change_files or size > areas.large_change_bytes:
        most = f"{areas.large_change_files} files or {areas.large_change_bytes} bytes"
        message = f"{len(changes)} files and {size} bytes of new content are hard to review (more than {most})"
        yield Finding(rule="large_change", severity="warning", path="", message=message)


def _findings_of_all(
    changes: Sequence[Change], known: Mapping[str, Facts], reader: TreeReader, base_tree: str
) -> Iterator[Finding]:
    """Yield the findings that need a comparison of several changes."""
    # If a changed test was not read, a missing test may have moved there.
    if all(change.path in known for change in changes if holds_tests(change.path) or is_test_path(change.path)):
        pairs = [
            Pair(change, known[change.path].old_suite, known[change.path].new_suite)
            for change in changes
            if holds_tests(change.path)
        ]
        yield from weakenings(changes, pairs)
    yield from _find_hidden_code(changes, reader, base_tree)
    parsed = {path: (facts.old_dependencies, facts.new_dependencies) for path, facts in known.items()}
    stated = {path: both for path, both in parsed.items() if any(each is not None for each in both)}
    yield from dependency_findings(changes, stated, reader, base_tree)


# By the suffix of a new file: suffixes of files that it hides, since loaders look for the new one first.
_LOADED_FIRST = {
    "/__init__.py": (".py",),
    ".js": ("/index.js", "/index.ts", "/index.mjs", ".ts", ".json"),
    ".ts": ("/index.js", "/index.ts"),
}


def _find_hidden_code(changes: Sequence[Change], reader: TreeReader, base_tree: str) -> Iterator[Finding]:
    """Yield new files that are loaded in place of existing code: a package `calc/` next to `calc.py`."""
    gone = {change.path for change in changes if change.new_id is None}
    for change in changes:
        end = next((end for end in _LOADED_FIRST if change.path.endswith(end)), None)
        if change.old_id is not None or end is None or is_test_path(change.path):
            continue
        stem = change.path.removesuffix(end)
        for hidden in (f"{stem}{other}" for other in _LOADED_FIRST[end]):
            if hidden not in gone and reader.lookup(base_tree, hidden) is not None:
                yield Finding(
                    rule="check_surface",
                    severity="warning",
                    path=change.path,
                    message=f"{shown_path(change.path)} decides how checks run: it hides {shown_path(hidden)}",
                    needs_person=True,
                )
                break


def base_tests_tree_plan(
    changes: Sequence[Change],
    reader: TreeReader,
    base_tree: str,
    areas: Areas | None = None,
    *,
    support: Collection[str] = (),
) -> Mapping[str, tuple[int, str] | None]:
    """Return the entries that restore the base's tests and check surface in the candidate tree.

    A path maps to its (mode, id) in the base, or to `None` if it must be removed; removals come before additions,
    so that a file and a directory may swap places. Additions for a language without tests in the base stay:
    without them no test would run at all. Empty if nothing has to be restored: the candidate is then already
    judged by the base's tests. `support` are further files that only tests use (`find_support`). `.gitattributes`
    determines the bytes of a golden, so the base's version counts.
    """
    surface = Surface(areas or Areas(), reader, base_tree)
    plan: dict[str, tuple[int, str] | None] = {}
    for change in changes:
        own_config = posixpath.basename(change.path) == OWN_CONFIG
        # A check may start the code that the request changes: the base's version would be judged in its place.
        judged_code = surface.is_judged_code(change.path) and not is_test_path(change.path)
        tests = is_test_path(change.path) and not _is_go_package(change)
        tests |= change.path in support or posixpath.basename(change.path) == ".gitattributes"
        if own_config or tests or (not judged_code and surface.reason(change, reader) is not None):
            entry = reader.lookup(base_tree, change.path)
            # If the base has a directory there, the files in it are separate changes.
            plan[change.path] = None if entry is None or entry[0] == _DIRECTORY else entry
    if None in plan.values():
        # A project's own runners may collect tests by unusual names.
        tested = {
            language_of(path)
            for path, _, _ in reader.entries(base_tree)
            if is_test_file(path)
            or (is_test_path(path) and posixpath.basename(path) not in ("__init__.py", "conftest.py"))
        } - {None}
        # A file of no language, such as a snapshot, belongs to any tests.
        judged = {path: bool(tested) if (it := language_of(path)) is None else it in tested for path in plan}
        plan = {path: entry for path, entry in plan.items() if entry is not None or judged[path]}
    restored = {path for path, entry in plan.items() if entry is not None}
    needed = {folder for path in restored for folder in _folders(path)}
    for change in changes:
        in_the_way = change.path in needed or not restored.isdisjoint(_folders(change.path))
        if in_the_way and change.new_id is not None:
            plan.setdefault(change.path, None)
    return dict(sorted(plan.items(), key=lambda item: (item[1] is not None, item[0])))


def _is_go_package(change: Change) -> bool:
    """Return whether a change adds Go code that is not a test: other code may import it from any directory."""
    return change.old_id is None and language_of(change.path) == "go" and not is_test_file(change.path)


def _folders(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts))]
