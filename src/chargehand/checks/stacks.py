"""A project's files, read on demand from a tree, by the content of its manifests and sources."""

from __future__ import annotations

import configparser
import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

from chargehand.checks.paths import is_test_file, language_of
from chargehand.checks.trees import TreeReader, text_of
from chargehand.core.text import late_pattern

# The most source files opened to find out which libraries they use.
_MAX_READ = 200
_REQUIREMENTS = late_pattern(
    r"(?:requirements[\w.-]*|(?:dev|test|tests)[\w-]*requirements)\.(?:txt|in)|[\w-]*requirements\.txt"
)
_PYTEST_REQUIREMENT = late_pattern(r"^\s*pytest\b", re.MULTILINE)
_NOT_OWN = frozenset({"node_modules", "vendor", "third_party", "venv"})


class Stack:
    """A tree's files below a directory, read on demand; paths are relative to it."""

    def __init__(self, reader: TreeReader, tree: str, directory: str = "") -> None:
        self._reader = reader
        above = f"{directory}/" if directory else ""
        self._files = {
            path[len(above) :]: (mode, blob) for path, mode, blob in reader.entries(tree) if path.startswith(above)
        }

    def has(self, path: str) -> bool:
        """Return whether the tree has a file at `path`."""
        return path in self._files

    def text(self, path: str) -> str:
        """Return a file's text, "" if it is missing or unreadable."""
        mode, blob = self._files.get(path, (None, None))
        return text_of(self._reader, mode, blob) or ""

    def under(self, *prefixes: str) -> list[str]:
        """Return the paths that start with one of `prefixes`, which end with a slash."""
        return [path for path in self._files if path.startswith(prefixes)]

    def tests(self, language: str) -> list[str]:
        """Return the test files of a language, without hidden and vendored directories."""
        return [p for p in sorted(self._files) if language_of(p) == language and is_test_file(p) and _own(p)]

    def sources(self, language: str) -> Iterator[str]:
        """Yield the texts of the first source files of a language."""
        paths = [path for path in sorted(self._files) if language_of(path) == language and _own(path)]
        return (self.text(path) for path in paths[:_MAX_READ])

    def toml(self, path: str) -> dict[str, Any]:
        """Return a TOML document, empty if it is absent or broken."""
        try:
            return tomllib.loads(self.text(path))
        except (ValueError, RecursionError):
            return {}

    def json(self, path: str) -> dict[str, Any]:
        """Return a JSON object, empty if it is absent or broken."""
        try:
            document = json.loads(self.text(path) or "{}")
        except (ValueError, RecursionError):
            return {}
        return document if isinstance(document, dict) else {}

    def has_section(self, path: str, section: str) -> bool:
        """Return whether an INI file has a section."""
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read_string(self.text(path))
        except configparser.Error:
            return False
        return parser.has_section(section)

    def requirements(self) -> list[str]:
        """Return the requirements files at the top and in `requirements/`."""
        names = ((path, path.removeprefix("requirements/")) for path in sorted(self._files))
        return [p for p, name in names if _REQUIREMENTS.fullmatch(name) or (name != p and name.endswith(".txt"))]

    def pytest_required(self) -> str | None:
        """Return the file that names pytest as a dependency."""
        pyproject = self.toml("pyproject.toml")
        poetry = table(pyproject, "tool", "poetry")
        lists = [
            table(pyproject, "project").get("dependencies"),
            *table(pyproject, "project", "optional-dependencies").values(),
            *table(pyproject, "dependency-groups").values(),
            *table(pyproject, "tool", "pdm", "dev-dependencies").values(),
            table(pyproject, "tool", "uv").get("dev-dependencies"),
        ]
        for group in (poetry, *table(poetry, "group").values()):
            # Poetry names its requirements by the keys of a table, all others by the texts of a list.
            lists += [list(table(group, "dependencies")), list(table(group, "dev-dependencies"))]
        texts = [text for each in lists if isinstance(each, list) for text in each if isinstance(text, str)]
        if any(re.match(r"pytest\b", text.strip().lower()) for text in texts):
            return "pyproject.toml"
        for path in (*self.requirements(), "setup.cfg", "tox.ini", "Pipfile"):
            if _PYTEST_REQUIREMENT.search(self.text(path)):
                return path
        return None


def _own(path: str) -> bool:
    folders = path.split("/")[:-1]
    return not any(f.startswith(".") or f in _NOT_OWN for f in folders)


def table(document: Any, *names: str) -> dict[str, Any]:
    """Return a nested table, empty if any step of the path is missing or not a table."""
    for name in names:
        document = document.get(name) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}
