"""A mission's change for a person's review: files by risk with reasons, hunks, and the tests of the code."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from chargehand.checks.areas import Areas
from chargehand.checks.inspection import Limits, examine, is_dependency_file
from chargehand.checks.paths import is_source, is_test_path
from chargehand.checks.trees import is_regular, new_text
from chargehand.core.attempt_events import CheckpointMade
from chargehand.core.events import Event, read_payload
from chargehand.core.records import Base, Change, CheckResult, Finding, Severity, Verdict
from chargehand.core.state import MissionState
from chargehand.missions.services import DepotReader
from chargehand.reports.documents import Document, event_step
from chargehand.reports.outcome import FailureDocument
from chargehand.reports.review_hunks import FileHunks, HunkReader, LineOrigin, ReviewHunk, Version
from chargehand.workspace.depot import Depot

FileKind = Literal["code", "test", "config", "docs", "data"]

# Limits of one review.
_MOST_FILES = 2_000
_MOST_FINDINGS = 500
# The number of changed lines from which a file counts as a large change.
_LARGE_LINES = 400
_INSPECTION_SECONDS = 0.4
# The number of changed tests whose imports are read, and how much of each.
_MOST_TESTS = 300
_IMPORTS_CHARACTERS = 20_000
_DOCS = (".md", ".markdown", ".rst", ".adoc", ".txt")
_CONFIG = (
    *(".toml", ".yaml", ".yml", ".json", ".ini", ".cfg", ".conf", ".xml", ".lock", ".properties", ".env", ".mod"),
    *(".sum", ".in", ".gradle", ".cmake", ".mk", ".tf"),
)
_BY_SEVERITY: Mapping[Severity, float] = {"critical": 1.0, "error": 0.8, "warning": 0.35, "info": 0.1}
_NEEDS_PERSON = 0.6
_OWN = {
    "unread": (0.5, "no check opened it"),
    "manifest": (0.35, "it declares the project's dependencies"),
    "new_area": (0.3, "it adds a new directory to the project"),
    "large": (0.25, "{lines} lines changed"),
    "test_deleted": (0.7, "a file that belongs to the tests was deleted"),
    "test_changed": (0.3, "an existing test is changed"),
    "executable": (0.5, "it can be executed now"),
    "symbolic_link": (0.5, "it is a symbolic link; its only line is the target"),
    "binary": (0.4, "its content cannot be read by lines"),
}
# Facts that inspection's rules already report.
_SAID = {
    "manifest": {"dependency_changed", "dependency_source", "lock_mismatch"},
    "binary": {"binary_file"},
    "test_changed": {"test_removed", "test_skipped", "assertions_removed", "tolerance_loosened"},
}
_IMPORT = re.compile(r"^.*\b(?:import|from|require|use|include|load)\b.*$", re.MULTILINE)
_WORD = re.compile(r"\w+")
_AFFIX = re.compile(r"^(?:tests?|specs?)[-_.]?(?=.)|[-_.]?(?:tests?|specs?|it|testcase)$", re.IGNORECASE)
_PLACE = re.compile(r"([\w@+~./-]*[\w+-])(?::|\(|\", line )(\d{1,7})\b")


class ReviewReason(Document, frozen=True):
    """A reason for reading a file: a rule of inspection, or a property of the change itself."""

    name: str = msgspec.field(name="code")
    message: str


class ReviewMark(Document, frozen=True):
    """A remark of inspection or a failed check about a line of a changed file (null: the whole file)."""

    source: Literal["inspection", "check"]
    name: str = msgspec.field(name="code")
    severity: Severity
    path: str
    line: int | None
    message: str


class ReviewFile(Document, frozen=True):
    """One changed file; `tests` are tests in this change that seem to cover it.

    Each `@@` of `patch` is one of the `hunks`, in order. `unread` is null if the files that checks opened were not
    observed, or not on this tree.
    """

    path: str
    kind: FileKind
    change: str
    added: int | None
    removed: int | None
    binary: bool
    risk: float
    reasons: tuple[ReviewReason, ...]
    unread: bool | None
    tests: tuple[str, ...]
    patch: str
    truncated: bool
    hunks: tuple[ReviewHunk, ...]


class ChangeReview(Document, frozen=True):
    """All that a person needs to decide on a mission's change, the riskiest file first.

    `verdict` and `checks` are those of exactly this tree, null and empty without a verdict. `total` counts the
    changed files, listed or not; `notes` describe the omissions.
    """

    mission: str
    status: str
    base: str
    tree: str
    verdict: str | None
    checks: tuple[CheckResult, ...]
    total: int
    files: tuple[ReviewFile, ...]
    marks: tuple[ReviewMark, ...]
    notes: tuple[str, ...]


class ReviewSource(Struct, frozen=True, kw_only=True):
    """The sources of a review: the trees, the checkpoints' events, and the explanation of failed checks."""

    state: MissionState
    depot: Depot
    base: Base
    tree: str
    events: Sequence[Event]
    explain: Callable[[CheckResult], FailureDocument]


