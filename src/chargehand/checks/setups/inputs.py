"""Decides whether a setup command reads a requirements file: a website's, say, installs nothing for the checks."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator

from chargehand.checks.stacks import Stack
from chargehand.checks.trees import TreeReader
from chargehand.core.text import late_pattern

_REQUIREMENTS = late_pattern(
    r"(?:.*/)?(?:[\w.-]*(?:requirements|constraints)[\w.-]*|requirements/[\w.-]+)\.(?:txt|in)"
)
# Commands without shell expansions whose options name each file that they read.
_PLAIN = late_pattern(
    r"(?:(?:(?:python3?\s+-m\s+)?pip3?\s+install|uv\s+export)(?:\s+(?:'[^']*'|\"[^\"$`\\]*\"|[\w./=:,@+\[\]-]+))+"
    r"|go\s+mod\s+download|cargo\s+fetch)"
)
_OPTION = late_pattern(
    r"(?<!\S)(?:-r|--requirement|-c|--constraint|--build-constraint)(?:[= ]|(?<=-[rc]))\s*(?P<file>\S+)"
)
_OWN = late_pattern(r"\.(?:\[[\w,.-]*\])?")
# A requirement that is a directory, or that the environment completes.
_LOCAL = late_pattern(r"^\s*(?:-e\b|--editable|\.|/)|file:|\$\{", re.MULTILINE)
# Words in a package's build files that suggest that the build reads files which no command names.
_READS_FILES = late_pattern(r"requirements?\b|\.txt\b|\.in\b|glob|listdir|iterdir|scandir|walk|backend-path")
_BUILDS = ("setup.py", "setup.cfg", "pyproject.toml")


def ignores_requirements(reader: TreeReader, tree: str, directory: str, command: str, path: str) -> bool:
    """Return whether a setup command, run in a directory of a tree, provably does not read `path`."""
    if not _REQUIREMENTS.fullmatch(path) or not all(map(_PLAIN.fullmatch, re.split(r"\s*&&\s*", command.strip()))):
        return False
    stack = Stack(reader, tree)
    if any(_READS_FILES.search(stack.text(posixpath.join(directory, name))) for name in _BUILDS):
        return False
    words = " ".join(shlex.split(command))
    rest = _OPTION.sub("", words).split()
    if any(("/" in word or word.startswith(".")) and not _OWN.fullmatch(word) for word in rest):
        return False
    waiting, seen = list(_named_files(words, directory)), set[str]()
    while waiting:
        file = waiting.pop()
        if file not in seen:
            seen.add(file)
            text = stack.text(file)
            if _LOCAL.search(text):
                return False
            waiting += _named_files(text, posixpath.dirname(file))
    return path not in seen


def _named_files(text: str, directory: str) -> Iterator[str]:
    for found in _OPTION.finditer(text):
        yield posixpath.normpath(posixpath.join(directory, found["file"]))
