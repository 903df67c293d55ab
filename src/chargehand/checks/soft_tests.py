"""Measure weakened tests: find faults that the base's version of changed tests notices and the tree's does not.

Rules that read a test see only its text. Whether it still detects errors shows only if the code is wrong: small
faults are put into the code, one at a time, and both versions of the tests run on each.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from chargehand.checks.paths import holds_tests, is_source, is_test_path, language_of
from chargehand.checks.ran_tests import RanTests, TestMoves
from chargehand.checks.reads import ReadObserver
from chargehand.checks.suites.additions import leaves_tests_alone, outlasts_its_tests
from chargehand.checks.suites.equivalence import align_evenly, equivalent_forms
from chargehand.checks.suites.examples import changed_examples
from chargehand.checks.suites.faults import Mutant, choose_faults, does_something, find_faults, subjects_of
from chargehand.checks.suites.inner import InnerTests
from chargehand.checks.suites.inner import support_in as support_in  # a part of this face
from chargehand.checks.suites.literals import stays_inside
from chargehand.checks.suites.measurement import (
    FAULTS_FOR_ADDITIONS,
    MOST_FAULTS,
    describe_unmeasured,
)
from chargehand.checks.suites.measurement import ChangedTests as ChangedTests  # a part of this face
from chargehand.checks.suites.measurement import fault_seconds as fault_seconds  # a part of this face
from chargehand.checks.suites.measurement import measure_tests as measure_tests  # a part of this face
from chargehand.checks.suites.own_tests import find_own_tests
from chargehand.checks.suites.rust_modules import find_test_modules, lay_tests_over, read_test_modules
from chargehand.checks.suites.support import find_support
from chargehand.checks.suites.weakening import Pair, count_added, find_renamed, find_rewritten, suites_of
from chargehand.checks.trees import TreeReader, new_text, old_text, text_of
from chargehand.core.records import Change, Finding
from chargehand.core.text import shown_path

_SPARE_FAULTS = 20  # extra faults, as those with which the code cannot be built show nothing about the tests
_FAULTS_UNREAD = 2
_LINES_AROUND = 6  # lines before and after a lost line of a test, which name the code under test
_SHOWN = 3
_EXECUTABLE = 0o100755
_MOST_FILES = 60
# Tools run them, not tests.
_NOT_TESTED = frozenset({"setup.py", "noxfile.py", "conftest.py", "build.rs"})


def changed_tests(changes: Iterable[Change], inner: Collection[str], reader: TreeReader) -> tuple[Change, ...]:
    """Return the changes of test files after which tests may notice less.

    An added source file counts: it runs in the process of the existing tests, and may change the objects that they
    use in ways that no rule lists. Files that tests read belong to them; `inner` has changed files with tests
    whose paths do not mark them as tests (`inner_tests`).
    """
    return tuple(
        change
        for change in changes
        if (is_test_path(change.path) or change.path in inner)
        and (
            is_source(change.path)
            if change.old_id is None
            else (change.new_mode, change.new_id) != (change.old_mode, change.old_id)
        )
    )


def _reaches_others(change: Change, reader: TreeReader) -> bool:
    text = new_text(reader, change)
    return text is not None and outlasts_its_tests(change.path, text)


def leave_out_unread(tests: Sequence[Change], observer: ReadObserver) -> tuple[Change, ...]:
    """Return the changed tests without data that no check opened: it cannot have weakened any test."""
    data = [test.path for test in tests if test.new_id is not None and not is_source(test.path)]
    unread = set(data).difference(observer.read_of(data))
    return tuple(test for test in tests if test.path not in unread)


def inner_tests(changes: Sequence[Change], reader: TreeReader, base_tree: str) -> InnerTests:
    """Return the base's text, by path, of changed files with tests whose paths do not mark them as tests.

    These are code with changed tests inside it, and goldens and helpers that only tests use (`support_in`).
    """
    support = find_support(changes, reader, base_tree)
    found = {change.path: old_text(reader, change) or "" for change in changes if change.path in support}
    for change in changes:
        if language_of(change.path) != "rust" or is_test_path(change.path) or change.path in support:
            continue
        old, new = old_text(reader, change), new_text(reader, change)
        if old is not None and new is not None and lay_tests_over(old, new) != new:
            found[change.path] = old
    return InnerTests(found, support)


def find_moves(
    changes: Iterable[Change], reader: TreeReader, checks: Iterable[str], observer: ReadObserver
) -> TestMoves:
    """Return the renamed, rewritten and added tests of the changes.

    Only tests in files that `checks` opened count as added; the `observer` has the files that each check read, in
    the order of `checks`.
    """
    known = tuple(changes)
    pairs = [Pair(change, *suites_of(change, reader)) for change in known if holds_tests(change.path)]
    # Runners configured with their files (mocha) collect tests from any file in a test directory.
    others = [
        Pair(change, *suites_of(change, reader, any_name=True))
        for change in known
        if is_test_path(change.path) and is_source(change.path) and not holds_tests(change.path)
    ]
    opened = zip(checks, observer.opened, strict=False) if observer.complete else ()
    return TestMoves(
        renamed={old: new for (_, old), (_, new) in find_renamed([*pairs, *others]).items()},
        rewritten=frozenset(name for _, name in find_rewritten(pairs)),
        added={check: count_added([pair for pair in pairs if pair.path in paths]) for check, paths in opened},
    )


def restore_inner_tests(inner: Mapping[str, str], reader: TreeReader, tree: str) -> dict[str, bytes]:
    """Return the files of a tree that are in `inner`, by path, with the base's tests put inside."""
    entries = {path: reader.lookup(tree, path) for path in inner}
    texts = {path: text_of(reader, *entry) for path, entry in entries.items() if entry}
    return {path: lay_tests_over(inner[path], text).encode() for path, text in texts.items() if text is not None}