def build_review(source: ReviewSource) -> ChangeReview:
    """Build the review of a change; raise `InfrastructureError` if a tree is unreadable."""
    state, depot, tree = source.state, source.depot, source.tree
    changes = depot.diff(source.base.tree, tree)
    verdict = next((each for each in reversed(state.verdicts) if each.tree == tree and each.scope != "base"), None)
    findings, notes = (verdict.findings, []) if verdict else _inspect(source, changes)
    ranked = _Ranking(source, verdict, findings).ranked(changes)
    tests = _covering_tests(depot, [change for _, _, change in ranked[:_MOST_FILES]])
    reader = HunkReader(depot, _history(source, {change.path for change in changes}))
    files = [
        _review_file(change, reader.read(change), risk, reasons, verdict, tests.get(change.path, ()))
        for risk, reasons, change in ranked[:_MOST_FILES]
    ]
    if len(files) < len(changes):
        notes.append(
            f"{len(changes) - len(files)} of {len(changes)} files are not listed, those with the least risk"
        )
    if cut := sum(file.truncated for file in files):
        notes.append(f"of {cut} file(s) not all lines are shown")
    marks = [
        ReviewMark(
            source="inspection",
            name=found.rule,
            severity=found.severity,
            path=found.path,
            line=found.line,
            message=found.message,
        )
        for found in sorted(findings, key=lambda each: -_BY_SEVERITY[each.severity])
    ]
    marks += _failure_marks(source, verdict, changes)
    if len(marks) > _MOST_FINDINGS:
        notes.append(f"{len(marks) - _MOST_FINDINGS} findings are not listed")
    return ChangeReview(
        mission=state.id,
        status=state.status,
        base=source.base.tree,
        tree=tree,
        verdict=verdict.status if verdict else None,
        checks=verdict.checks if verdict else (),
        total=len(changes),
        files=tuple(sorted(files, key=lambda file: (-file.risk, file.path))),
        marks=tuple(marks[:_MOST_FINDINGS]),
        notes=tuple(notes),
    )


def _inspect(source: ReviewSource, changes: Sequence[Change]) -> tuple[tuple[Finding, ...], list[str]]:
    """Inspect a tree without a verdict; return the findings, and notes about unread parts."""
    request, config = source.state.request, source.state.config
    project = config.project if config else None
    areas = Areas(
        allow=(request.allow if request else ()) or (project.allow if project else ()),
        forbid=(*(project.forbid if project else ()), *(request.forbid if request else ())),
        protect=project.protect if project else (),
        commands=(project.checks if project else None) or (),
        directory=request.checks_directory if request else "",
    )
    limits = Limits(seconds=_INSPECTION_SECONDS, seed=source.tree)
    found = examine(changes, DepotReader(source.depot), source.base.tree, areas, limits=limits)
    notes = ["this tree has no verdict yet: it is judged when it is promoted"]
    return found.findings, [*notes, found.reason] if found.reason else notes


