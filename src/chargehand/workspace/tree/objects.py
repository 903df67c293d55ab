"""Git objects and trees in process, with raw names and raw ids: read, written, compared, edited.

Objects are written in git's formats (gitformat-loose; gitformat-pack version 2 with its index version 2), each
file complete or absent. Trees are parsed and written here and not by a library because names need not be UTF-8 and
old modes (100664) must survive.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import secrets
import stat
import struct
import zlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple

from chargehand.core.errors import InfrastructureError, NotFoundError, RepositoryError
from chargehand.core.records import Change, ChangeKind
from chargehand.core.text import late_pattern
from chargehand.workspace.errors import disk_errors
from chargehand.workspace.host.files import write_all

ObjectKind = Literal["commit", "tree", "blob", "tag"]
TREE = 0o040000
FILE = 0o100644
EXECUTABLE = 0o100755
LINK = 0o120000
GITLINK = 0o160000
MAX_DEPTH = 250  # nested directories: far more than any project has, and safe for a recursive walk
EMPTY_TREE = bytes.fromhex("4b825dc642cb6eb9a060e54bf8d69288fbee4904")

_TYPES: dict[ObjectKind, int] = {
    "commit": 1,
    "tree": 2,
    "blob": 3,
    "tag": 4,
}  # git's numbers, in packs and in libgit2
_KINDS: dict[bytes, ObjectKind] = {kind.encode(): kind for kind in _TYPES}
_ENTRY = late_pattern(rb"([0-7]+) ([^\0]+)\0(.{20})", re.DOTALL)
_LOOSE = late_pattern(rb"([a-z]{3,9}) (\d{1,19})\0")
# The tables of a packed block take up to 290 bytes, and must be read first.
_HEADER_BYTES = 512
_CACHED_TREES = 8192
_MAX_LOOSE = 32  # above this, the two files of a pack are cheaper than a file per object
_MAX_BUFFER = 64 * 1024 * 1024
_LEVELS: dict[ObjectKind, int] = {
    "commit": 1,
    "tree": 0,
    "blob": 1,
    "tag": 1,
}  # trees are mostly ids: compression gains nothing


def object_id(kind: ObjectKind, content: bytes) -> bytes:
    """Return the raw id (20 bytes) of an object."""
    # An id, not security: Python under FIPS refuses SHA-1 without this flag.
    digest = hashlib.sha1(b"%s %d\0" % (kind.encode(), len(content)), usedforsecurity=False)
    digest.update(content)
    return digest.digest()


# --- reading


class TreeEntry(NamedTuple):
    """The object that a name in a tree refers to: git's mode and the raw id."""

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


Entries = Mapping[bytes, TreeEntry]
NOTHING: Entries = {}


