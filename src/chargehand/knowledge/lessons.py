"""Lessons from earlier missions: their record, their ranking for a new mission, and their text for an agent.

A lesson is untrusted data: it names what failed and what changed, and gives an agent no right.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.codec import decode_as
from chargehand.core.errors import UsageError
from chargehand.core.text import printable
from chargehand.store.lessons import LessonRow

LessonKind = Literal["fix", "correction", "note"]
MatchPaths = Callable[[tuple[str, ...]], Callable[[str], bool]]
"""Returns a function that matches a path against patterns: `checks.areas.match_paths`."""
# The newest lessons of a project that a mission can get.
MOST_SEARCHED = 500
# With how many earlier ones about the same test and path a lesson is compared.
_COMPARED = 50
# Characters of a lesson in one line.
_LONGEST_SUMMARY = 400
# A mission gets at most so many lessons, and 1,200 tokens of them at three bytes each.
MOST_LESSONS = 3
MOST_BYTES = 3_600
LONGEST_NOTE = 2_000
# Characters of each field, and entries of each list.
_REQUEST, _ERROR, _CHANGE, _MESSAGE, _NAME = 300, 600, 1_500, 600, 200
_TESTS, _PATHS = 5, 20
# Okapi BM25 (Robertson and Zaragoza, 2009), with the usual parameters.
_K1, _B = 1.2, 0.75
# A lesson is recalled if so many different words of the request occur in it, or if a path matches.
_LEAST_WORDS = 2
_KIND_WEIGHT, _PATH_WEIGHT = 0.2, 1.0
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_a-zA-Z]+")
_STOP_WORDS = """
    a all an and any are as at be but by can do each for from has have if in into is it make must no not
    of on or our shall should so that the their then there this to use was when which will with you
"""
_STOP = frozenset(_STOP_WORDS.split())


class LessonContent(Struct, frozen=True, kw_only=True):
    """The content of a lesson; texts are redacted and bounded, and empty fields are unknown.

    A `fix` has the check, tests and first error lines of a red attempt, and the change that made it green. A
    `correction` has a person's message and the change after it. A `note` is the text of a person. `role` is that
    of the mission, `red` and `green` are the trees that the change leads from and to.
    """

    kind: LessonKind
    role: str = ""
    request: str = ""
    check: str = ""
    tests: tuple[str, ...] = ()
    error: str = ""
    message: str = ""
    paths: tuple[str, ...] = ()
    change: str = ""
    red: str = ""
    green: str = ""

    def clean(self, redact: Callable[[str], str]) -> LessonContent:
        """Return the content without secrets and control characters, with its texts and lists bounded."""

        def short(text: str, limit: int) -> str:
            # Redacted before it is cut: half of a secret has no shape to find it by.
            return printable(redact(text)).strip()[:limit]

        return replace(
            self,
            request=short(self.request, _REQUEST),
            check=short(self.check, _NAME),
            tests=tuple(short(test, _NAME) for test in self.tests[:_TESTS]),
            error=short(self.error, _ERROR),
            message=short(self.message, LONGEST_NOTE if self.kind == "note" else _MESSAGE),
            paths=tuple(short(path, _NAME) for path in self.paths[:_PATHS]),
            change=short(self.change, _CHANGE),
        )


class Lesson(Struct, frozen=True, kw_only=True):
    """A stored lesson: its row and its content."""

    row: LessonRow
    content: LessonContent


class LessonQuery(Struct, frozen=True, kw_only=True):
    """A mission that lessons are recalled for: its request, role, and areas of change."""

    text: str
    role: str = ""
    areas: tuple[str, ...] = ()


def write_note(text: str, paths: Sequence[str], redact: Callable[[str], str]) -> LessonContent:
    """Return the content of a person's note. Raises `UsageError` (`lesson_invalid`)."""
    if not text.strip() or len(text) > LONGEST_NOTE:
        raise UsageError(
            f"a lesson of {len(text.strip())} characters",
            code="lesson_invalid",
            hint=f"write 1 to {LONGEST_NOTE} characters",
        )
    return LessonContent(kind="note", message=text, paths=tuple(paths)).clean(redact)


def read_lessons(rows: Iterable[LessonRow]) -> tuple[Lesson, ...]:
    """Return the lessons of rows that can be read; a damaged row, or one of a newer version, is left out."""
    lessons = []
    for row in rows:
        try:
            content = decode_as(row.content, LessonContent)
        except msgspec.MsgspecError:
            continue
        lessons.append(Lesson(row=row, content=content))
    return tuple(lessons)


