"""The graph of a tree's files and names, read from the index as far as a query needs it."""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

# A name that more files define says nothing about which file is meant.
MOST_DEFINERS = 20
_MOST_USERS = 100  # files that refer to one name, when its definers' neighbours are searched


class DefinitionRow(Struct, frozen=True):
    """A definition with the file and blob that it is in."""

    file: int
    path: str
    blob: int
    position: int
    name: str
    kind: str
    qualified: str
    line: int
    end_line: int
    signature: str


class ReferenceRow(Struct, frozen=True):
    """A reference with its file, and the position of the definition around it, -1 without one."""

    file: int
    path: str
    blob: int
    kind: str
    line: int
    within: int


_DEFINITION = (
    "file.id, file.path, d.blob, d.position, name.text, d.kind, d.qualified, d.line, d.end_line, d.signature "
)


class CodeGraph:
    """Reads one slot of the index inside a reading transaction.

    `CROSS JOIN` fixes the order of the tables: without it SQLite may ask the full-text index once for each file.
    """

    def __init__(self, connection: sqlite3.Connection, slot: int) -> None:
        self._run = connection.execute
        self.slot = slot
        self.files: int = self._run("SELECT files FROM slot WHERE id = ?", (slot,)).fetchone()[0]
        self.neighbours = lru_cache(None)(self._read_neighbours)

    def path_of(self, file: int) -> str:
        """Return the path of a file."""
        (path,) = self._run("SELECT path FROM file WHERE id = ?", (file,)).fetchone()
        return os.fsdecode(path)

    def oid_of(self, blob: int) -> bytes:
        """Return the git id of a blob."""
        (oid,) = self._run("SELECT oid FROM blob WHERE id = ?", (blob,)).fetchone()
        return bytes(oid)

    def files_at(self, path: str) -> list[int]:
        """Return the file at a path, or the files below it; "" is the top."""
        name = os.fsencode(path.strip("/"))
        if not name:
            rows = self._run("SELECT id FROM file WHERE slot = ? ORDER BY path", (self.slot,))
            return [file for (file,) in rows]
        rows = self._run(
            "SELECT id FROM file WHERE slot = ? AND (path = ? OR (path >= ? AND path < ?)) ORDER BY path",
            (self.slot, name, name + b"/", name + b"0"),
        )
        return [file for (file,) in rows]

    def files_named(self, end: str) -> list[int]:
        """Return the files whose path ends with the parts of `end`, at most a few."""
        name = os.fsencode(end.strip("/"))
        rows = self._run(
            "SELECT id FROM file WHERE slot = ? AND (path = ? OR substr(path, -?) = ?) ORDER BY path LIMIT 20",
            (self.slot, name, len(name) + 1, b"/" + name),
        )
        return [file for (file,) in rows]

    def definitions_in(self, file: int) -> list[DefinitionRow]:
        """Return the definitions of a file in their order."""
        rows = self._run(
            f"SELECT {_DEFINITION} FROM file JOIN definition d ON d.blob = file.blob "
            "JOIN name ON name.id = d.name WHERE file.id = ? ORDER BY d.position",
            (file,),
        )
        return [_definition(row) for row in rows]

    def definitions_of(self, name: str, *, most: int = -1) -> list[DefinitionRow]:
        """Return the definitions of a name, by path and line; all if `most` is negative."""
        rows = self._run(
            f"SELECT {_DEFINITION} FROM name CROSS JOIN definition d ON d.name = name.id "
            "CROSS JOIN file ON file.slot = ? AND file.blob = d.blob WHERE name.text = ? "
            "ORDER BY file.path, d.line LIMIT ?",
            (self.slot, name, most),
        )
        return [_definition(row) for row in rows]

    def references_to(self, name: str) -> list[ReferenceRow]:
        """Return the references to a name, by path and line."""
        rows = self._run(
            "SELECT file.id, file.path, r.blob, r.kind, r.line, r.within FROM name "
            "CROSS JOIN reference r ON r.name = name.id CROSS JOIN file ON file.slot = ? AND file.blob = r.blob "
            "WHERE name.text = ? ORDER BY file.path, r.line",
            (self.slot, name),
        )
        return [ReferenceRow(row[0], os.fsdecode(row[1]), *row[2:]) for row in rows]

    def definition_at(self, file: int, position: int) -> DefinitionRow | None:
        """Return the definition of a file at a position of its list."""
        row = self._run(
            f"SELECT {_DEFINITION} FROM file JOIN definition d ON d.blob = file.blob "
            "JOIN name ON name.id = d.name WHERE file.id = ? AND d.position = ?",
            (file, position),
        ).fetchone()
        return None if row is None else _definition(row)

    def match_words(self, words: Sequence[str], *, most: int) -> dict[int, float]:
        """Return the files whose content matches words best, with their BM25 scores (higher is better)."""
        common = [word for word in words if self._share(word) <= self._common_share()]
        if not common:
            return {}
        rows = self._run(
            "SELECT file.id, -bm25(words, 4.0, 1.0) AS score FROM words "
            "CROSS JOIN file ON file.slot = ? AND file.blob = words.rowid "
            "WHERE words MATCH ? ORDER BY score DESC, file.path LIMIT ?",
            (self.slot, _any_of(common), most),
        )
        return dict(rows.fetchall())

    def count_contents(self) -> int:
        """Return the number of contents in the full-text index."""
        (count,) = self._run("SELECT count(*) FROM words_docsize").fetchone()
        return int(count)

    def match_word(self, word: str) -> tuple[int, dict[int, float]]:
        """Return how many contents have a word, and the saturated frequency in each file of the tree (0 to 2.2).

        It is the factor of BM25 that the rarity of the word is multiplied by, so that indexes can be compared.
        """
        count = self._run("SELECT count(*) FROM words WHERE words MATCH ?", (f'"{word}"',)).fetchone()[0]
        if not count:
            return 0, {}
        # The rarity by which SQLite multiplies: https://www.sqlite.org/fts5.html#the_bm25_function
        rarity = max(1e-6, math.log((self.count_contents() - count + 0.5) / (count + 0.5)))
        rows = self._run(
            "SELECT file.id, -bm25(words, 4.0, 1.0) / ? FROM words "
            "CROSS JOIN file ON file.slot = ? AND file.blob = words.rowid WHERE words MATCH ?",
            (rarity, self.slot, f'"{word}"'),
        )
        return count, dict(rows.fetchall())

    def match_paths(self, words: Sequence[str], *, most: int) -> dict[int, float]:
        """Return the files whose paths match words best, with their BM25 scores."""
        if not words:
            return {}
        rows = self._run(
            "SELECT file.id, -bm25(paths) AS score FROM paths "
            "CROSS JOIN file ON file.slot = ? AND file.id = paths.rowid "
            "WHERE paths MATCH ? ORDER BY score DESC, file.path LIMIT ?",
            (self.slot, _any_of(words), most),
        )
        return dict(rows.fetchall())

    def _share(self, word: str) -> float:
        """Return the share of the indexed contents that have a word, or another word with its beginning."""
        # The index holds stems: the word without some of its end, at times with an i for its y.
        stems = [word, word[:-1], word[:-2], word[:-3], f"{word[:-1]}i"]
        found = self._run("SELECT max(doc) FROM terms WHERE term IN (?, ?, ?, ?, ?)", stems).fetchone()
        most: int = found[0] or 0
        return most / max(1, self.files)

    def _common_share(self) -> float:
        # In a large tree a word of so many files decides nothing, and its list takes long to read.
        return math.inf if self.files < 500 else 0.3

    def _read_neighbours(self, file: int) -> Mapping[int, float]:
        """Return the files that define the names used in a file, and those that use the names defined in it.

        Weights add up over names; a name with several definers counts less, and so does one with many users.
        """
        found: dict[int, float] = {}
        for rows, scale in ((self._uses(file), 1.0), (self._users(file), 0.7)):
            by_name: dict[int, list[tuple[int, int]]] = {}
            for name, other, count in rows:
                by_name.setdefault(name, []).append((other, count))
            for others in by_name.values():
                for other, count in others:
                    if other != file:
                        found[other] = found.get(other, 0.0) + scale * math.sqrt(count) / len(others)
        return found

    def _uses(self, file: int) -> list[tuple[int, int, int]]:
        return self._run(
            "SELECT used.name, other.id, used.uses FROM ("
            "  SELECT r.name AS name, count(*) AS uses FROM file JOIN reference r ON r.blob = file.blob"
            "  WHERE file.id = :file GROUP BY r.name"
            ") used CROSS JOIN definition d ON d.name = used.name AND d.kind NOT IN ('field', 'constant') "
            "CROSS JOIN file other ON other.slot = :slot AND other.blob = d.blob "
            "WHERE NOT EXISTS (SELECT 1 FROM definition e WHERE e.name = used.name LIMIT 1 OFFSET :most) "
            "GROUP BY used.name, other.id ORDER BY other.path, used.name",
            {"file": file, "slot": self.slot, "most": MOST_DEFINERS},
        ).fetchall()

    def _users(self, file: int) -> list[tuple[int, int, int]]:
        return self._run(
            "SELECT own.name, other.id, 1 FROM ("
            "  SELECT DISTINCT d.name AS name FROM file JOIN definition d ON d.blob = file.blob"
            "  WHERE file.id = :file AND d.kind NOT IN ('field', 'constant')"
            ") own CROSS JOIN reference r ON r.name = own.name "
            "CROSS JOIN file other ON other.slot = :slot AND other.blob = r.blob "
            "WHERE NOT EXISTS (SELECT 1 FROM definition e WHERE e.name = own.name LIMIT 1 OFFSET :most) "
            "AND NOT EXISTS (SELECT 1 FROM reference e WHERE e.name = own.name LIMIT 1 OFFSET :users) "
            "GROUP BY own.name, other.id ORDER BY other.path, own.name",
            {"file": file, "slot": self.slot, "most": MOST_DEFINERS, "users": _MOST_USERS},
        ).fetchall()


def _definition(row: tuple[int, bytes, int, int, str, str, str, int, int, str]) -> DefinitionRow:
    return DefinitionRow(row[0], os.fsdecode(row[1]), *row[2:])


def _any_of(words: Sequence[str]) -> str:
    """Return the expression of FTS5 for any of the words."""
    return " OR ".join(f'"{word}"' for word in words)