class ObjectReader:
    """Reads objects of one object directory and caches recent trees. Safe to use from several threads."""

    def __init__(self, objects: Path) -> None:
        import pygit2  # 20 ms that commands without a depot need not pay

        self.objects = objects
        self._git = pygit2
        # Only its packs: libgit2 never returns from reading a truncated loose object.
        self._packs = pygit2.Odb()
        self._packs.add_backend(pygit2.OdbBackendPack(str(objects)), 1)
        self._trees: OrderedDict[bytes, Entries] = OrderedDict()

    def read(self, id: bytes) -> tuple[ObjectKind, bytes]:
        """Return an object's kind and content.

        Raises `NotFoundError` code `object_not_found`, `InfrastructureError` code `depot` for a damaged object.
        """
        loose = self._read_file(id)
        found = None if loose is None else parse_loose(loose)
        if found is not None and object_id(*found) == id:
            return found
        try:
            number, content = self._packs.read(self._git.Oid(raw=id))
        except KeyError as problem:
            if loose is not None:
                raise _unreadable(id, "its content differs from what was written") from problem
            raise NotFoundError(f"no object {id.hex()!r} in the depot", code="object_not_found") from problem
        except self._git.GitError as problem:
            raise _unreadable(id, str(problem)) from problem
        return next(kind for kind, its in _TYPES.items() if its == int(number)), content

    def blob(self, id: bytes) -> bytes:
        """Return the content of a blob; raises `NotFoundError` code `object_not_found`."""
        kind, content = self.read(id)
        if kind != "blob":
            raise NotFoundError(f"{id.hex()!r} is not a blob", code="object_not_found")
        return content

    def size(self, id: bytes) -> int:
        """Return an object's size in bytes without reading it all; raises `NotFoundError` (`object_not_found`)."""
        loose = self._read_file(id, _HEADER_BYTES)
        if loose is not None:
            with suppress(zlib.error):
                found = _LOOSE.match(zlib.decompressobj().decompress(loose, _HEADER_BYTES))
                if found is not None:
                    return int(found[2])
        try:
            return int(self._packs.read_header(self._git.Oid(raw=id))[1])
        except (KeyError, self._git.GitError) as problem:
            raise NotFoundError(f"no object {id.hex()!r} in the depot", code="object_not_found") from problem

    def _read_file(self, id: bytes, size: int = -1) -> bytes | None:
        name = id.hex()
        try:
            with open(f"{self.objects}/{name[:2]}/{name[2:]}", "rb") as file:
                return file.read(size)
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise _unreadable(id, problem.strerror or "") from problem

    def tree(self, id: bytes | None) -> Entries:
        """Return the entries of a tree (do not change them), empty for `None`; raises `NotFoundError`."""
        if id is None or id == EMPTY_TREE:  # git knows the empty tree without storing it
            return NOTHING
        known = self._trees.get(id)
        if known is not None:
            with suppress(KeyError):  # another thread may have dropped it
                self._trees.move_to_end(id)
        else:
            kind, content = self.read(id)
            if kind != "tree":
                raise NotFoundError(f"{id.hex()!r} is not a tree", code="tree_not_found")
            known = parse_tree(content)
            self.remember(id, known)
        return known

    def remember(self, id: bytes, entries: Entries) -> None:
        """Cache the entries of the tree `id`, so that it need not be read."""
        self._trees[id] = entries
        if len(self._trees) > _CACHED_TREES:
            with suppress(KeyError):  # another thread may have been faster
                self._trees.popitem(last=False)

    def below(self, entry: TreeEntry | None) -> Entries:
        """Return the entries below an entry: empty unless it is a directory."""
        return self.tree(entry.id) if entry is not None and entry.is_tree else NOTHING

    def find(self, tree: bytes, path: bytes) -> TreeEntry | None:
        """Return the entry at `path`, or `None`."""
        entry: TreeEntry | None = TreeEntry(TREE, tree)
        for name in path.split(b"/"):
            entry = self.below(entry).get(name)
            if entry is None:
                return None
        return entry

    def walk(self, tree: bytes, prefix: bytes = b"") -> Iterator[tuple[bytes, TreeEntry]]:
        """Yield (path, entry) of everything below `tree` that is not a directory, in git's order."""
        for name, entry in self.tree(tree).items():
            path = prefix + name
            if entry.is_tree:
                yield from self.walk(entry.id, path + b"/")
            else:
                yield path, entry


def parse_loose(packed: bytes) -> tuple[ObjectKind, bytes] | None:
    """Return the kind and content of a loose object from the bytes of its file; `None` if it is damaged."""
    inflate = zlib.decompressobj()
    try:
        content = inflate.decompress(packed)
    except zlib.error:
        return None
    header = _LOOSE.match(content)
    if not inflate.eof or header is None or int(header[2]) != len(content) - header.end():
        return None
    kind = _KINDS.get(header[1])
    return None if kind is None else (kind, content[header.end() :])


def read_loose_commit(objects: Path, commit: str) -> bytes | None:
    """Return the content of a commit that an object directory holds as a file; `None` if only git can find it."""
    try:
        with open(objects / commit[:2] / commit[2:], "rb") as file:
            found = parse_loose(file.read())
    except OSError:
        return None
    if found is None or found[0] != "commit" or object_id(*found).hex() != commit:
        return None
    return found[1]


