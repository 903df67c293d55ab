"""Inspection: what can be said of a change without running anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from chargehand.checks._dependencies import dependency_findings
from chargehand.checks._facts import Facts, read_facts, sample
from chargehand.checks._surface import Surface
from chargehand.checks.areas import OWN_CONFIG, Areas, area_rules
from chargehand.checks.cache import InspectionCache, key_of, plan_version, sealed, unsealed
from chargehand.checks.paths import Language, holds_tests, is_test_file, is_test_path, language_of
from chargehand.checks.suites.weakening import Pair, weakenings
from chargehand.checks.trees import TreeReader
from chargehand.core.records import Change, Finding
from chargehand.core.text import shown_path

_SHOWN = 5
_DIRECTORY = 0o040000


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What inspection found, and how much of the change it saw.

    `looked` of `total` changes had their content looked at, `cached` of those as it was kept from an earlier look.
    `degraded` says that time ran out before all that should be looked at was; nothing that is not there was found
    is then a proof of its absence. `reason` names what was not looked at, in a sample too.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much one inspection may look at: `seconds`, and a sample of `files` chosen by `seed`; `None` is all."""

    seconds: float | None = None
    files: int | None = None
    seed: str = ""


def inspect(changes: Sequence[Change], reader: TreeReader, base_tree: str, areas: Areas) -> tuple[Finding, ...]:
    """Return what the rules say of all changes from `base_tree`, by path; see `examine`."""
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
    """Return what the rules say of changes from `base_tree`, by path.

    `changes` must be complete: a test counts as moved only when its new place is among them. Areas are always
    held against all paths; `limits` bound what else is looked at, and where time runs out the result is
    `degraded`. Raises `ConfigError` for an area pattern that is not valid, and what `reader` and `cache` raise.
    """
    limits = limits or Limits()
    began = monotonic()
    ends = None if limits.seconds is None else began + limits.seconds
    rules, surface = area_rules(areas), Surface(areas.commands)
    chosen = tuple(changes)
    if limits.files is not None and len(chosen) > limits.files:
        chosen = sample(chosen, surface, files=limits.files, seed=limits.seed)
    book = _Book(reader, surface, areas, cache)
    known = book.read(chosen, in_time=lambda: ends is None or monotonic() < ends)
    found = [finding for change in changes for finding in rules.findings(change)]
    found += _told(changes, known, areas)
    found += _together(changes, known, reader, base_tree)
    return Inspection(
        findings=tuple(sorted(found, key=lambda f: (f.path, f.line or 0, f.rule, f.message))),
        looked=len(known),
        total=len(changes),
        cached=book.hits,
        seconds=monotonic() - began,
        degraded=len(known) < len(chosen),
        reason=_unseen(changes, chosen, known, limits),
    )


class _Book:
    """Facts of changes: from the cache, else read and then kept."""

    def __init__(self, reader: TreeReader, surface: Surface, areas: Areas, cache: InspectionCache | None) -> None:
        self._reader = reader
        self._surface = surface
        self._areas = areas
        self._cache = cache
        self._plan = plan_version(areas) if cache else ""
        self._fresh: dict[str, bytes] = {}
        self.hits = 0

    def read(self, changes: Sequence[Change], *, in_time: Callable[[], bool]) -> dict[str, Facts]:
        """Return the facts by path, as far as time allows."""
        keys = {change.path: key_of(change, plan=self._plan) for change in changes} if self._cache else {}
        kept = self._cache.get(tuple(keys.values())) if self._cache else {}
        known: dict[str, Facts] = {}
        for change in changes:
            if not in_time():
                break
            known[change.path] = self._facts(change, keys.get(change.path, ""), kept)
        if self._cache and self._fresh:
            self._cache.put(self._fresh)
        return known

    def _facts(self, change: Change, key: str, kept: Mapping[str, bytes]) -> Facts:
        facts = unsealed(key, kept[key]) if key in kept else None
        if facts is not None:
            self.hits += 1
            return facts
        facts = read_facts(change, self._reader, self._surface, large_bytes=self._areas.large_bytes)
        entry = sealed(key, facts) if self._cache else None
        if entry is not None:
            self._fresh[key] = entry
        return facts


def _told(changes: Sequence[Change], known: Mapping[str, Facts], areas: Areas) -> Iterator[Finding]:
    """Yield what the facts of each change say by themselves, and what all of them weigh together."""
    for path, facts in known.items():
        yield from (replace(found, path=path) for found in facts.findings)
        if facts.surface is not None:
            yield _surface_finding(path, facts.surface, allowed=areas.check_surface_allowed)
    size = sum(facts.size for facts in known.values())
    if len(changes) > areas.large_change_files or size > areas.large_change_bytes:
        most = f"{areas.large_change_files} files or {areas.large_change_bytes} bytes"
        message = f"{len(changes)} files and {size} bytes of new content, more than {most}: hardly to be reviewed"
        yield Finding(rule="large_change", severity="warning", path="", message=message)


def _together(
    changes: Sequence[Change], known: Mapping[str, Facts], reader: TreeReader, base_tree: str
) -> Iterator[Finding]:
    """Yield what only changes held against each other say; about tests only where all of them are known."""
    seen = {change.path: known[change.path] for change in changes if change.path in known}
    if all(change.path in seen for change in changes if holds_tests(change.path) or is_test_path(change.path)):
        pairs = [
            Pair(change, seen[change.path].old_suite, seen[change.path].new_suite)
            for change in changes
            if holds_tests(change.path)
        ]
        yield from weakenings(changes, pairs)
    parsed = {path: (facts.old_dependencies, facts.new_dependencies) for path, facts in seen.items()}
    stated = {path: both for path, both in parsed.items() if any(each is not None for each in both)}
    yield from dependency_findings(changes, stated, reader, base_tree)


def _unseen(
    changes: Sequence[Change], chosen: Sequence[Change], known: Mapping[str, Facts], limits: Limits
) -> str:
    """Say what was not looked at, and why."""
    left = [change.path for change in chosen if change.path not in known]
    parts = []
    if len(chosen) < len(changes):
        parts.append(f"a sample of {len(chosen)} of {len(changes)} changes, the riskiest first")
    if left:
        names = ", ".join(map(shown_path, left[:_SHOWN])) + (" …" if len(left) > _SHOWN else "")
        parts.append(f"not looked at within {limits.seconds:g} s: {len(left)} of {len(chosen)} ({names})")
    return "; ".join(parts)


def _surface_finding(path: str, reason: str, *, allowed: bool) -> Finding:
    message = f"{shown_path(path)} decides how checks run: {reason}"
    return Finding(
        rule="check_surface",
        severity="info" if allowed else "warning",
        path=path,
        message=message,
        needs_person=not allowed,
    )


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
