"""Find weakened tests by comparing all changed test files of two trees."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from chargehand.checks.paths import holds_tests, is_test_file, is_test_path, language_of, takes_tests
from chargehand.checks.suites.facts import EMPTY_BODY, Case, Suite
from chargehand.checks.suites.other import suite_of
from chargehand.checks.trees import TreeReader, new_text, old_text
from chargehand.core.records import Change, Finding

_SHOWN = 5
_Key = tuple[str | None, str]


class Pair(Struct, frozen=True):
    """A changed file with its tests before and after, `None` if a runner would collect no tests from it."""

    change: Change
    old: Suite | None
    new: Suite | None

    @property
    def path(self) -> str:
        """The path after the change."""
        return self.change.path

    def key(self, case: Case) -> _Key:
        """Return a test's language and bare name, which stay the same if it moves between files and classes."""
        return language_of(self.path), case.name


def weakenings(changes: Sequence[Change], pairs: Sequence[Pair]) -> tuple[Finding, ...]:
    """Return findings on tests that the changes weaken; moving tests between files is no weakening.

    `pairs` must contain all changed files with tests.
    """
    # Count over all files: a test that moved is missing from one file and new in another.
    lost = _count_lost(pairs) - Counter(old for old, _ in _match_renamed(pairs))
    findings = [
        *_find_deleted_files(changes, pairs, lost),
        *_find_removed(pairs, lost),
        *_find_skipped(pairs, lost),
        *_find_softened(pairs),
    ]
    return tuple(dict.fromkeys(findings))


def find_renamed(pairs: Sequence[Pair]) -> dict[_Key, _Key]:
    """Return the new keys of renamed tests, by their old keys; apart from the name their lines are unchanged.

    A renamed test does not count if it is newly kept from running.
    """
    return dict(reversed(_match_renamed(pairs)))


def _match_renamed(pairs: Sequence[Pair]) -> list[tuple[_Key, _Key]]:
    """Return the old and new key of each renamed test; several tests may have the same key."""
    lost, gained = _count_lost(pairs), Counter(pair.key(case) for pair, case in _new_cases(pairs))
    gained.subtract(pair.key(case) for pair, case in _old_cases(pairs))
    # Of several tests with one name, only those whose text is gone from that name can be renamed.
    gone = Counter((pair.key(case), case.body) for pair, case in _old_cases(pairs))
    gone.subtract((pair.key(case), case.body) for pair, case in _new_cases(pairs))
    fresh: dict[tuple[str | None, str], list[tuple[Pair, Case]]] = {}
    for pair, case in _new_cases(pairs):
        if gained[pair.key(case)] > 0 and case.body:
            fresh.setdefault((pair.key(case)[0], case.body), []).append((pair, case))
    renamed: list[tuple[_Key, _Key]] = []
    for pair, old in _old_cases(pairs):
        key, same = pair.key(old), fresh.get((pair.key(old)[0], old.body), [])
        if lost[key] <= 0 or gone[key, old.body] <= 0:
            continue
        for number, (other, new) in enumerate(same):
            kept = not _new_marks(_marks(old, pair.old), _marks(new, other.new))
            if kept and gained[other.key(new)] > 0:
                renamed.append((key, other.key(new)))
                del same[number]
                lost[key] -= 1
                gone[key, old.body] -= 1
                gained[other.key(new)] -= 1
                break
    return renamed


def find_rewritten(pairs: Sequence[Pair]) -> frozenset[_Key]:
    """Return the tests whose old text no longer exists under their name: changed or removed."""
    old = Counter((pair.key(case), case.body) for pair, case in _old_cases(pairs) if case.body)
    return frozenset(
        key for key, _ in old - Counter((pair.key(case), case.body) for pair, case in _new_cases(pairs))
    )


def count_added(pairs: Sequence[Pair]) -> dict[str, int]:
    """Return the change in the number of tests that run, by name; unchanged numbers are left out.

    Tests whose names are computed at run time are not counted.
    """
    found = Counter(case.name for pair, case in _new_cases(pairs) if case.name and not _marks(case, pair.new))
    found.subtract(case.name for pair, case in _old_cases(pairs) if case.name and not _marks(case, pair.old))
    return {name: count for name, count in found.items() if count}


def _count_lost(pairs: Sequence[Pair]) -> Counter[_Key]:
    """Return the number of lost tests, by key."""
    before = Counter(pair.key(case) for pair, case in _old_cases(pairs))
    return before - Counter(pair.key(case) for pair, case in _new_cases(pairs))