class _Ranking:
    """Weighs the risk of each change, with reasons."""

    def __init__(self, source: ReviewSource, verdict: Verdict | None, findings: Iterable[Finding]) -> None:
        self._depot, self._base = source.depot, source.base.tree
        self._unread = frozenset(verdict.unread or ()) if verdict else frozenset()
        self._findings: dict[str, list[Finding]] = {}
        for finding in findings:
            self._findings.setdefault(finding.path, []).append(finding)
        self._tops: dict[str, bool] = {}

    def ranked(self, changes: Iterable[Change]) -> list[tuple[float, list[ReviewReason], Change]]:
        """Return the changes with risk and reasons, the riskiest first."""
        found = []
        for change in changes:
            weighed = sorted(self._weigh(change), key=lambda each: -each[0])
            found.append((_join_risks(weight for weight, _ in weighed), [reason for _, reason in weighed], change))
        return sorted(found, key=lambda each: (-each[0], each[2].path))

    def _weigh(self, change: Change) -> Iterator[tuple[float, ReviewReason]]:
        said = self._findings.get(change.path, [])
        for finding in said:
            weight = _BY_SEVERITY[finding.severity]
            yield (
                max(weight, _NEEDS_PERSON) if finding.needs_person else weight,
                ReviewReason(name=finding.rule, message=finding.message),
            )
        rules = {finding.rule for finding in said}
        for code in self._own(change):
            if code not in rules and rules.isdisjoint(_SAID.get(code, ())):
                yield _OWN[code][0], ReviewReason(name=code, message=_OWN[code][1])

    def _own(self, change: Change) -> Iterator[str]:
        """Yield the codes of the properties of the change itself."""
        path, test = change.path, is_test_path(change.path)
        if path in self._unread:
            yield "unread"
        if is_dependency_file(path):
            yield "manifest"
        if test and change.kind != "added":
            yield "test_deleted" if change.new_id is None else "test_changed"
        if change.new_mode == 0o100755 and change.old_mode != 0o100755:
            yield "executable"
        if change.new_mode == 0o120000:
            yield "symbolic_link"
        top, slash, _ = path.partition("/")
        if change.new_id is not None and slash:
            if top not in self._tops:
                self._tops[top] = self._depot.has_directory(self._base, top)
            if not self._tops[top]:
                yield "new_area"


def _join_risks(weights: Iterable[float]) -> float:
    """Return the risk of several reasons: each takes its share of the remaining safety."""
    safe = 1.0
    for weight in weights:
        safe *= 1 - weight
    return round(1 - safe, 3)


def _review_file(
    change: Change,
    hunks: FileHunks,
    risk: float,
    reasons: Sequence[ReviewReason],
    verdict: Verdict | None,
    tests: Sequence[str],
) -> ReviewFile:
    said = {reason.name for reason in reasons}
    lines = (hunks.added or 0) + (hunks.removed or 0)
    seen = [("large", lines >= _LARGE_LINES), ("binary", hunks.binary and said.isdisjoint(_SAID["binary"]))]
    more = [code for code, holds in seen if holds]
    unread = None if verdict is None or verdict.unread is None else change.path in verdict.unread
    return ReviewFile(
        path=change.path,
        kind=_kind_of(change.path, binary=hunks.binary),
        change=change.kind,
        added=hunks.added,
        removed=hunks.removed,
        binary=hunks.binary,
        risk=_join_risks((risk, *(_OWN[code][0] for code in more))),
        reasons=(
            *reasons,
            *(ReviewReason(name=code, message=_OWN[code][1].format(lines=lines)) for code in more),
        ),
        unread=unread,
        tests=tuple(tests),
        patch=hunks.patch,
        truncated=hunks.truncated,
        hunks=hunks.hunks,
    )


def _kind_of(path: str, *, binary: bool) -> FileKind:
    name = posixpath.basename(path).lower()
    if is_test_path(path):
        return "test"
    if is_source(path):
        return "code"
    if is_dependency_file(path) or name.endswith(_CONFIG):
        return "config"
    if name.endswith(_DOCS):
        return "docs"
    return "data" if binary or "." in name.removeprefix(".") else "config"


