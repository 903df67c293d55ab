"""Classifies paths as tests, by the conventions of the common runners; directories match by whole names."""

from __future__ import annotations

import re
from typing import Literal

from chargehand.core.text import late_pattern

Language = Literal["python", "javascript", "go", "rust", "jvm", "ruby"]

_TEST_DIRS = frozenset({
    "tests", "test", "__tests__", "__snapshots__", "testdata", "fixtures", "__fixtures__", "goldens", "e2e",
})  # fmt: skip
# Directories of tests by other names, and of data that tests read: `integration-tests`, `test_data`, `testcases`.
_OF_TESTS = late_pattern(r"(?:\w[\w-]*[-_])?tests|tests?[-_]?(?:data|cases|files|fixtures|resources|suites?)")
# Expected results of tests, in any directory.
_EXPECTED = late_pattern(r".*\.(?:snap|golden|goldens|approved\.\w+|ambr)")
# Gradle source sets that contain tests, or code that they use: `src/integrationTest/java`.
_SOURCE_SETS = late_pattern(r"(?:.*/)?src/(?:\w*[a-z]Tests?|testFixtures)/.*", re.DOTALL)
_SPEC_DIRS = frozenset({"spec", "specs"})
_SUFFIXES: dict[str, Language] = {
    "py": "python",
    "js": "javascript",
    "jsx": "javascript",
    "mjs": "javascript",
    "cjs": "javascript",
    "ts": "javascript",
    "tsx": "javascript",
    "mts": "javascript",
    "cts": "javascript",
    "go": "go",
    "rs": "rust",
    "java": "jvm",
    "kt": "jvm",
    "rb": "ruby",
}
# Programs in languages without other rules here: enough to distinguish code from data.
_OTHER_SOURCES = frozenset({
    "c", "h", "cc", "cpp", "cxx", "hpp", "hh", "m", "mm", "cs", "fs", "vb", "php", "swift", "scala", "sc",
    "groovy", "clj", "cljs", "ex", "exs", "erl", "hrl", "hs", "ml", "mli", "lua", "pl", "pm", "r", "jl", "dart",
    "zig", "nim", "v", "vala", "sh", "bash", "zsh", "fish", "ps1", "vue", "svelte", "astro", "pyx", "pxd", "pyi",
    "sql",
})  # fmt: skip
_NAMES: dict[Language, re.Pattern[str]] = {
    "python": late_pattern(r"(?:test.*|.*_test)\.py"),
    "javascript": late_pattern(r".*[._-](?:test|spec)\.\w+|test\.\w+"),
    "go": late_pattern(r".*_test\.go"),
    "rust": late_pattern(r"(?:test_.*|.*_test|tests)\.rs"),
    "jvm": late_pattern(r"Test.*\.\w+|.*(?:Test|Tests|TestCase|IT|Spec)\.\w+"),
    "ruby": late_pattern(r".*_(?:test|spec)\.rb|test_.*\.rb"),
}
# Tests of languages without parsers here, by the names that their runners look for.
_OTHER_NAMES = late_pattern(
    r".*\.(?:t|bats|robot|feature)|(?:test|spec)[-_.].+\.(?:c|cc|cpp|cxx|m|sh|bash|ml|lua|R|r|nim|pl|php|d)"
    r"|.*[-_](?:test|tests|unittest|spec|suite|SUITE)\.(?:c|cc|cpp|cxx|m|mm|sh|bash|ml|lua|exs|dart|erl|clj|cljs|php|pl|zig|hs)"
    r"|.*(?:Test|Tests|Spec|Suite|TestCase|Cest)\.(?:cs|fs|vb|swift|scala|groovy|php|hs|dart)|runtests\.jl|Spec\.hs"
)
# pytest's default collection; unittest's `testfoo.py` is trusted only in existing files.
_STRICT_PYTHON = late_pattern(r"test_.*\.py|.*_test\.py|tests\.py")
# pytest's default `norecursedirs`, hidden directories aside: tests moved there would never run.
_NEVER_COLLECTED = frozenset({"build", "dist", "node_modules", "venv", "CVS", "_darcs", "{arch}"})


def language_of(path: str) -> Language | None:
    """Return the language of a source file by its suffix."""
    return _SUFFIXES.get(path.rpartition("/")[2].rpartition(".")[2])


def is_source(path: str) -> bool:
    """Return whether a path is source code in any language, by its suffix."""
    return language_of(path) is not None or path.rpartition("/")[2].rpartition(".")[2].lower() in _OTHER_SOURCES


def is_test_file(path: str) -> bool:
    """Return whether a runner would collect tests from this file by its name."""
    *directories, name = path.split("/")
    language = language_of(path)
    if language is None or name == "conftest.py":
        return False
    if _NAMES[language].fullmatch(name):
        return True
    return language == "javascript" and "__tests__" in directories


def is_test_path(path: str) -> bool:
    """Return whether a path belongs to the tests: a test file by name, conftest.py, or in a test directory."""
    *directories, name = path.split("/")
    if name == "conftest.py" or is_test_file(path) or not _TEST_DIRS.isdisjoint(directories):
        return True
    if _EXPECTED.fullmatch(name) or _OTHER_NAMES.fullmatch(name) or any(map(_OF_TESTS.fullmatch, directories)):
        return True
    if _SOURCE_SETS.fullmatch(path):
        return True
    return language_of(path) is not None and not _SPEC_DIRS.isdisjoint(directories)


def holds_tests(path: str) -> bool:
    """Return whether tests of an existing file at `path` count: Rust keeps unit tests in the code."""
    return is_test_file(path) or language_of(path) == "rust"


def takes_tests(path: str) -> bool:
    """Return whether tests in a new file at `path` will be collected; stricter than `holds_tests`."""
    *directories, name = path.split("/")
    if any(part in _NEVER_COLLECTED or part.startswith(".") for part in directories):
        return False
    if language_of(path) == "python":
        return bool(_STRICT_PYTHON.fullmatch(name))
    return holds_tests(path)