def may_say_less(changes: Iterable[Change], inner: Collection[str], reader: TreeReader) -> bool:
    """Return whether existing tests may notice less than before, judged by their text.

    They may if effective lines are gone, or if added lines end a test early, skip it or redefine a name that it
    uses. Added tests, data and assertions are harmless. Python is also compared without differences of form
    (`equivalent_forms`), and Go, Rust and Java without alignment.
    """
    known = tuple(changes)
    return all(_may_say_less(known, inner, reader, simplified=simplified) for simplified in (False, True))


def _may_say_less(
    changes: Sequence[Change], inner: Collection[str], reader: TreeReader, *, simplified: bool
) -> bool:
    support = support_in(inner)
    lines = Counter[tuple[str, str]]()
    grown = list[tuple[str, str, str]]()
    for change in changes:
        if not is_test_path(change.path) and change.path not in inner:
            continue
        old, new = (text(reader, change) for text in (old_text, new_text))
        old, new = (
            (old or "", new or "")
            if change.path in support
            else (_text_of_tests(change.path, old), _text_of_tests(change.path, new))
        )
        if simplified and language_of(change.path) == "python":
            old, new = equivalent_forms(old, new)
        elif simplified:
            old, new = (align_evenly(language_of(change.path), text) for text in (old, new))
        # Tests may move between files of the same place. In unknown languages that is the directory, as the name
        # of a file does not show whether a runner collects it.
        suffix = posixpath.splitext(change.path)[1]
        named = language_of(change.path) is not None
        place = suffix if named else f"{posixpath.dirname(change.path)}/{suffix}"
        lines.update((place, line.strip()) for line in old.splitlines())
        lines.subtract((place, line.strip()) for line in new.splitlines())
        if change.old_id is not None and change.new_id is not None:
            grown.append((change.path, old, new))
            # Programs that start tests skip a script that is no longer executable.
            if change.old_mode != change.new_mode and change.new_mode != _EXECUTABLE:
                return True
        if change.old_id is None and _reaches_others(change, reader):
            return True
    if any(count > 0 and does_something(line) for (_, line), count in lines.items()):
        return True
    return not all(leaves_tests_alone(path, old, new) for path, old, new in grown)


def describe_tests(
    tests: Sequence[Change],
    inner: Mapping[str, str],
    reader: TreeReader,
    ran: Sequence[RanTests],
    before: Sequence[RanTests],
) -> ChangedTests:
    """Describe the changed `tests`; `ran` has the names of the tree's tests by check, `before` the base's."""
    isolated = all(change.path not in inner and _stays_inside(change, reader) for change in tests)
    return ChangedTests(
        own=find_own_tests(tests, reader, ran, before, isolated=isolated),
        ran={each.check: each.names for each in ran if each.names is not None},
        inner=inner,
        isolated=isolated,
    )


def _stays_inside(change: Change, reader: TreeReader) -> bool:
    old, new = old_text(reader, change), new_text(reader, change)
    if old is None or new is None or change.old_mode != change.new_mode or not holds_tests(change.path):
        return False
    return stays_inside(change.path, old, new)