def _history(source: ReviewSource, paths: set[str]) -> dict[str, list[Version]]:
    """Return the versions of each path at the checkpoints that changed it, the oldest first."""
    numbers = {attempt.id: attempt.number for attempt in source.state.attempts}
    made = {}
    for event in source.events:
        payload = read_payload(event)
        if isinstance(payload, CheckpointMade):
            made[payload.checkpoint.commit] = numbers.get(payload.attempt), event_step(event) or None
    found: dict[str, list[Version]] = {}
    before = source.base.tree
    for point in source.state.checkpoints:
        number, step = made.get(point.commit, (None, None))
        origin = LineOrigin(attempt=number, checkpoint=point.commit, trigger=point.trigger, step=step)
        for change in source.depot.diff(before, point.tree):
            if change.path in paths:
                version = Version(origin=origin, mode=change.new_mode, id=change.new_id)
                found.setdefault(change.path, []).append(version)
        before = point.tree
    return found


def _covering_tests(depot: Depot, changes: Sequence[Change]) -> dict[str, tuple[str, ...]]:
    """Return for each changed code file the changed tests that match its name or import it."""
    reader = DepotReader(depot)
    by_subject: dict[str, list[str]] = {}
    tests = [change for change in changes if is_test_path(change.path) and change.new_id is not None]
    for test in tests[:_MOST_TESTS]:
        subjects = {_subject_of(test.path)}
        text = new_text(reader, test) if is_regular(test.new_mode) and is_source(test.path) else None
        for line in _IMPORT.findall((text or "")[:_IMPORTS_CHARACTERS]):
            subjects.update(word.lower() for word in _WORD.findall(line))
        for subject in subjects:
            by_subject.setdefault(subject, []).append(test.path)
    return {
        change.path: tuple(sorted(by_subject.get(_subject_of(change.path), ())))
        for change in changes
        if is_source(change.path) and not is_test_path(change.path)
    }


def _subject_of(path: str) -> str:
    """Return a file's subject by its name: `test_calc.py`, `CalcTest.java` and `calc.py` give `calc`."""
    directory, name = posixpath.split(path)
    stem = name.partition(".")[0]
    if stem in ("__init__", "index", "mod", "main") and directory:
        stem = posixpath.basename(directory)
    return (_AFFIX.sub("", stem) if is_test_path(path) else stem).lower()


def _failure_marks(
    source: ReviewSource, verdict: Verdict | None, changes: Sequence[Change]
) -> Iterator[ReviewMark]:
    """Yield the lines of changed files that failed checks name in their outputs."""
    by_name: dict[str, list[str]] = {}
    for change in changes:
        by_name.setdefault(posixpath.basename(change.path), []).append(change.path)
    told: set[tuple[str, str, int | None]] = set()
    for check in verdict.checks if verdict else ():
        if check.status == "passed":
            continue
        failure = source.explain(check)
        said = [(line, line) for line in failure.lines]
        said += [(line, test.name) for test in failure.tests for line in (test.name, *test.lines)]
        for line, message in said:
            for path, number in _places_in(line, by_name):
                if (check.name, path, number) not in told:
                    told.add((check.name, path, number))
                    yield ReviewMark(
                        source="check",
                        name=check.name,
                        severity="error",
                        path=path,
                        line=number,
                        message=message.strip()[:500],
                    )


def _places_in(line: str, by_name: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, int | None]]:
    named: list[tuple[str, int | None]] = [(place[1], int(place[2])) for place in _PLACE.finditer(line)]
    named += [(line.partition("::")[0].strip(), None)] if "::" in line and not named else []
    for place, number in named:
        for path in by_name.get(posixpath.basename(place), ()):
            # Checks name files from the root of the tree, from their own directory, or by the mount path.
            if path == place or place.endswith(f"/{path}") or path.endswith(f"/{place.removeprefix('./')}"):
                yield path, number
