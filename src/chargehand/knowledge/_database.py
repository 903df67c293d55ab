"""The file of the index: SQLite with full-text search. It is derived from git's objects and may be removed.

A blob's rows are written once, in one transaction. A slot holds the files of one tree; it moves to another tree in
one transaction, so that a reader sees one tree or the other.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from chargehand.knowledge.records import MapError, ParsedFile

_SCHEMA = """
CREATE TABLE blob (
    id INTEGER PRIMARY KEY, oid BLOB NOT NULL, language TEXT NOT NULL, skipped TEXT NOT NULL,
    tries INTEGER NOT NULL,  -- failures that may come from the machine's load; 0 if the row is final
    UNIQUE (oid, language)
);
CREATE INDEX blob_tried ON blob (id) WHERE tries > 0;
CREATE TABLE name (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE definition (
    blob INTEGER NOT NULL, position INTEGER NOT NULL, name INTEGER NOT NULL, kind TEXT NOT NULL,
    qualified TEXT NOT NULL, line INTEGER NOT NULL, end_line INTEGER NOT NULL, signature TEXT NOT NULL,
    PRIMARY KEY (blob, position)
) WITHOUT ROWID;
CREATE INDEX definition_name ON definition (name, blob);
CREATE TABLE reference (
    blob INTEGER NOT NULL, position INTEGER NOT NULL, name INTEGER NOT NULL, kind TEXT NOT NULL,
    line INTEGER NOT NULL, within INTEGER NOT NULL,
    PRIMARY KEY (blob, position)
) WITHOUT ROWID;
CREATE INDEX reference_name ON reference (name, blob, kind);
CREATE TABLE slot (
    id INTEGER PRIMARY KEY, tree TEXT NOT NULL UNIQUE, used INTEGER NOT NULL, files INTEGER NOT NULL
);
CREATE TABLE file (
    id INTEGER PRIMARY KEY, slot INTEGER NOT NULL, path BLOB NOT NULL, blob INTEGER NOT NULL,
    UNIQUE (slot, path)
);
CREATE INDEX file_blob ON file (slot, blob);
CREATE INDEX file_of_blob ON file (blob);
CREATE VIRTUAL TABLE words USING fts5 (
    symbols, text, tokenize = "porter unicode61 remove_diacritics 2 tokenchars '_'"
);
CREATE VIRTUAL TABLE paths USING fts5 (path, tokenize = "porter unicode61 tokenchars '_'");
CREATE VIRTUAL TABLE terms USING fts5vocab (words, row);
"""
_BUSY_SECONDS = 30.0
_SCHEMA_VERSION = 1
_MOST_TRIES = 3


def open_database(path: Path, lock: Path) -> sqlite3.Connection:
    """Open the index, making it if missing; an unreadable file is replaced.

    All processes that open the file use the same `lock`. The directory above that of the index must exist.
    Raises `MapError` if the disk refuses it.
    """
    try:
        path.parent.mkdir(exist_ok=True)
        # SQLite does not wait if two connections change to a write-ahead log at once: one of them fails. And an
        # unreadable file must be replaced once only, or the second process removes the file of the first.
        lock.parent.mkdir(exist_ok=True)
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            return _open(path)
        except sqlite3.DatabaseError as problem:
            if isinstance(problem, sqlite3.OperationalError):
                raise
            # Not a database, or a damaged one: its content can be had again.
            remove_database(path)
            return _open(path)
        finally:
            os.close(fd)
    except (OSError, sqlite3.Error) as problem:
        raise MapError(f"the index of the repository map cannot be opened: {problem}") from problem


def remove_database(path: Path) -> None:
    """Remove the index and its log files."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        # A power cut may lose the newest rows, never the file's consistency: they are read again.
        connection.executescript(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA temp_store = MEMORY"
        )
        connection.execute("PRAGMA mmap_size = 268435456")
        if _version(connection) != _SCHEMA_VERSION:
            with transaction(connection):
                for statement in _SCHEMA.split(";\n"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
    except BaseException:
        connection.close()
        raise
    return connection


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


@contextmanager
def transaction(connection: sqlite3.Connection, *, write: bool = True) -> Iterator[None]:
    """Run a block in one transaction; a reading one sees one state of the index throughout."""
    connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextmanager
def index_errors() -> Iterator[None]:
    """Turn the errors of SQLite and the disk in a block into `MapError`."""
    try:
        yield
    except (OSError, sqlite3.Error) as problem:
        hint = "remove the directory 'maps' of the project's state: the index is made again"
        raise MapError(f"the index of the repository map failed: {problem}", hint=hint) from problem


def add_blob(connection: sqlite3.Connection, oid: bytes, language: str, parsed: ParsedFile) -> int:
    """Write the content of one blob inside a transaction; return its row. A final one stays as it is."""
    run = connection.execute
    known = run("SELECT id, tries FROM blob WHERE oid = ? AND language = ?", (oid, language)).fetchone()
    if known is not None and not known[1]:
        return int(known[0])
    tries = (1 if known is None else known[1] + 1) if parsed.transient else 0
    blob: int
    (blob,) = run(
        "INSERT INTO blob (oid, language, skipped, tries) VALUES (?, ?, ?, ?) "
        "ON CONFLICT DO UPDATE SET skipped = excluded.skipped, tries = excluded.tries RETURNING id",
        (oid, language, parsed.skipped, tries if tries < _MOST_TRIES else 0),
    ).fetchone()
    names = _name_ids(
        connection, {each.name for each in parsed.definitions} | {each.name for each in parsed.references}
    )
    connection.executemany(
        "INSERT INTO definition VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            (blob, position, names[each.name], each.kind, each.qualified, each.line, each.end_line, each.signature)
            for position, each in enumerate(parsed.definitions)
        ),
    )
    connection.executemany(
        "INSERT INTO reference VALUES (?, ?, ?, ?, ?, ?)",
        (
            (blob, position, names[each.name], each.kind, each.line, each.within)
            for position, each in enumerate(parsed.references)
        ),
    )
    if parsed.words or parsed.symbols:
        connection.execute(
            "INSERT INTO words (rowid, symbols, text) VALUES (?, ?, ?)", (blob, parsed.symbols, parsed.words)
        )
    return blob


def find_blob(connection: sqlite3.Connection, oid: bytes, language: str) -> int | None:
    """Return the row of a blob, `None` if it is not in the index."""
    found = connection.execute("SELECT id FROM blob WHERE oid = ? AND language = ?", (oid, language)).fetchone()
    return None if found is None else int(found[0])


def _name_ids(connection: sqlite3.Connection, names: Iterable[str]) -> dict[str, int]:
    made: dict[str, int] = {}
    for name in sorted(names):
        found = connection.execute("SELECT id FROM name WHERE text = ?", (name,)).fetchone()
        if found is None:
            found = connection.execute("INSERT INTO name (text) VALUES (?) RETURNING id", (name,)).fetchone()
        made[name] = int(found[0])
    return made


def remove_blobs(connection: sqlite3.Connection, blobs: Iterable[int]) -> None:
    """Remove the rows of blobs inside a transaction."""
    for blob in blobs:
        for table, column in (("definition", "blob"), ("reference", "blob"), ("words", "rowid"), ("blob", "id")):
            connection.execute(f"DELETE FROM {table} WHERE {column} = ?", (blob,))


def database_bytes(path: Path) -> int:
    """Return the bytes that the index takes on disk."""
    total = 0
    for suffix in ("", "-wal", "-shm"):
        try:
            total += os.stat(path.with_name(path.name + suffix)).st_blocks * 512
        except FileNotFoundError:
            continue
    return total
