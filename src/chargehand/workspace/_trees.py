"""Git trees in process, with raw names and raw ids: read, written, compared, edited.

Trees are parsed and written here and not by a library because names need not be UTF-8 and old modes must survive.
"""

from __future__ import annotations

import os
import re
import stat
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pygit2

from chargehand.core.errors import InfrastructureError, NotFoundError, RepositoryError
from chargehand.core.records import Change, ChangeKind
from chargehand.workspace._objects import ObjectWriter

TREE = 0o040000
FILE = 0o100644
EXECUTABLE = 0o100755
LINK = 0o120000
GITLINK = 0o160000
MAX_DEPTH = 250  # directories in one another: far more than any project has, and what a walk's recursion bears
EMPTY_TREE = bytes.fromhex("4b825dc642cb6eb9a060e54bf8d69288fbee4904")

_ENTRY = re.compile(rb"([0-7]+) ([^\0]+)\0(.{20})", re.DOTALL)
_CACHED_TREES = 8192


class Entry(NamedTuple):
    """What a name in a tree stands for: git's mode and the raw id."""

    mode: int
    id: bytes

    @property
    def is_tree(self) -> bool:
        """Whether this is a directory."""
        return self.mode == TREE

    @property
    def is_gitlink(self) -> bool:
        """Whether this is a submodule's commit."""
        return self.mode == GITLINK


Entries = Mapping[bytes, Entry]
NOTHING: Entries = {}


class ObjectReader:
    """Reads objects of one object directory; keeps the trees it read last."""

    def __init__(self, objects: Path) -> None:
        self.objects = objects
        self._odb = pygit2.Odb(str(objects))
        self._trees: OrderedDict[bytes, Entries] = OrderedDict()

    def read(self, id: bytes) -> tuple[int, bytes]:
        """Return (pygit2's object type, content); raises `NotFoundError` code `object_not_found`."""
        try:
            kind, content = self._odb.read(pygit2.Oid(raw=id))
        except KeyError as problem:
            raise NotFoundError(f"no object {id.hex()!r} in the depot", code="object_not_found") from problem
        except pygit2.GitError as problem:
            raise InfrastructureError(f"object {id.hex()!r} cannot be read: {problem}", code="depot") from problem
        return int(kind), content

    def blob(self, id: bytes) -> bytes:
        """Return the content of a blob."""
        kind, content = self.read(id)
        if kind != pygit2.enums.ObjectType.BLOB:
            raise NotFoundError(f"{id.hex()!r} is not a blob", code="object_not_found")
        return content

    def tree(self, id: bytes | None) -> Entries:
        """Return the entries of a tree (do not change them); none for `None`."""
        if id is None or id == EMPTY_TREE:
            return NOTHING
        known = self._trees.get(id)
        if known is not None:
            with suppress(KeyError):  # another thread may have let go of it
                self._trees.move_to_end(id)
        else:
            kind, content = self.read(id)
            if kind != pygit2.enums.ObjectType.TREE:
                raise NotFoundError(f"{id.hex()!r} is not a tree", code="tree_not_found")
            known = parse_tree(content)
            self.remember(id, known)
        return known

    def remember(self, id: bytes, entries: Entries) -> None:
        """Keep what the tree `id` holds, so that it need not be read."""
        self._trees[id] = entries
        if len(self._trees) > _CACHED_TREES:
            with suppress(KeyError):  # another thread may have been faster
                self._trees.popitem(last=False)

    def below(self, entry: Entry | None) -> Entries:
        """Return what lies below an entry: nothing unless it is a directory."""
        return self.tree(entry.id) if entry is not None and entry.is_tree else NOTHING

    def find(self, tree: bytes, path: bytes) -> Entry | None:
        """Return the entry at `path`, or `None`."""
        entry: Entry | None = Entry(TREE, tree)
        for name in path.split(b"/"):
            entry = self.below(entry).get(name)
            if entry is None:
                return None
        return entry

    def walk(self, tree: bytes, prefix: bytes = b"") -> Iterator[tuple[bytes, Entry]]:
        """Yield (path, entry) of everything below `tree` that is not a directory, in git's order."""
        for name, entry in self.tree(tree).items():
            path = prefix + name
            if entry.is_tree:
                yield from self.walk(entry.id, path + b"/")
            else:
                yield path, entry


