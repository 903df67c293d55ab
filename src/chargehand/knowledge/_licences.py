"""The licence of a file: its SPDX line, else the nearest licence files above it, recognised by their text."""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Collection, Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from msgspec import Struct

from chargehand.core.codec import convert_to
from chargehand.knowledge._languages import language_of

if TYPE_CHECKING:
    from chargehand.workspace.depot import PathEntry
    from chargehand.workspace.snapshots import RepositorySnapshot

UNKNOWN = "unknown"
_LONGEST_LICENCE = 200_000  # bytes
_HEAD = 2_000  # bytes in which a file's own SPDX lines are searched
_LINK, _DIRECTORY = 0o120000, 0o040000
_NAME = re.compile(r"(?i)(?:(?:un)?licen[cs]e|copying)(?:[-._ ].*)?")
_NOT_TEXT = re.compile(r"(?i).*\.(?:json|toml|ya?ml|html?|svg|png|xml)")
_SPDX = re.compile(rb"SPDX-License-Identifier:[ \t]*([A-Za-z0-9.+() -]+)")
_AND, _OR = re.compile(r"\s+AND\s+"), re.compile(r"\s+OR\s+")
_OTHER = re.compile(r"[\W_]+")


class LicenceRow(Struct, frozen=True, kw_only=True):
    """A row of licences.toml."""

    id: str
    all: tuple[str, ...]
    without: tuple[str, ...] = ()


@cache
def _rows() -> tuple[LicenceRow, ...]:
    table = tomllib.loads((files(__package__) / "licences.toml").read_text())
    return tuple(convert_to(row, LicenceRow) for row in table["licence"])


def recognise_licence(text: str) -> str:
    """Return the SPDX expression of a text: all licences that it has, `unknown` if it has no known one."""
    plain = _OTHER.sub(" ", text.lower())
    found = {
        row.id
        for row in _rows()
        if all(phrase in plain for phrase in row.all) and not any(phrase in plain for phrase in row.without)
    }
    return join_licences(found)


def join_licences(found: Collection[str]) -> str:
    """Return the expression of several licences that all apply; one that has a choice is put in parentheses."""
    parts = [f"({each})" if " OR " in each and len(found) > 1 else each for each in sorted(set(found))]
    return " AND ".join(parts) or UNKNOWN


def is_allowed(expression: str, allowed: Collection[str]) -> bool:
    """Return whether a file may be used under the allowed licences alone.

    All parts of AND, and one of OR, must be allowed; an exception (WITH) only adds rights. An expression with
    parentheses needs all its licences. `unknown` is never allowed.
    """
    wanted = {_bare(each) for each in allowed} - {_bare(UNKNOWN)}
    if "(" in expression or ")" in expression:
        names = re.split(r"\s+(?:AND|OR)\s+", re.sub(r"[()]", " ", expression))
        return all(_bare(name) in wanted for name in names)
    choices = (_AND.split(choice) for choice in _OR.split(expression))
    return any(all(_bare(name) in wanted for name in names) for names in choices)


def _bare(name: str) -> str:
    """Return a licence's id in lower case, without its exception; `GPL-3.0-or-later` becomes `gpl-3.0`."""
    plain = re.split(r"\s+WITH\s+", name.strip())[0].lower()
    return plain.removesuffix("-only").removesuffix("-or-later").removesuffix("+")


class LicenceFinder:
    """Finds the licences of files in one tree of a snapshot."""

    def __init__(self, snapshot: RepositorySnapshot, tree: str) -> None:
        self._snapshot, self._tree = snapshot, tree
        self._known: dict[str, str | None] = {}

    def licence_of(self, path: str, content: bytes) -> str:
        """Return the expression of a file's licence, `unknown` if there is no sign of one."""
        own = [found.decode().strip(" -") for found in _SPDX.findall(content[:_HEAD])]
        if any(own):
            return join_licences([each for each in own if each])
        directory = posixpath.dirname(path)
        while True:
            if (found := self.licence_in(directory)) is not None:
                return found
            if not directory:
                return UNKNOWN
            directory = posixpath.dirname(directory)

    def licence_in(self, directory: str) -> str | None:
        """Return the expression of the licence files in a directory, `None` if it has no such file."""
        if directory not in self._known:
            entries = self._snapshot.list_directory(self._tree, directory)
            found = [
                self._read(directory, entries, name) for name in entries if _is_licence(name, entries[name].mode)
            ]
            self._known[directory] = join_licences(found) if found else None
        return self._known[directory]

    def _read(self, directory: str, entries: Mapping[str, PathEntry], name: str) -> str:
        entry: PathEntry | None = entries[name]
        assert entry is not None
        if entry.mode == _LINK:  # packages of one repository often link to the licence at the top
            target = self._snapshot.read_blob(entry.id, limit=4096).decode("utf-8", "replace")
            place = posixpath.normpath(posixpath.join(directory, target))
            entry = None if place.startswith(("/", "..")) else self._snapshot.lookup(self._tree, place)
        # A link to nowhere or a very long text: there is a licence, and it is not known.
        if entry is None or entry.mode & 0o170000 != 0o100000:
            return UNKNOWN
        if self._snapshot.blob_size(entry.id) > _LONGEST_LICENCE:
            return UNKNOWN
        return recognise_licence(self._snapshot.read_blob(entry.id).decode("utf-8", "replace"))


def _is_licence(name: str, mode: int) -> bool:
    is_text = bool(_NAME.fullmatch(name)) and not _NOT_TEXT.fullmatch(name) and language_of(name) is None
    return is_text and mode != _DIRECTORY
