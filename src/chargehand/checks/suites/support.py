"""Files outside of test directories that only tests use: expected results (goldens) and helpers that assert.

They judge the code as tests do, so a change that rewrites them must not pass by itself. A file belongs to the
tests if the text of the base says so: a test names it, and no other code does.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator

from chargehand.checks._dependencies import is_dependency_file
from chargehand.checks.paths import is_source, is_test_path, language_of
from chargehand.checks.suites.rust_modules import split_code_and_tests
from chargehand.checks.surface.names import CHECKS
from chargehand.checks.surface.parts import parts_of
from chargehand.checks.trees import TreeReader, old_text, text_of
from chargehand.core.records import Change
from chargehand.core.text import late_pattern

# Code of the base that is read at most: beyond that, reading costs more than a run of the tests.
_MOST_FILES = 4_000
_MOST_BYTES = 40_000_000
# People read them, and tests that open them mostly compare a version.
_PROSE = late_pattern(
    r"(?:readme|changelog|changes|history|news|license|licence|copying|authors|notice)\b.*", re.IGNORECASE
)
# A helper can only hide a failure if it finds one: it asserts, compares or takes the state of a test.
_ASSERTS = late_pattern(
    r"\bassert|AssertionError|\btesting\.(?:T|TB|B|F)\b|\bunittest\b|\bpytest\b|\bexpect\(|require\(['\"](?:node:)?assert"
    r"|['\"]chai['\"]|\bshould\b"
)
_HELPER_NAME = late_pattern(
    r".*(?:test|assert|expect|compar|check|verif|golden|fixture|match|harness).*", re.IGNORECASE
)
_RUST_MACRO = late_pattern(r"\bmacro_rules!\s*(\w+)")
_KOTLIN_FUNCTION = late_pattern(r"^(?:\w+\s+)*fun\s+(?:<[^>\n]*>\s*)?(?:[\w<>?]+\.)?(\w+)\s*\(", re.MULTILINE)
_GENERAL = frozenset(
    {"", ".", "src", "lib", "data", "files", "out", "output", "docs", "doc", "pkg", "internal", "cmd"}
)


def find_support(changes: Iterable[Change], reader: TreeReader, base_tree: str) -> frozenset[str]:
    """Return the changed or deleted files of the base that only its tests use, test directories left out."""
    wanted = {change.path: pattern for change in changes if (pattern := _mention(change, reader))}
    if not wanted:
        return frozenset()
    by_tests, by_code = set[str](), set[str]()
    for path, whole in _sources(reader, base_tree):
        for found, text in _split(path, whole, by_code, by_tests):
            found |= {
                each
                for each, pattern in wanted.items()
                if each != path and each not in found and not _is_beside(path, each) and pattern.search(text)
            }
    return frozenset(by_tests - by_code)


def _split(path: str, text: str, by_code: set[str], by_tests: set[str]) -> list[tuple[set[str], str]]:
    """Return the parts of a source file, each with the set for the files it names; Rust has tests in its code."""
    if is_test_path(path):
        return [(by_tests, text)]
    if language_of(path) != "rust":
        return [(by_code, text)]
    code, tests = split_code_and_tests(text)
    return [(by_code, code), (by_tests, tests)]


def _is_beside(path: str, other: str) -> bool:
    """Return whether two files are of one Go package, in which no file imports the other."""
    go = language_of(path) == language_of(other) == "go" and not is_test_path(path)
    return go and posixpath.dirname(path) == posixpath.dirname(other)


def _sources(reader: TreeReader, tree: str) -> Iterator[tuple[str, str]]:
    entries = [entry for entry in reader.entries(tree) if is_source(entry[0])]
    read = 0
    for path, mode, blob in entries if len(entries) <= _MOST_FILES else ():
        text = text_of(reader, mode, blob) if read < _MOST_BYTES else None
        if text is not None:
            read += len(text)
            yield path, text


def _mention(change: Change, reader: TreeReader) -> re.Pattern[str] | None:
    """Return a pattern for how other files name a file that may be support, `None` for any other file."""
    path, name = change.path, posixpath.basename(change.path)
    if change.old_id is None or is_test_path(path):
        return None
    if CHECKS.reason(path) or parts_of(name) is not None or is_dependency_file(path):
        return None
    if not is_source(path):
        return None if _PROSE.fullmatch(name) else _mention_of_data(path)
    text = old_text(reader, change)
    stem = _stem(path)
    if text is None or not stem or not (_ASSERTS.search(text) or _HELPER_NAME.fullmatch(stem)):
        return None
    match language_of(path):
        case "python" if stem != "__init__":
            word = re.escape(stem)
            return re.compile(
                rf"^\s*(?:from|import)\b[^\n(]*(?:\([^)]*)?(?<![\w.-])(?:[\w.]*\.)?{word}\b", re.MULTILINE
            )
        case "go" if directory := posixpath.dirname(path):
            return re.compile(rf'["/]{re.escape(directory)}"')
        case "javascript":
            word = re.escape(stem)
            return re.compile(rf"""['"]\.{{1,2}}/(?:[^'"\n]*/)?{word}(?:\.\w+)?['"]""")
        case "rust":
            word = re.escape(stem)
            macros = "".join(rf"|\b{name}!" for name in _RUST_MACRO.findall(text))
            return re.compile(rf"\b{word}\s*::|\bmod\s+{word}\s*;|\buse\b[^;]*\b{word}\b{macros}")
        case "jvm":
            functions = _KOTLIN_FUNCTION.findall(text) if name.endswith(".kt") else []
            return re.compile(rf"\b(?:{'|'.join(map(re.escape, (stem, *functions)))})\b")
    return None


def _stem(path: str) -> str:
    """Return the name that other files use for a source file: its directory's if its own is a general one."""
    directory, name = posixpath.split(path)
    stem = posixpath.splitext(name)[0]
    match language_of(path), stem:
        case ("javascript", "index") | ("rust", "mod"):
            return posixpath.basename(directory)
        # A separate crate. The repository's own crate is the code under test.
        case "rust", "lib":
            return posixpath.basename(posixpath.dirname(directory)).replace("-", "_")
        case "rust", "main":
            return ""
    return stem


def _mention_of_data(path: str) -> re.Pattern[str] | None:
    """Return a pattern for how code names a data file: by its name, or by a directory that contains it."""
    *directories, name = path.split("/")
    words = {name, posixpath.splitext(name)[0] if len(name) > 8 else name, *directories} - _GENERAL
    choice = "|".join(sorted(map(re.escape, words), key=len, reverse=True))
    return re.compile(rf"""['"`/](?:{choice})(?=['"`/])""") if words else None