def rank_lessons(lessons: Sequence[Lesson], query: LessonQuery, match: MatchPaths) -> tuple[Lesson, ...]:
    """Return the lessons that fit a mission, the best first: by words (BM25), kind of task and paths."""
    in_areas = match(query.areas)
    # Areas that allow every path, even this one, say nothing about the mission.
    in_areas = match(()) if in_areas("\0") else in_areas
    documents = [Counter(_words(_searched_text(lesson.content))) for lesson in lessons]
    average = sum(map(Counter.total, documents)) / max(1, len(documents)) or 1.0
    wanted = set(_words(query.text))
    spread = Counter(word for document in documents for word in document.keys() & wanted)
    found = []
    for lesson, document in zip(lessons, documents, strict=True):
        shared = document.keys() & wanted
        by_path = _shares_path(lesson.content, query, match) or any(map(in_areas, lesson.content.paths))
        if len(shared) < _LEAST_WORDS and not by_path:
            continue
        norm = _K1 * (1 - _B + _B * document.total() / average)
        score = 0.0
        for word in shared:
            rarity = math.log(1 + (len(documents) - spread[word] + 0.5) / (spread[word] + 0.5))
            score += rarity * document[word] * (_K1 + 1) / (document[word] + norm)
        score *= 1 + _KIND_WEIGHT * (lesson.content.role == query.role)
        score += _PATH_WEIGHT * by_path
        found.append((-score, lesson.row.id, lesson))
    return tuple(lesson for *_, lesson in sorted(found, key=lambda each: each[:2]))


def render_lesson(lesson: Lesson) -> str:
    """Return a lesson as text for an agent, at most a third of the bytes of all."""
    content, parts = lesson.content, []
    if content.request:
        parts.append(f"Request then: {content.request}")
    if content.check or content.tests:
        tests = f" ({', '.join(content.tests)})" if content.tests else ""
        parts.append(f"Failed: {content.check}{tests}")
    if content.error:
        parts.append(content.error)
    if content.message:
        parts.append(f"A person wrote: {content.message}")
    if content.paths:
        parts.append(f"Paths: {', '.join(content.paths)}")
    if content.change:
        passed = "after it" if content.kind == "correction" else "that passed"
        parts.append(f"The change {passed}:\n{content.change}")
    text = "\n".join(parts).encode("utf-8", "replace")
    return text[: MOST_BYTES // MOST_LESSONS].decode("utf-8", "ignore")


def summarize_lesson(content: LessonContent) -> str:
    """Return a lesson as one line for people who write rules: what failed or was said, and where."""
    paths = ", ".join(f"`{path}`" for path in content.paths)
    if content.message:
        text = f"{content.message} ({paths})" if paths else content.message
    else:
        where = f" in {paths}" if paths else ""
        tests = f" ({', '.join(content.tests)})" if content.tests else ""
        text = f"`{content.check}` failed{tests} before a change{where}: {content.error}"
    return printable(" ".join(text.split()))[:_LONGEST_SUMMARY]


def find_contradictions(lessons: Sequence[Lesson]) -> dict[str, tuple[str, ...]]:
    """Return the ids of lessons that contradict others, with the ids of those.

    Two lessons contradict each other if they are about the same failing test and overlapping paths, and the change
    of one removes most lines that the other adds, and the other way round. A lesson is compared with the last
    `_COMPARED` before it that are about the same test and path.
    """
    about: dict[tuple[str, str], deque[str]] = {}
    changes = {}
    pairs = set()
    for lesson in lessons:
        if lesson.content.change:
            changes[lesson.row.id] = _changed_lines(lesson.content.change)
            for place in set(product(lesson.content.tests, lesson.content.paths)):
                earlier = about.setdefault(place, deque(maxlen=_COMPARED))
                pairs |= {(other, lesson.row.id) for other in earlier}
                earlier.append(lesson.row.id)
    found: dict[str, tuple[str, ...]] = {}
    for one, two in sorted(pairs):
        (added, removed), (other_added, other_removed) = changes[one], changes[two]
        if _mostly_equal(added, other_removed) and _mostly_equal(removed, other_added):
            found[one] = (*found.get(one, ()), two)
            found[two] = (*found.get(two, ()), one)
    return found


def _changed_lines(change: str) -> tuple[set[str], set[str]]:
    lines = [line for line in change.splitlines() if not line.startswith(("+++", "---"))]
    added = {line[1:].strip() for line in lines if line.startswith("+")} - {""}
    return added, {line[1:].strip() for line in lines if line.startswith("-")} - {""}


def _mostly_equal(one: set[str], other: set[str]) -> bool:
    return bool(one & other) and len(one & other) > 0.6 * len(one | other)


def _searched_text(content: LessonContent) -> str:
    texts = (content.request, content.check, *content.tests, content.error, content.message, *content.paths)
    return "\n".join(texts)


def _words(text: str) -> list[str]:
    """Return the words of a text in lower case, with parts of identifiers and without stop words."""
    words = (found[0].lower() for found in _WORD.finditer(text))
    return [word for word in words if word not in _STOP and (len(word) > 1 or word.isdigit())]


def _shares_path(content: LessonContent, query: LessonQuery, match: MatchPaths) -> bool:
    """Return whether the request names a path of a lesson; those of a note are patterns."""
    named = re.findall(r"[\w.-]+(?:/[\w.-]+)+|[\w-]+\.\w+", query.text)
    places = {name.strip(".") for name in named}
    if content.kind == "note":
        return any(map(match(content.paths), places))
    return not places.isdisjoint(content.paths)