def code_under_test(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the source files among paths that tests can be about."""
    return tuple(
        path
        for path in paths
        if is_source(path) and not is_test_path(path) and posixpath.basename(path) not in _NOT_TESTED
    )


def pick_faults(
    reader: TreeReader,
    tree: str,
    tests: Sequence[Change],
    read: Collection[str],
    subject: Collection[str],
    changed: Collection[str],
) -> list[Mutant]:
    """Return the faults to try in the code of a tree, those closest to the changed `tests` first.

    `subject` is the code that tests can be about; the checks `read` a part of it. If test files were added, the
    first two faults go into the rest: a new test may load something else in place of code that the old tests are
    about. Among equally close faults, those in `changed` code, which the tree changes, come first.
    """
    limit = most_faults(tests) + _SPARE_FAULTS
    known = set(read)
    rest = [path for path in subject if path not in known] if any(test.old_id is None for test in tests) else []
    hidden = _pick_faults(reader, tree, tests, rest, changed, limit)
    return [
        *hidden[: _FAULTS_UNREAD if known else limit],
        *_pick_faults(reader, tree, tests, read, changed, limit),
    ]


def _pick_faults(
    reader: TreeReader,
    tree: str,
    tests: Sequence[Change],
    code: Collection[str],
    changed: Collection[str],
    limit: int,
) -> list[Mutant]:
    if not code:
        return []
    old, new = (
        [_text_of_tests(test.path, text := read(reader, test)) or text or "" for test in tests]
        for read in (old_text, new_text)
    )
    words = subjects_of("\n".join((*old, *new)))
    kept = {line.strip() for text in new for line in text.splitlines()}
    near, around = (
        subjects_of("\n".join(line for text in old for line in _lines_around_lost(text.splitlines(), kept, lines)))
        for lines in (0, _LINES_AROUND)
    )

    def distance(path: str) -> tuple[bool, bool, str]:
        stem = posixpath.splitext(posixpath.basename(path))[0]
        return (path not in changed, stem not in words, path)

    faults: list[Mutant] = []
    for path in sorted(code, key=distance)[:_MOST_FILES]:
        found = reader.lookup(tree, path)
        text = None if found is None else text_of(reader, *found)
        if text is None:
            continue
        inside = find_test_modules(text) if language_of(path) == "rust" else []
        lines = [range(text.count("\n", 0, each.start), text.count("\n", 0, each.end) + 1) for each in inside]
        faults += [fault for fault in find_faults(path, text) if not any(fault.line - 1 in each for each in lines)]
    return choose_faults(faults, words=words, near=near, around=around, limit=limit)


def most_faults(tests: Iterable[Change]) -> int:
    """Return how many faults are tried on changed tests."""
    return FAULTS_FOR_ADDITIONS if all(test.old_id is None for test in tests) else MOST_FAULTS


def _lines_around_lost(lines: Sequence[str], kept: Collection[str], reach: int) -> Iterable[str]:
    """Return the lost lines with some lines around them, as a test names its subject before it asserts."""
    lost = [number for number, line in enumerate(lines) if line.strip() not in kept]
    around = {number for each in lost for number in range(each - reach, each + reach + 1)}
    return (lines[number] for number in sorted(around) if 0 <= number < len(lines))


def _text_of_tests(path: str, text: str | None) -> str:
    inside = text is not None and language_of(path) == "rust" and not is_test_path(path)
    return read_test_modules(text) if text and inside else text or ""


def describe_no_faults(
    why: str = "the checks opened no code that faults can be put into", *, must_measure: bool
) -> tuple[Finding, ...]:
    """Return a finding that changed tests could not be measured, and why; nothing if they need not be."""
    return (describe_unmeasured(why, asks=True),) if must_measure else ()


def find_changed_examples(
    changes: Iterable[Change], reader: TreeReader, base_tree: str, commands: Sequence[str], ran: Iterable[str]
) -> tuple[Finding, ...]:
    """Return a finding if examples in documentation that the checks run as tests were changed.

    `ran` are the names of tests that ran on the base.
    """
    paths = changed_examples(changes, reader, base_tree, commands, ran)
    if not paths:
        return ()
    names = ", ".join(map(shown_path, paths[:_SHOWN])) + (" …" if len(paths) > _SHOWN else "")
    return (describe_unmeasured(f"examples in documentation that the checks run, in {names}", asks=True),)
