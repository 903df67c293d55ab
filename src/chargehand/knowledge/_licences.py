"""The licence of a file: its SPDX line, else the nearest licence files above it, recognised by their text."""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
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
_SPDX = re.compile(rb"SPDX-License-Identifier:[ \t]*([^\r\n]*?)[ \t]*(?:\*/|-->|\"\"\"|[\r\n]|$)")
_OTHER = re.compile(r"[\W_]+")
_AND, _OR = re.compile(r"(?i)\s+AND\s+"), re.compile(r"(?i)\s+OR\s+")
_TERM = re.compile(r"(?i)(?!(?:and|or|with)\b)([a-z0-9.:-]+\+?)(?:\s+WITH\s+([a-z0-9.:-]+))?")
_INNERMOST = re.compile(r"\(([^()]*)\)")
_TRUE, _FALSE = "\1", "\0"  # the values of evaluated parentheses; no expression has these characters
_VERSIONED = re.compile(r"(.+)-(\d+\.\d+)")


class LicenceRow(Struct, frozen=True, kw_only=True):
    """A row of licences.toml."""

    id: str
    all: tuple[str, ...]
    without: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()


class LicenceTable(Struct, frozen=True, kw_only=True):
    """The whole of licences.toml."""

    standard: tuple[str, ...]
    terms: frozenset[str]
    additions: tuple[str, ...]
    exceptions: str
    licence: tuple[LicenceRow, ...]


class LicenceTerm(Struct, frozen=True):
    """One licence of an expression: its family, the version, whether later ones may be chosen, the exception."""

    family: str
    version: tuple[int, ...]
    later: bool
    exception: str

    @classmethod
    def parse(cls, name: str, exception: str = "") -> LicenceTerm:
        """Return the term of an SPDX id, which has no version if it needs none, such as `MIT`."""
        plain = name.lower()
        base = plain.removesuffix("-or-later").removesuffix("+")
        found = _VERSIONED.fullmatch(bare := base.removesuffix("-only"))
        family, version = (bare, ()) if found is None else (found[1], tuple(map(int, found[2].split("."))))
        return cls(family, version, base != plain, exception.lower())

    def fulfils(self, allowed: LicenceTerm) -> bool:
        """Return whether a file under this licence may be used under the allowed one."""
        if self.family != allowed.family or (allowed.later and not self.later):
            return False
        if self.version != allowed.version and not (self.later and self.version < allowed.version):
            return False
        # An exception of SPDX only gives more rights; another one may take some.
        return self.exception == allowed.exception or (not allowed.exception and self.exception in _exceptions())


@cache
def _table() -> LicenceTable:
    return convert_to(tomllib.loads((files(__package__) / "licences.toml").read_text()), LicenceTable)


@cache
def _exceptions() -> frozenset[str]:
    return frozenset(_table().exceptions.lower().split())


def recognise_licence(text: str) -> str:
    """Return the SPDX expression of a text: all licences that it has.

    It is `unknown` if the text has no known licence, or terms besides.
    """
    plain = _OTHER.sub(" ", text.lower())
    rows = [
        row
        for row in _table().licence
        if all(phrase in plain for phrase in row.all) and not any(phrase in plain for phrase in row.without)
    ]
    return UNKNOWN if _has_additions(plain, rows) else join_licences({row.id for row in rows})


def _has_additions(plain: str, rows: Collection[LicenceRow]) -> bool:
    """Return whether a text has terms that are not those of its licences."""
    table = _table()
    rest = plain
    for row in rows:
        if row.ends and (start := rest.find(row.all[0])) >= 0:
            places = [place + len(end) for end in row.ends if (place := rest.rfind(end)) > start]
            rest = f"{rest[:start]} {rest[max(places, default=len(rest)) :]}"
    for phrase in table.standard:
        rest = rest.replace(phrase, " ")
    return not table.terms.isdisjoint(rest.split()) or any(f" {each} " in f" {plain} " for each in table.additions)


def join_licences(found: Collection[str]) -> str:
    """Return the expression of several licences that all apply; one that has a choice is put in parentheses."""
    parts = [f"({each})" if " OR " in each.upper() and len(found) > 1 else each for each in sorted(set(found))]
    return " AND ".join(parts) or UNKNOWN


def is_allowed(expression: str, allowed: Collection[str]) -> bool:
    """Return whether a file may be used under the allowed licences alone.

    All parts of AND, and one of OR, must be allowed. A licence "or later" is also that of each later version; only
    such a one may be used if "or later" is demanded. `unknown` is never allowed.
    """
    wanted = [LicenceTerm.parse(*re.split(r"(?i)\s+with\s+", each.strip(), maxsplit=1)) for each in allowed]
    try:
        return _evaluate(expression, lambda term: any(map(term.fulfils, wanted)))
    except ValueError:
        return False


def _evaluate(expression: str, allows: Callable[[LicenceTerm], bool]) -> bool:
    """Return whether the licences that `allows` accepts fulfil an SPDX expression.

    WITH binds before AND, and AND before OR. Raises `ValueError` if it is malformed.
    """
    if not expression.isprintable():
        raise ValueError("control characters")

    def evaluate_term(text: str) -> bool:
        if text.strip() in (_TRUE, _FALSE):
            return text.strip() == _TRUE
        if (found := _TERM.fullmatch(text.strip())) is None:
            raise ValueError(f"{text!r} is not a licence")
        return found[1] != UNKNOWN and allows(LicenceTerm.parse(found[1], found[2] or ""))

    def evaluate_flat(text: str) -> bool:
        choices = [[evaluate_term(term) for term in _AND.split(choice)] for choice in _OR.split(text)]
        return any(map(all, choices))

    more = 1
    while more:  # from the innermost parentheses outwards
        expression, more = _INNERMOST.subn(
            lambda found: f" {_TRUE if evaluate_flat(found[1]) else _FALSE} ", expression
        )
    return evaluate_flat(expression)


def _replace_malformed(expression: str) -> str:
    """Return an expression, `unknown` if it is malformed."""
    try:
        _evaluate(expression, lambda term: True)
    except ValueError:
        return UNKNOWN
    return expression


class LicenceFinder:
    """Finds the licences of files in one tree of a snapshot."""

    def __init__(self, snapshot: RepositorySnapshot, tree: str) -> None:
        self._snapshot, self._tree = snapshot, tree
        self._known: dict[str, str | None] = {}

    def licence_of(self, path: str, content: bytes) -> str:
        """Return the expression of a file's licence, `unknown` if there is no sign of one."""
        # A line that begins within the limit is read whole: half an expression may be another one.
        found = [each[1] for each in _SPDX.finditer(content, 0, 2 * _HEAD) if each.start() < _HEAD]
        if any(found):
            return join_licences([_replace_malformed(each.decode("ascii", "replace")) for each in found if each])
        directory = posixpath.dirname(path)
        while True:
            if (nearest := self.licence_in(directory)) is not None:
                return nearest
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