def suites_of(change: Change, reader: TreeReader, *, any_name: bool = False) -> tuple[Suite | None, Suite | None]:
    """Return the tests of a file before and after the change, `None` if a runner would collect no tests from it.

    With `any_name` an existing file counts under any name: some runners are configured with the files to collect.
    """
    if not holds_tests(change.path) and not (any_name and change.old_id is not None):
        return None, None
    old = _read_suite(change.path, old_text(reader, change))
    # An agent may put a new file in a place that no runner collects: its tests do not replace others.
    believed = change.old_id is not None or takes_tests(change.path)
    return old, _read_suite(change.path, new_text(reader, change)) if believed else None


def _read_suite(path: str, source: str | None) -> Suite | None:
    suite = None if source is None else suite_of(path, source)
    if suite is None or source is None:
        return None
    lines = source.split("\n")
    cases = []
    for case in suite.cases:
        head = lines[case.line - 1] if 0 < case.line <= len(lines) else ""
        # A whole word or a quoted string: in `test("s", ...)` the name `s` also occurs in `test`.
        named = re.search(rf"(?<=['\"`]){re.escape(case.name)}(?=['\"`])|\b{re.escape(case.name)}\b", head)
        if not case.name or named is None:
            cases.append(replace(case, body=""))
            continue
        # The body is the lines indented below the first one; the name is left out.
        indent = len(head) - len(head.lstrip())
        body = [(head[: named.start()] + head[named.end() :]).strip()]
        for line in lines[case.line :]:
            text = line.strip()
            if text and len(line) - len(line.lstrip()) <= indent:
                # The closing bracket or word is indented like the first line.
                body += [text] if text[0] in ")}]" or text == "end" else []
                break
            body += [text] if text else []
        digest = hashlib.blake2s("\n".join(body).encode(errors="replace"), digest_size=12).hexdigest()
        cases.append(replace(case, body=digest))
    return replace(suite, cases=tuple(cases), blank=not source.strip())


def _cases(suite: Suite | None) -> tuple[Case, ...]:
    return () if suite is None else suite.cases


def _old_cases(pairs: Iterable[Pair]) -> Iterator[tuple[Pair, Case]]:
    return ((pair, case) for pair in pairs for case in _cases(pair.old))


def _new_cases(pairs: Iterable[Pair]) -> Iterator[tuple[Pair, Case]]:
    return ((pair, case) for pair in pairs for case in _cases(pair.new))


def _missing(pair: Pair, lost: Counter[_Key]) -> list[Case]:
    """Return the lost tests of one file: those whose name occurs less often in it than before."""
    fewer = Counter(map(pair.key, _cases(pair.old))) - Counter(map(pair.key, _cases(pair.new)))
    return [case for case in _cases(pair.old) if lost[pair.key(case)] and fewer[pair.key(case)]]


def _find_deleted_files(
    changes: Sequence[Change], pairs: Sequence[Pair], lost: Counter[_Key]
) -> Iterator[Finding]:
    held = {pair.path: pair for pair in pairs}
    placed: dict[str | None, list[str]] = {}
    for change in changes:
        placed.setdefault(change.new_id, []).append(change.path)
    for change in changes:
        if change.kind != "deleted" or not is_test_path(change.path):
            continue
        pair = held.get(change.path)
        if pair is not None and _cases(pair.old):
            if gone := _missing(pair, lost):
                names = _name_some(repr(name) for name in sorted({case.name for case in gone}))
                yield _ask("test_deleted", change.path, f"deleted with tests that exist only there: {names}")
            continue
        # No test is known in the file, so a move can only be recognised by its whole content.
        fits = takes_tests if is_test_file(change.path) else is_test_path
        if any(fits(path) for path in placed.get(change.old_id, ())):
            continue
        if not is_test_file(change.path):
            yield _warning("test_deleted", change.path, "a file that belongs to the tests was deleted")
        elif pair is None or pair.old is None or not pair.old.blank:
            yield _ask("test_deleted", change.path, "a test file was deleted")


