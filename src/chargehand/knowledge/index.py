"""The index of a project's code: a file next to the depot that all trees of the project share.

Each blob is parsed once; a new tree costs its changed blobs only. The index is derived from the depot, and `gc`
may remove it like a layer of the environment.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct

from chargehand.core.errors import ChargehandError
from chargehand.knowledge import _contents
from chargehand.knowledge._database import (
    add_blob,
    database_bytes,
    find_blob,
    index_errors,
    open_database,
    remove_blobs,
    transaction,
)
from chargehand.knowledge._languages import parser_version
from chargehand.knowledge._parser_process import ParserProcess
from chargehand.knowledge._words import search_words
from chargehand.knowledge.records import MapSummary, ParsedFile, SkippedFile

if TYPE_CHECKING:
    import sqlite3

    from chargehand.core.records import Change
    from chargehand.workspace.depot import PathEntry

MAPS = "maps"  # the directory next to the depot
_BATCH = 200  # files parsed before they are written
_SLOTS = 4  # trees that can be queried without moving a slot
_REGULAR = (0o100644, 0o100755, 0o100664)
_MOST_PROCESSES = 4
_SHOWN_SKIPPED = 100
_POLL_SECONDS = 0.05  # between two looks at the lock of another process
# A slot moves to a tree that differs in at most this share of its files; otherwise a new one is filled.
_MOVED_SHARE = 0.25
# Blobs of no slot are kept for trees that come back, but only so many: their words distort which words are rare.
_MOST_UNUSED = 200


class TreeSource(Protocol):
    """Where the index reads trees and blobs: a `Depot`."""

    def entries(self, tree: str) -> Sequence[PathEntry]:
        """Return all entries of a tree."""
        ...

    def diff(self, old: str, new: str) -> Sequence[Change]:
        """Return the paths that differ between two trees."""
        ...

    def blob_size(self, id: str) -> int:
        """Return a blob's size in bytes."""
        ...

    def read_blob(self, id: str) -> bytes:
        """Return a blob's content."""
        ...


class _TreeFile(Struct, frozen=True):
    """A file of a tree that the map is about; `kind` is its language or one of `_contents`."""

    path: str
    oid: str
    kind: str


class _Edits(Struct, frozen=True):
    """The difference from a slot's tree (`None`: from nothing) to the wanted one."""

    slot: int | None
    removed: list[str]
    added: list[_TreeFile]


