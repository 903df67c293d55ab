"""Finds the position of each key in a TOML text: `tomllib` gives values, not positions.

The scanner expects a text that `tomllib` has accepted; it never decides whether a text is valid.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from typing import Literal

from msgspec import Struct

from chargehand.core.text import late_pattern

Path = tuple[str, ...]
_BLANK = late_pattern(r"[ \t]*")
_BLANK_LINES = late_pattern(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE = late_pattern(r"[A-Za-z0-9_-]+")
# A closing delimiter may be preceded by up to two quotes that belong to the string.
_STRING = late_pattern(
    r'"""(?:\\.|[^\\])*?"{3,5}' r"|'''.*?'{3,5}" r'|"(?:\\.|[^"\\\n])*"' r"|'[^'\n]*'",
    re.DOTALL,
)
_SCALAR = late_pattern(r"[^,\]}#\r\n]+")


class TomlEntry(Struct, frozen=True, kw_only=True):
    """One header (`table`, or `array` for `[[…]]`), one `key = value` line, or one key of an inline table.

    `start` is the offset of the entry, `value` and `end` those of its value (for a header, of its whole text);
    `header` is the table in force.
    """

    kind: Literal["table", "array", "line", "inline"]
    path: Path
    header: Path
    line: int
    start: int
    value: int
    end: int


class _LostError(Exception):
    """The scanner does not understand the text."""


def scan(text: str) -> tuple[TomlEntry, ...]:
    """Return every entry in order; return nothing if the scanner fails."""
    scanner = _Scanner(text)
    try:
        scanner.document()
    except (_LostError, RecursionError):
        return ()
    return tuple(scanner.entries)


def key_lines(text: str) -> dict[Path, int]:
    """Return the line, from 1, on which each key or table is first named."""
    lines: dict[Path, int] = {}
    for entry in scan(text):
        base = len(entry.header) if entry.kind == "line" else 0
        # Real keys have three parts at most; all prefixes of one with thousands would be quadratic.
        for length in range(base + 1, min(len(entry.path), base + 8) + 1):
            lines.setdefault(entry.path[:length], entry.line)
        lines.setdefault(entry.path, entry.line)
    return lines


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.entries: list[TomlEntry] = []
        self._header: Path = ()
        # Looked up by bisection: counting from the start for each entry would be quadratic.
        self._newlines = [match.start() for match in re.finditer("\n", text)]

    def document(self) -> None:
        self._skip(_BLANK_LINES)
        while self.at < len(self.text):
            if self._next() == "[":
                start = self.at
                double = self.text.startswith("[[", start)
                self._take("[[" if double else "[")
                path = self._path()
                self._take("]]" if double else "]")
                self._header = path
                self._add("array" if double else "table", path, start=start, value=start, place=len(self.entries))
            else:
                self._assignment(self._header, "line")
            self._skip(_BLANK_LINES)

    def _next(self) -> str:
        return self.text[self.at : self.at + 1]

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise _LostError
        self.at = match.end()
        return match.group()

    def _take(self, mark: str) -> None:
        self._skip(_BLANK)
        if not self.text.startswith(mark, self.at):
            raise _LostError
        self.at += len(mark)

    def _add(
        self, kind: Literal["table", "array", "line", "inline"], path: Path, *, start: int, value: int, place: int
    ) -> None:
        line = bisect_right(self._newlines, start) + 1
        entry = TomlEntry(
            kind=kind, path=path, header=self._header, line=line, start=start, value=value, end=self.at
        )
        # Before the keys of its inline table, which the scanner added while it read the value.
        self.entries.insert(place, entry)

    def _path(self) -> Path:
        parts = []
        while True:
            self._skip(_BLANK)
            quoted = self._next() in {'"', "'"}
            part = self._skip(_STRING if quoted else _BARE)
            parts.append(str(tomllib.loads(f"key = {part}")["key"]) if quoted else part)
            self._skip(_BLANK)
            if self._next() != ".":
                return tuple(parts)
            self.at += 1

    def _assignment(self, prefix: Path, kind: Literal["line", "inline"]) -> None:
        start = self.at
        place = len(self.entries)
        path = prefix + self._path()
        self._take("=")
        self._skip(_BLANK)
        value = self.at
        self._value(path)
        self._add(kind, path, start=start, value=value, place=place)

    def _value(self, path: Path) -> None:
        first = self._next()
        if first in {'"', "'"}:
            self._skip(_STRING)
        elif first in {"[", "{"}:
            closing = "]" if first == "[" else "}"
            self.at += 1
            self._skip(_BLANK_LINES)
            while self._next() != closing:
                if first == "[":
                    self._value(path)
                else:
                    self._assignment(path, "inline")
                self._skip(_BLANK_LINES)
                if self._next() == ",":
                    self.at += 1
                elif self._next() != closing:
                    raise _LostError
                self._skip(_BLANK_LINES)
            self.at += 1
        else:
            start = self.at
            self.at = start + len(self._skip(_SCALAR).rstrip())
