"""The table of languages: which grammar and queries a file has, and which of its functions are tests."""

from __future__ import annotations

import hashlib
import posixpath
import re
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any

from msgspec import Struct

from chargehand.core.codec import convert_to

# A new version of any of these distributions may parse a file differently.
_DISTRIBUTIONS = ("tree-sitter", *(f"tree-sitter-{name}" for name in (
    "bash", "c", "c-sharp", "cpp", "go", "java", "javascript", "php", "python", "ruby", "rust", "typescript",
)))  # fmt: skip


class LanguageRow(Struct, frozen=True, kw_only=True):
    """A row of languages.toml."""

    grammar: str
    suffixes: tuple[str, ...]
    interpreters: tuple[str, ...]
    test_files: str
    test_names: str
    queries: str = ""


class TextFiles(Struct, frozen=True, kw_only=True):
    """The row of files without a grammar, whose words can be searched: suffixes and whole names."""

    suffixes: frozenset[str]
    names: frozenset[str]


@cache
def languages() -> dict[str, LanguageRow]:
    """Return the table of languages by name."""
    return {name: convert_to(row, LanguageRow) for name, row in _table().items() if name != "text"}


@cache
def text_files() -> TextFiles:
    """Return which files without a grammar are text."""
    return convert_to(_table()["text"], TextFiles)


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads((files(__package__) / "languages.toml").read_text())


@cache
def query_text(language: str) -> str:
    """Return the queries of a language."""
    row = languages()[language]
    return (files(__package__) / "languages" / f"{row.queries or row.grammar}.scm").read_text()


@cache
def parser_version() -> str:
    """Return an id that changes with the grammars, the queries and the parser's own code."""
    digest = hashlib.sha256()
    for name in _DISTRIBUTIONS:
        try:
            digest.update(f"{name} {version(name)}\n".encode())
        except PackageNotFoundError:
            digest.update(f"{name} is missing\n".encode())
    own = files(__package__)
    for name in ("languages.toml", "_extraction.py", "_database.py", "_words.py", "_contents.py"):
        digest.update((own / name).read_bytes())
    for name in languages():
        digest.update(query_text(name).encode())
    return digest.hexdigest()[:16]


@cache
def _by_suffix() -> dict[str, str]:
    return {suffix: name for name, row in languages().items() for suffix in row.suffixes}


def language_of(path: str) -> str | None:
    """Return the language of a file by its suffix, `None` if it is not in the table."""
    return _by_suffix().get(posixpath.splitext(path)[1].lower())


@cache
def _test_file_pattern(language: str) -> re.Pattern[str]:
    return re.compile(languages()[language].test_files)


def is_test_file(path: str) -> bool:
    """Return whether a path is that of a file with tests, by the custom of its language."""
    language = language_of(path)
    return language is not None and _test_file_pattern(language).search(path) is not None


def is_test(path: str, name: str, kind: str) -> bool:
    """Return whether a definition is a test: marked as one, or a function of a test file with a test's name."""
    if kind not in ("function", "method") or not is_test_file(path):
        return kind == "test"
    language = language_of(path)
    assert language is not None
    return re.search(languages()[language].test_names, name) is not None