class CodeIndex:
    """The index of one project, in `root` next to its depot. Safe to use from several threads and processes.

    `progress` gets the numbers of parsed files and of all to parse, now and then. Raises `MapError` if the index
    cannot be read or written.
    """

    def __init__(
        self,
        root: Path,
        source: TreeSource,
        *,
        seconds: float = 5.0,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.source = source
        self._progress = progress
        self._name = parser_version()
        self._root = root
        self.directory = root / MAPS / self._name
        self.path = self.directory / "index.sqlite"
        self._seconds = seconds
        self._parsers: list[ParserProcess] = []
        self._lock = threading.RLock()
        self._stop = threading.Event()  # ends work of other threads early, so that `close` returns soon
        self._connection: sqlite3.Connection | None = None

    def __enter__(self) -> CodeIndex:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the parser processes and close the file; a thread that brings a tree stops after its next file."""
        self._stop.set()
        with self._lock:
            self._stop.clear()
            for parser in self._parsers:
                parser.close()
            self._parsers.clear()
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @property
    def connection(self) -> sqlite3.Connection:
        """The open database. Raises `OSError` if the project's directory was removed."""
        if self._connection is None:
            self.directory.parent.mkdir(exist_ok=True)
            self._connection = open_database(self.path, self._root / "locks" / "maps.lock")
        return self._connection

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Hold the index for one query: it sees one state of it throughout."""
        with self._lock, index_errors(), transaction(self.connection, write=False):
            yield self.connection

    def find_slot(self, tree: str) -> int | None:
        """Return the slot that holds a tree, `None` if it must be brought first."""
        found = self.connection.execute("SELECT id FROM slot WHERE tree = ?", (tree,)).fetchone()
        return None if found is None else int(found[0])

    # --- bringing a tree into the index

    def bring(self, tree: str, *, seconds: float | None = None) -> MapSummary:
        """Bring a tree into the index, parsing the blobs that are new to it.

        After `seconds` it stops with an incomplete summary; parsed blobs are kept for the next call. Another
        process that does the same is waited for. Raises `MapError`, and the depot's errors for an unknown tree.
        """
        began = time.monotonic()
        deadline = None if seconds is None else began + seconds
        parsed = 0
        with self._lock, index_errors():
            if self.find_slot(tree) is None or self._failed_files(tree):
                with self._writing(deadline) as allowed:
                    parsed = self._fill(tree, deadline) if allowed else 0
            return self._summary(tree, parsed, time.monotonic() - began)

    @contextmanager
    def _writing(self, deadline: float | None) -> Iterator[bool]:
        """Hold the lock of the index, which `gc` respects too; yield whether it was had in time."""
        place = self._root / "locks" / f"layer-{self._name}.lock"
        place.parent.mkdir(exist_ok=True)
        fd = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not self._lock_until(fd, deadline):
                yield False
                return
            # Another process may have removed the file since it was opened.
            if self._connection is not None and not self.path.exists():
                self._connection.close()
                self._connection = None
            yield True
            meta = {"disk": database_bytes(self.path)}
            (self.directory / "meta.json").write_bytes(msgspec.json.encode(meta))
        finally:
            os.close(fd)

    def _lock_until(self, fd: int, deadline: float | None) -> bool:
        """Take an exclusive lock; return `False` if another process holds it until the deadline."""
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                if self._stop.wait(_POLL_SECONDS):
                    return False
            else:
                return True

    def _fill(self, tree: str, deadline: float | None) -> int:
        """Parse the new files of a tree and give it a slot, unless time runs out; return the number of files."""
        if self.find_slot(tree) is not None:  # or another process brought it while this one waited
            return self._parse_files(self._failed_files(tree), deadline) or 0
        edits = self._compare(tree)
        parsed = self._parse_files([file for file in edits.added if self._find(file) is None], deadline)
        if parsed is not None:
            with transaction(self.connection):
                self._move_slot(tree, edits)
                self._prune()
        return parsed or 0

    def _failed_files(self, tree: str) -> list[_TreeFile]:
        """Return the files of a tree whose parsing failed in a way that may pass."""
        rows = self.connection.execute(
            "SELECT path, hex(oid), language FROM blob "  # in this order of tables, for the index of failed blobs
            "CROSS JOIN file ON file.slot = ? AND file.blob = blob.id WHERE tries > 0",
            (self.find_slot(tree),),
        )
        return [_TreeFile(os.fsdecode(path), oid.lower(), kind) for path, oid, kind in rows]

    def _compare(self, tree: str) -> _Edits:
        """Return the way to a tree from the last used slot, or from nothing if that is shorter."""
        row = self.connection.execute("SELECT id, tree, files FROM slot ORDER BY used DESC LIMIT 1").fetchone()
        if row is not None:
            slot, old, count = row
            changes: Sequence[Change] | None = None
            with suppress(ChargehandError):  # the old tree's objects may be gone; the new one's are read below
                changes = self.source.diff(old, tree)
            if changes is not None and len(changes) <= max(20, _MOVED_SHARE * count):
                gone = [change.path for change in changes if change.old_id is not None]
                new = ((each.path, each.new_mode, each.new_id) for each in changes)
                return _Edits(slot, gone, list(_select_files(new)))
        everything = ((each.path, each.mode, each.id) for each in self.source.entries(tree))
        return _Edits(None, [], list(_select_files(everything)))

    def _parse_files(self, files: Sequence[_TreeFile], deadline: float | None) -> int | None:
        """Parse files and write their blobs; return the number, `None` if time ran out."""
        missing = list({(file.oid, file.kind): file for file in files}.values())
        processes = min(_MOST_PROCESSES, os.cpu_count() or 1, -(-len(missing) // 20))
        while len(self._parsers) < processes:
            self._parsers.append(ParserProcess(seconds=self._seconds))
        batches = [missing[start : start + _BATCH] for start in range(0, len(missing), _BATCH)]
        written = 0
        with ThreadPoolExecutor(max(1, processes)) as pool:
            under_way = self._start_batch(pool, batches[0], deadline) if batches else []
            for following in [*batches[1:], []]:
                done = [pair for files, share in under_way for pair in zip(files, share.result(), strict=False)]
                cut = len(done) < sum(len(files) for files, _ in under_way)
                # The next batch is parsed while this one is written.
                under_way = [] if cut else self._start_batch(pool, following, deadline)
                with transaction(self.connection):
                    for file, parsed in done:
                        add_blob(self.connection, bytes.fromhex(file.oid), file.kind, parsed)
                written += len(done)
                if self._progress is not None:
                    self._progress(written, len(missing))
                if cut:
                    return None
        while len(self._parsers) > 1:  # one stays, for the few files that the next tree changes
            self._parsers.pop().close()
        return len(missing)

    def _start_batch(
        self, pool: ThreadPoolExecutor, batch: Sequence[_TreeFile], deadline: float | None
    ) -> list[tuple[Sequence[_TreeFile], Future[list[ParsedFile]]]]:
        """Start to parse the shares of a batch, one for each process."""
        shares = [(parser, batch[number :: len(self._parsers)]) for number, parser in enumerate(self._parsers)]
        return [(share, pool.submit(self._parse_share, parser, share, deadline)) for parser, share in shares]

    def _parse_share(
        self, parser: ParserProcess, files: Sequence[_TreeFile], deadline: float | None
    ) -> list[ParsedFile]:
        """Parse files one after the other until the deadline."""
        done: list[ParsedFile] = []
        for file in files:
            if self._stop.is_set() or (deadline is not None and time.monotonic() > deadline):
                break
            done.append(self._parse(parser, file))
        return done

    def _parse(self, parser: ParserProcess, file: _TreeFile) -> ParsedFile:
        if not file.kind:
            return ParsedFile()
        if (size := self.source.blob_size(file.oid)) > 2 * _contents.LONGEST_SOURCE:  # UTF-16 takes two bytes
            return ParsedFile(skipped=f"it has {size} bytes")
        content = _contents.to_utf8(self.source.read_blob(file.oid))
        language = _contents.script_language(content) if file.kind == _contents.SCRIPT else file.kind
        if language is None:
            return ParsedFile()
        if language == _contents.TEXT:
            return _contents.parse_text(content)
        reason = _contents.reason_to_skip(content)
        return ParsedFile(skipped=reason) if reason else parser.parse(language, content)

    def _find(self, file: _TreeFile) -> int | None:
        return find_blob(self.connection, bytes.fromhex(file.oid), file.kind)

    # --- slots

    def _move_slot(self, tree: str, edits: _Edits) -> None:
        """Make a slot hold a tree."""
        run = self.connection.execute
        (used,) = run("SELECT coalesce(max(used), 0) + 1 FROM slot").fetchone()
        slot = edits.slot
        if slot is None:
            for (old,) in run(
                "SELECT id FROM slot ORDER BY used DESC LIMIT -1 OFFSET ?", (_SLOTS - 1,)
            ).fetchall():
                run("DELETE FROM paths WHERE rowid IN (SELECT id FROM file WHERE slot = ?)", (old,))
                run("DELETE FROM file WHERE slot = ?", (old,))
                run("DELETE FROM slot WHERE id = ?", (old,))
            slot = run("INSERT INTO slot (tree, used, files) VALUES (?, ?, 0)", (tree, used)).lastrowid
        count = len(edits.added)
        for path in edits.removed:
            name = os.fsencode(path)
            for (file,) in run("SELECT id FROM file WHERE slot = ? AND path = ?", (slot, name)).fetchall():
                run("DELETE FROM paths WHERE rowid = ?", (file,))
                run("DELETE FROM file WHERE id = ?", (file,))
                count -= 1  # not for links and submodules, which have no row
        for added in edits.added:
            values = (slot, os.fsencode(added.path), self._find(added))
            file = run("INSERT INTO file (slot, path, blob) VALUES (?, ?, ?)", values).lastrowid
            words = " ".join(search_words(added.path.encode("utf-8", "replace").decode()))
            run("INSERT INTO paths (rowid, path) VALUES (?, ?)", (file, words))
        run(
            "UPDATE slot SET tree = ?, used = ?, files = files + ? WHERE id = ?",
            (tree, used, count, slot),
        )

    def _prune(self) -> None:
        """Remove the oldest blobs that no slot holds, if there are many."""
        run = self.connection.execute
        (blobs,) = run("SELECT count(*) FROM blob").fetchone()
        (held,) = run("SELECT max(files) FROM slot").fetchone()
        if blobs <= held + _MOST_UNUSED:
            return
        unused = run(
            "SELECT id FROM blob WHERE NOT EXISTS (SELECT 1 FROM file WHERE file.blob = blob.id) ORDER BY id"
        ).fetchall()
        if len(unused) > _MOST_UNUSED:
            remove_blobs(self.connection, (blob for (blob,) in unused[: -_MOST_UNUSED // 2]))

    def _summary(self, tree: str, parsed: int, seconds: float) -> MapSummary:
        files, skipped = 0, list[SkippedFile]()
        slot = self.find_slot(tree)
        if slot is not None:
            with suppress(OSError):  # `gc` takes its time as that of the last use
                os.utime(self.directory / "meta.json")
            (files,) = self.connection.execute("SELECT files FROM slot WHERE id = ?", (slot,)).fetchone()
            if parsed or self._failed_files(tree):
                skipped = self.skipped(tree)
        return MapSummary(
            tree=tree, files=files, parsed=parsed, seconds=seconds, complete=slot is not None,
            skipped=tuple(skipped[:_SHOWN_SKIPPED]), skipped_left_out=len(skipped[_SHOWN_SKIPPED:]),
        )  # fmt: skip

    def skipped(self, tree: str) -> list[SkippedFile]:
        """Return the files of a tree that were not parsed, by path."""
        rows = self.connection.execute(
            "SELECT path, skipped || iif(tries, ' (it is tried again)', '') "
            "FROM blob JOIN file ON file.blob = blob.id WHERE slot = ? AND skipped <> '' ORDER BY path",
            (self.find_slot(tree),),
        )
        return [SkippedFile(path=os.fsdecode(path), reason=reason) for path, reason in rows]


def _select_files(entries: Iterable[tuple[str, int | None, str | None]]) -> Iterator[_TreeFile]:
    """Yield the regular files among entries; links and submodules are no files of the tree."""
    for path, mode, oid in entries:
        if oid is not None and mode in _REGULAR:
            yield _TreeFile(path, oid, _contents.kind_of(path, mode))