def _unreadable(id: bytes, why: str) -> InfrastructureError:
    return InfrastructureError(
        f"object {id.hex()!r} cannot be read: {why}",
        code="depot",
        hint="`chargehand store check` names all that is damaged, `chargehand store restore` restores a backup",
    )


def parse_tree(content: bytes) -> dict[bytes, TreeEntry]:
    """Return the entries of a tree object, in its order."""
    return {name: TreeEntry(int(mode, 8), raw) for mode, name, raw in _ENTRY.findall(content)}


def check_depth(reader: ObjectReader, tree: bytes) -> None:
    """Raise `RepositoryError` (`base_tree`) for a tree whose directories are nested too deeply to be walked."""
    pending = [(tree, 0)]
    seen = set(pending)  # a tree object can occur at many paths: visit each once per depth
    while pending:
        current, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise RepositoryError(
                f"the tree {tree.hex()!r} nests directories more than {MAX_DEPTH} deep",
                code="base_tree",
                hint="give a commit (--base) that is nested less deeply",
            )
        below = {(entry.id, depth + 1) for entry in reader.tree(current).values() if entry.is_tree} - seen
        seen |= below
        pending += below


# --- writing


class ObjectWriter:
    """Collects objects and writes them together at the end of its `with` block; writes nothing after an exception.

    `known` holds ids that need no writing; written ids are added to it. Raises `InfrastructureError` (`no_space`).
    """

    def __init__(self, objects: Path, *, known: set[bytes] | None = None) -> None:
        self._objects = objects
        self._known = known if known is not None else set()
        self._pending: dict[bytes, tuple[ObjectKind, bytes]] = {}
        self._buffered = 0

    def add(self, kind: ObjectKind, content: bytes) -> bytes:
        """Take one object; return its raw id."""
        return self.add_as(object_id(kind, content), kind, content)

    def add_as(self, id: bytes, kind: ObjectKind, content: bytes) -> bytes:
        """Take one object whose id the caller has computed already."""
        if id in self._known or id in self._pending:
            return id
        self._pending[id] = (kind, content)
        self._buffered += len(content)
        if self._buffered > _MAX_BUFFER:
            self.flush()
        return id

    def flush(self) -> None:
        """Write the collected objects: loose files, or one pack if there are many."""
        with disk_errors("writing objects into the depot"):
            if len(self._pending) > _MAX_LOOSE:
                _write_pack(self._objects / "pack", self._pending)
            else:
                for raw, (kind, content) in self._pending.items():
                    name = raw.hex()
                    path = self._objects / name[:2] / name[2:]
                    if not path.exists():
                        path.parent.mkdir(exist_ok=True)
                        header = b"%s %d\0" % (kind.encode(), len(content))
                        _write_whole(path, zlib.compress(header + content, _LEVELS[kind]))
        self._known.update(self._pending)
        self._pending.clear()
        self._buffered = 0

    def __enter__(self) -> ObjectWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.flush()