def check_depth(reader: ObjectReader, tree: bytes) -> None:
    """Raise `RepositoryError` (`base_tree`) for a tree whose directories are nested too deeply to be walked."""
    pending = [(tree, 0)]
    seen = set(pending)
    while pending:
        current, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise RepositoryError(
                f"the tree {tree.hex()!r} has more than {MAX_DEPTH} directories in one another",
                code="base_tree",
                hint="give a commit (--base) that is nested less deeply",
            )
        below = {(entry.id, depth + 1) for entry in reader.tree(current).values() if entry.is_tree} - seen
        seen |= below
        pending += below


def parse_tree(content: bytes) -> dict[bytes, Entry]:
    """Return the entries of a tree object, in its order."""
    return {name: Entry(int(mode, 8), raw) for mode, name, raw in _ENTRY.findall(content)}


def encode_tree(entries: Entries) -> bytes:
    """Return the tree object that holds `entries`, sorted as git sorts (directories as if they ended in '/')."""
    order = sorted(entries, key=lambda name: name + b"/" if entries[name].mode == TREE else name)
    return b"".join(b"%o %s\0%s" % (entries[name].mode, name, entries[name].id) for name in order)


def write_tree(writer: ObjectWriter, entries: Entries) -> bytes:
    """Write the tree object that holds `entries`; return its raw id."""
    return writer.add("tree", encode_tree(entries))


def hexed(entry: Entry | None) -> str | None:
    """Return the id of an entry as hex, `None` for no entry."""
    return None if entry is None else entry.id.hex()


def compare(reader: ObjectReader, old: bytes | None, new: bytes | None) -> list[Change]:
    """Return every path that differs between two trees, sorted; a rename is a deletion and an addition."""
    found = list(_compare(reader, reader.tree(old), reader.tree(new), b""))
    return sorted(found, key=lambda change: os.fsencode(change.path))


def _compare(reader: ObjectReader, old: Entries, new: Entries, prefix: bytes) -> Iterator[Change]:
    for name in {name for name, _ in old.items() ^ new.items()}:
        before, after = old.get(name), new.get(name)
        path = prefix + name
        if (before is not None and before.is_tree) or (after is not None and after.is_tree):
            yield from _compare(reader, reader.below(before), reader.below(after), path + b"/")
        before = None if before is None or before.is_tree else before
        after = None if after is None or after.is_tree else after
        if before is not None or after is not None:
            yield _change(path, before, after)


def _change(path: bytes, before: Entry | None, after: Entry | None) -> Change:
    return Change(
        path=os.fsdecode(path),
        kind=_kind(before, after),
        old_mode=before.mode if before else None,
        new_mode=after.mode if after else None,
        old_id=hexed(before),
        new_id=hexed(after),
    )


def _kind(before: Entry | None, after: Entry | None) -> ChangeKind:
    if before is None:
        return "added"
    if after is None:
        return "deleted"
    return "modified" if stat.S_IFMT(before.mode) == stat.S_IFMT(after.mode) else "type_changed"


def edit_tree(
    reader: ObjectReader, writer: ObjectWriter, tree: bytes, edits: Iterable[tuple[bytes, Entry | None]]
) -> bytes:
    """Return the tree with each path set to an entry (a directory's included) or, by `None`, taken out."""
    edited = _edit(reader, writer, reader.tree(tree), dict(edits))
    return write_tree(writer, edited)


def _edit(
    reader: ObjectReader, writer: ObjectWriter, entries: Entries, edits: Mapping[bytes, Entry | None]
) -> dict[bytes, Entry]:
    out = dict(entries)
    deeper: dict[bytes, dict[bytes, Entry | None]] = {}
    for path, entry in edits.items():
        name, _, rest = path.partition(b"/")
        if rest:
            deeper.setdefault(name, {})[rest] = entry
        elif entry is None:
            out.pop(name, None)
        else:
            out[name] = entry
    for name, below in deeper.items():
        _edit_below(reader, writer, out, name, below)
    return out


def _edit_below(
    reader: ObjectReader,
    writer: ObjectWriter,
    out: dict[bytes, Entry],
    name: bytes,
    edits: Mapping[bytes, Entry | None],
) -> None:
    before = out.get(name)
    if (before is None or not before.is_tree) and all(entry is None for entry in edits.values()):
        return  # taking a path out below a file or below nothing must not take the file out
    below = _edit(reader, writer, reader.below(before), edits)
    if below:
        out[name] = Entry(TREE, write_tree(writer, below))
    else:
        out.pop(name, None)
