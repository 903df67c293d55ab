"""The interface through which inspection reads trees; any object store can implement it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Protocol

from chargehand.core.records import Change, ChangeKind

# Bytes above which a file is not read as source: no hand-written test or configuration is larger.
MAX_TEXT = 2_000_000
_REGULAR = frozenset({0o100644, 0o100755, 0o100664})


class TreeReader(Protocol):
    """Trees and blobs by git's ids; paths are `str` as `os.fsdecode` gives them, modes git's."""

    def entries(self, tree: str, /) -> Iterable[tuple[str, int, str]]:
        """Return every (path, mode, id) below `tree`, directories left out."""
        ...

    def lookup(self, tree: str, path: str, /) -> tuple[int, str] | None:
        """Return (mode, id) of `path` in `tree`, or `None` if there is no such entry."""
        ...

    def read_blob(self, id: str, /, *, limit: int | None = None) -> bytes:
        """Return the blob's content, at most `limit` bytes of it."""
        ...

    def blob_size(self, id: str, /) -> int:
        """Return the blob's size in bytes without reading it."""
        ...


class MemoryTrees:
    """A `TreeReader` that keeps its trees in memory: for tests and for trying rules on made-up trees."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}
        self._trees: dict[str, dict[str, tuple[int, str]]] = {}

    def add(self, files: Mapping[str, str | bytes], *, modes: Mapping[str, int] | None = None) -> str:
        """Store a tree of `files` (path to content) and return its id; `modes` lists those other than 0o100644."""
        entries: dict[str, tuple[int, str]] = {}
        for path, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            blob = hashlib.sha1(data, usedforsecurity=False).hexdigest()
            self._blobs[blob] = data
            entries[path] = ((modes or {}).get(path, 0o100644), blob)
        tree = hashlib.sha1(repr(sorted(entries.items())).encode(), usedforsecurity=False).hexdigest()
        self._trees[tree] = entries
        return tree

    def changes(self, old: str, new: str) -> tuple[Change, ...]:
        """Return the changes between two stored trees, by path."""
        before, after = self._trees[old], self._trees[new]
        paths = sorted({*before, *after})
        found = []
        for path in paths:
            old_mode, old_id = before.get(path, (None, None))
            new_mode, new_id = after.get(path, (None, None))
            if (old_mode, old_id) == (new_mode, new_id):
                continue
            same_type = is_regular(old_mode) == is_regular(new_mode)
            kind: ChangeKind = "modified" if same_type else "type_changed"
            if old_id is None or new_id is None:
                kind = "added" if old_id is None else "deleted"
            found.append(
                Change(path=path, kind=kind, old_mode=old_mode, new_mode=new_mode, old_id=old_id, new_id=new_id)
            )
        return tuple(found)

    def entries(self, tree: str, /) -> Iterable[tuple[str, int, str]]:
        """Return every (path, mode, id) of the tree."""
        return [(path, *entry) for path, entry in self._trees[tree].items()]

    def lookup(self, tree: str, path: str, /) -> tuple[int, str] | None:
        """Return (mode, id) of one path, or `None`."""
        return self._trees[tree].get(path)

    def read_blob(self, id: str, /, *, limit: int | None = None) -> bytes:
        """Return the content, at most `limit` bytes."""
        return self._blobs[id][:limit]

    def blob_size(self, id: str, /) -> int:
        """Return the size in bytes."""
        return len(self._blobs[id])


def is_regular(mode: int | None) -> bool:
    """Return whether a mode is a regular file's: symlinks and submodules have no source to read."""
    return mode in _REGULAR


def old_text(reader: TreeReader, change: Change) -> str | None:
    """Return the file before the change as text, `None` if it was absent, not a regular file or too large."""
    return text_of(reader, change.old_mode, change.old_id)


def new_text(reader: TreeReader, change: Change) -> str | None:
    """Return the file after the change as text, `None` if it is absent, not a regular file or too large."""
    return text_of(reader, change.new_mode, change.new_id)


def text_of(reader: TreeReader, mode: int | None, id: str | None) -> str | None:
    """Return a blob as text; bytes that are not UTF-8 become replacement characters."""
    if id is None or not is_regular(mode) or reader.blob_size(id) > MAX_TEXT:
        return None
    return reader.read_blob(id, limit=MAX_TEXT).decode("utf-8", "replace")