def _find_removed(pairs: Sequence[Pair], lost: Counter[_Key]) -> Iterator[Finding]:
    for pair in pairs:
        if pair.change.kind == "deleted":
            continue
        if pair.old is not None and pair.new is None and not _cases(pair.old):
            yield _ask(
                "test_removed", pair.path, "a test file was replaced by something that is not a source file"
            )
        names = list(dict.fromkeys(case.name for case in _missing(pair, lost)))
        if len(names) == 1:
            yield _ask("test_removed", pair.path, f"test {names[0]!r} was removed or renamed")
        elif names:
            shown = _name_some(map(repr, names))
            yield _ask("test_removed", pair.path, f"{len(names)} tests were removed or renamed: {shown}")


def _find_skipped(pairs: Sequence[Pair], lost: Counter[_Key]) -> Iterator[Finding]:
    reported: set[_Key] = set()
    by_path: dict[str, list[tuple[Case, str]]] = {}
    for pair in pairs:
        if pair.old is None or pair.new is None:
            continue
        for mark in _new_marks(pair.old.marks, pair.new.marks):
            yield _ask("test_skipped", pair.path, f"the whole file is kept from running: {mark}")
        before = {(case.scope, case.name): case for case in pair.old.cases}
        for case in pair.new.cases:
            old = before.get((case.scope, case.name))
            for mark in _new_marks(old.marks, case.marks) if old else ():
                reported.add(pair.key(case))
                by_path.setdefault(pair.path, []).append((case, mark))
    # A test may also move to a place that does not run it: no test is lost, but fewer of its name run.
    ran = Counter(pair.key(case) for pair, case in _old_cases(pairs) if not _marks(case, pair.old))
    runs = Counter(pair.key(case) for pair, case in _new_cases(pairs) if not _marks(case, pair.new))
    fewer = {key for key in ran - runs if key not in lost and key not in reported}
    for pair in pairs:
        known = {pair.key(case) for case in _cases(pair.old)}
        file_reported = bool(_new_marks(_file_marks(pair.old), _file_marks(pair.new)))
        for case in _cases(pair.new):
            marks, key = _marks(case, pair.new), pair.key(case)
            if marks and key in fewer and not (file_reported and key in known):
                by_path.setdefault(pair.path, []).append((case, marks[0]))
    for path, found in by_path.items():
        message = _name_some(_describe_skip(case, mark) for case, mark in found)
        yield _ask("test_skipped", path, message, found[0][0].line)


def _file_marks(suite: Suite | None) -> tuple[str, ...]:
    return () if suite is None else suite.marks


def _marks(case: Case, suite: Suite | None) -> tuple[str, ...]:
    return (*case.marks, *_file_marks(suite))


def _new_marks(old: tuple[str, ...], new: tuple[str, ...]) -> list[str]:
    return list(Counter(new) - Counter(old))


def _describe_skip(case: Case, mark: str) -> str:
    if mark == EMPTY_BODY:
        return f"test {case.name!r} was emptied: it no longer checks anything"
    return f"test {case.name!r} is kept from running: {mark}"


def _find_softened(pairs: Sequence[Pair]) -> Iterator[Finding]:
    """Compare each test with its earlier version, even if it moved."""
    before: dict[tuple[_Key, str], Case] = {}
    by_name: dict[_Key, Case] = {}
    for pair, case in _old_cases(pairs):
        before[pair.key(case), case.scope] = case
        by_name[pair.key(case)] = case
    for pair, new in _new_cases(pairs):
        old = before.get((pair.key(new), new.scope)) or by_name.get(pair.key(new))
        if old is None or EMPTY_BODY in new.marks:
            continue
        if new.assertions < old.assertions:
            count = f"{new.assertions} of {old.assertions} assertions are left"
            yield _warning("assertions_removed", pair.path, f"test {new.name!r}: {count}", new.line)
        if old.variants is not None and new.variants is not None and new.variants < old.variants:
            count = f"{new.variants} of {old.variants} parameter sets are left"
            yield _warning("assertions_removed", pair.path, f"test {new.name!r}: {count}", new.line)
        for what in new.loosened_since(old):
            yield _warning("tolerance_loosened", pair.path, f"test {new.name!r}: {what}", new.line)


def _name_some(names: Iterable[str]) -> str:
    known = list(names)
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    return ", ".join(known[:_SHOWN]) + more


def _ask(rule: str, path: str, message: str, line: int | None = None) -> Finding:
    """Return a finding that a person decides: removing a feature removes its tests, and so does a cheat."""
    return Finding(rule=rule, severity="warning", path=path, message=message, line=line, needs_person=True)


def _warning(rule: str, path: str, message: str, line: int | None = None) -> Finding:
    return Finding(rule=rule, severity="warning", path=path, message=message, line=line)