def _write_pack(directory: Path, objects: dict[bytes, tuple[ObjectKind, bytes]]) -> None:
    parts = [b"PACK" + struct.pack(">II", 2, len(objects))]
    offset = len(parts[0])
    offsets: dict[bytes, int] = {}
    checks: dict[bytes, int] = {}
    for raw, (kind, content) in objects.items():
        # Type and size come first: four bits of the size with the type, then seven to a byte, lowest first.
        first = (_TYPES[kind] << 4) | (len(content) & 15)
        size = len(content) >> 4
        header = bytearray()
        while size:
            header.append(first | 0x80)
            first, size = size & 0x7F, size >> 7
        header.append(first)
        entry = bytes(header) + zlib.compress(content, _LEVELS[kind])
        offsets[raw], checks[raw] = offset, zlib.crc32(entry)
        parts.append(entry)
        offset += len(entry)
    body = b"".join(parts)
    trailer = hashlib.sha1(body, usedforsecurity=False).digest()
    ids = sorted(objects)
    name = hashlib.sha1(b"".join(ids), usedforsecurity=False).hexdigest()
    directory.mkdir(exist_ok=True)
    _write_whole(directory / f"pack-{name}.pack", body + trailer)
    counts = Counter(raw[0] for raw in ids)
    index = b"".join(
        (
            b"\xfftOc" + struct.pack(">I", 2),
            struct.pack(">256I", *itertools.accumulate(counts[byte] for byte in range(256))),
            *ids,
            struct.pack(f">{len(ids)}I", *(checks[raw] for raw in ids)),
            # All objects before the last are 64 MiB at most, so no offset needs the table of 64-bit offsets.
            struct.pack(f">{len(ids)}I", *(offsets[raw] for raw in ids)),
            trailer,
        )
    )
    # The index makes the pack visible, so it comes last.
    _write_whole(directory / f"pack-{name}.idx", index + hashlib.sha1(index, usedforsecurity=False).digest())


def _write_whole(path: Path, content: bytes) -> None:
    # Not synced: a power loss may lose a checkpoint; a promotion syncs the whole file system.
    fresh = path.parent / f"tmp_obj_{secrets.token_hex(8)}"  # git's own gc removes litter of this name
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
        try:
            write_all(fd, content)
        finally:
            os.close(fd)
        os.replace(fresh, path)
    except BaseException:
        with suppress(FileNotFoundError):
            fresh.unlink()
        raise


def encode_tree(entries: Entries) -> bytes:
    """Return the tree object that holds `entries`, sorted as git sorts (directories as if they ended in '/')."""
    order = sorted(entries, key=lambda name: name + b"/" if entries[name].mode == TREE else name)
    return b"".join(b"%o %s\0%s" % (entries[name].mode, name, entries[name].id) for name in order)


def write_tree(writer: ObjectWriter, entries: Entries) -> bytes:
    """Write the tree object that holds `entries`; return its raw id."""
    return writer.add("tree", encode_tree(entries))


# --- comparing and editing


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
        kind: ChangeKind = "added" if before is None else "deleted"
        if before is not None and after is not None:
            kind = "modified" if stat.S_IFMT(before.mode) == stat.S_IFMT(after.mode) else "type_changed"
        if before is not None or after is not None:
            yield Change(
                path=os.fsdecode(path),
                kind=kind,
                old_mode=before.mode if before else None,
                new_mode=after.mode if after else None,
                old_id=before.id.hex() if before else None,
                new_id=after.id.hex() if after else None,
            )


def edit_tree(
    reader: ObjectReader, writer: ObjectWriter, tree: bytes, edits: Iterable[tuple[bytes, TreeEntry | None]]
) -> bytes:
    """Return the tree with each path set to an entry (also a directory's) or, by `None`, removed."""
    edited = _edit(reader, writer, reader.tree(tree), dict(edits))
    return write_tree(writer, edited)


def _edit(
    reader: ObjectReader, writer: ObjectWriter, entries: Entries, edits: Mapping[bytes, TreeEntry | None]
) -> dict[bytes, TreeEntry]:
    out = dict(entries)
    deeper: dict[bytes, dict[bytes, TreeEntry | None]] = {}
    for path, entry in edits.items():
        name, _, rest = path.partition(b"/")
        if rest:
            deeper.setdefault(name, {})[rest] = entry
        elif entry is None:
            out.pop(name, None)
        else:
            out[name] = entry
    for name, below in deeper.items():
        before = out.get(name)
        is_tree = before is not None and before.is_tree
        if not is_tree and all(entry is None for entry in below.values()):
            continue  # removing a path below a file or a missing path must not remove the file
        inside = _edit(reader, writer, reader.below(before), below)
        if inside:
            out[name] = TreeEntry(TREE, write_tree(writer, inside))
        else:
            out.pop(name, None)  # git has no empty directories
    return out
