"""Trees on disk: their space, written as files, indexed for git, cached by their stat data."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from chargehand.core.codec import unpack_as
from chargehand.core.errors import InfrastructureError, NotFoundError, RepositoryError
from chargehand.core.ports import sandbox_ids
from chargehand.workspace.host.files import Need, replace_file, write_all
from chargehand.workspace.tree.attributes import TreeAttributes
from chargehand.workspace.tree.objects import LINK, Entries, ObjectReader, TreeEntry

OnFile = Callable[[bytes, TreeEntry, os.stat_result], None]
"""Called with path, entry and stat data of each file, link and submodule that was written."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_COPY = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
_NO_LINK = (errno.EMLINK, *_NO_COPY)
_FICLONE = 0x40049409
_BLOCK = 4096
_INDEX_ENTRY = 100  # bytes; usual size of a file's entry in the agent's index
_RACY_NS = 20_000_000  # file systems use the kernel's tick: two writes within one tick get the same time


@contextmanager
def open_directory(name: bytes | Path, *, at: int | None = None) -> Iterator[int]:
    """Open a directory that is not a link, for the duration of the block."""
    fd = os.open(name, _DIRECTORY, dir_fd=at)
    try:
        yield fd
    finally:
        os.close(fd)


# --- before writing


def tree_need(reader: ObjectReader, tree: bytes, *, besides: bytes | None = None, linked: bool = False) -> Need:
    """Return the space needed to write a tree as files, from the sizes that git has of its blobs; reads no blob.

    With `besides` only the differences from that tree are written, and a mark for each missing entry; files
    `linked` to that tree's files still need their directories and index entries.
    """
    size = files = 0
    for length in _sizes(reader, reader.tree(tree), reader.tree(besides), linked=linked):
        files += 1
        size += -(-length // _BLOCK) * _BLOCK + _INDEX_ENTRY
    return Need(bytes=size, files=files)


def _sizes(reader: ObjectReader, tree: Entries, besides: Entries, *, linked: bool) -> Iterator[int]:
    """Yield the size of everything below a tree that is not in the other tree, directories included."""
    if not linked:
        yield from (0 for name in besides if name not in tree)
    for name, entry in tree.items():
        other = besides.get(name)
        if entry == other and not linked:
            continue
        if entry.is_tree:
            yield _BLOCK
            yield from _sizes(reader, reader.below(entry), reader.below(other), linked=linked)
        elif entry == other:
            yield 0
        elif entry.is_gitlink:
            yield _BLOCK
        elif entry.mode == LINK:
            yield 0  # a short target is stored in the inode
        else:
            try:
                yield reader.size(entry.id)
            except NotFoundError:  # the code that writes the tree reports it better
                yield 0


# --- as files


class TreeWriter:
    """Writes entries of trees below open directories, as attributes convert them, owned by the sandbox's user.

    Files and links get `mtime` in whole seconds (`None`: the time of writing); copied files keep the time of their
    source. With `clones` copies share blocks, and `InfrastructureError` (`no_clone`) is raised if that is
    impossible.
    """

    def __init__(
        self,
        reader: ObjectReader,
        *,
        attributes: TreeAttributes,
        mtime: int | None = None,
        on_file: OnFile | None = None,
        clones: bool = False,
    ) -> None:
        self.reader = reader
        self.attributes = attributes
        self._times = None if mtime is None else (mtime * 1_000_000_000, mtime * 1_000_000_000)
        self._on_file = on_file
        self._clones = clones
        self._ids = sandbox_ids() if os.geteuid() == 0 else None

    def directory(self, at: int, name: bytes) -> None:
        """Make a directory."""
        os.mkdir(name, 0o755, dir_fd=at)
        if self._ids is not None:
            os.chown(name, *self._ids, dir_fd=at, follow_symlinks=False)

    def whiteout(self, at: int, name: bytes) -> None:
        """Make an overlay's mark that hides an entry of a lower layer: a character device 0:0."""
        os.mknod(name, stat.S_IFCHR | 0o600, os.makedev(0, 0), dir_fd=at)
        if self._ids is not None:
            os.chown(name, *self._ids, dir_fd=at, follow_symlinks=False)

    def tree(self, at: int, entries: Entries, prefix: bytes = b"", *, copy_from: int | None = None) -> None:
        """Write all entries; files are copied from the directory open as `copy_from` if given.

        Raises `RepositoryError` (`base_tree`) for names that only a forged tree holds.
        """
        for name, entry in entries.items():
            _check_name(name, prefix)
            self.entry(at, name, entry, prefix, copy_from=copy_from)

    def tree_linked(
        self, at: int, entries: Entries, source: int, older: TreeAttributes, before: Entries, prefix: bytes = b""
    ) -> None:
        """Write all entries; files that are equal in another tree, open as `source`, become hard links to it.

        That tree has the entries `before` and the attributes `older`, and must never change. Raises as `tree`.
        """
        alike = older.chain(prefix) == self.attributes.chain(prefix)
        for name, entry in entries.items():
            _check_name(name, prefix)
            other = before.get(name)
            if entry.is_tree and other is not None and other.is_tree:
                self.directory(at, name)
                below = self.reader.tree(entry.id)
                old = self.reader.tree(other.id)
                deeper = prefix + name + b"/"
                with open_directory(name, at=at) as fd, open_directory(name, at=source) as below_source:
                    self.tree_linked(fd, below, below_source, older, old, deeper)
            elif (
                entry.is_tree
                or entry.is_gitlink
                or entry != other
                or not (alike or is_shown_alike(prefix + name, entry, older, self.attributes))
                or not self._link_file(at, name, entry, source, prefix)
            ):
                self.entry(at, name, entry, prefix)

    def _link_file(self, at: int, name: bytes, entry: TreeEntry, source: int, prefix: bytes) -> bool:
        """Link to the file of that name; return `False` if the file system allows no more links."""
        try:
            os.link(name, name, src_dir_fd=source, dst_dir_fd=at, follow_symlinks=False)
        except OSError as problem:
            if problem.errno not in _NO_LINK:
                raise
            return False
        if self._on_file is not None:
            self._on_file(prefix + name, entry, os.stat(name, dir_fd=at, follow_symlinks=False))
        return True

    def entry(
        self, at: int, name: bytes, entry: TreeEntry, prefix: bytes = b"", *, copy_from: int | None = None
    ) -> None:
        """Write one entry, a directory with all below it; a submodule is an empty directory."""
        if entry.is_tree:
            self.directory(at, name)
            path = prefix + name + b"/"
            below = self.reader.tree(entry.id)
            with open_directory(name, at=at) as fd:
                if copy_from is None:
                    self.tree(fd, below, path)
                else:
                    with open_directory(name, at=copy_from) as source:
                        self.tree(fd, below, path, copy_from=source)
        elif entry.is_gitlink:
            self.directory(at, name)
            if self._on_file is not None:
                self._on_file(prefix + name, entry, os.stat(name, dir_fd=at))
        elif entry.mode == LINK:
            os.symlink(self.reader.blob(entry.id), name, dir_fd=at)
            if self._ids is not None:
                os.chown(name, *self._ids, dir_fd=at, follow_symlinks=False)
            times = self._times_of(name, copy_from)
            if times is not None:
                os.utime(name, ns=times, dir_fd=at, follow_symlinks=False)
            if self._on_file is not None:
                self._on_file(prefix + name, entry, os.stat(name, dir_fd=at, follow_symlinks=False))
        else:
            self._write_file(at, name, entry, prefix, copy_from)

    def _write_file(self, at: int, name: bytes, entry: TreeEntry, prefix: bytes, copy_from: int | None) -> None:
        fd = os.open(name, _NEW_FILE, 0o755 if entry.mode & 0o100 else 0o644, dir_fd=at)
        try:
            if copy_from is None or not self._copy_file(copy_from, name, fd):
                write_all(fd, self.attributes.file(prefix + name, entry.id))
            if self._ids is not None:
                os.fchown(fd, *self._ids)
            times = self._times_of(name, copy_from)
            if times is not None:
                os.utime(fd, ns=times)
            if self._on_file is not None:
                self._on_file(prefix + name, entry, os.fstat(fd))
        finally:
            os.close(fd)

    def _times_of(self, name: bytes, copy_from: int | None) -> tuple[int, int] | None:
        if copy_from is None:
            return self._times
        modified = os.stat(name, dir_fd=copy_from, follow_symlinks=False).st_mtime_ns
        return (modified, modified)

    def _copy_file(self, directory: int, name: bytes, target: int) -> bool:
        """Fill `target` with the file of that name; return `False` if the kernel cannot copy between the two."""
        source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            if self._clones:
                clone_file(source, target)
                return True
            left = os.fstat(source).st_size
            while left > 0 and (copied := os.copy_file_range(source, target, left)):
                left -= copied
        except OSError as problem:
            if problem.errno not in _NO_COPY:
                raise
            os.ftruncate(target, 0)
            os.lseek(target, 0, os.SEEK_SET)
            return False
        finally:
            os.close(source)
        return True


def _check_name(name: bytes, prefix: bytes) -> None:
    if name in (b"", b".", b"..", b".git") or b"/" in name:
        raise RepositoryError(
            f"the tree contains {os.fsdecode(prefix + name)!r}",
            code="base_tree",
            hint="git cannot check that out either; give another commit (--base)",
        )


def is_shown_alike(path: bytes, entry: TreeEntry, one: TreeAttributes, other: TreeAttributes) -> bool:
    """Return whether a file has the same content by the attributes of two trees; always false for a directory."""
    if entry.is_tree:
        return False
    return not stat.S_ISREG(entry.mode) or one.conversion(path) == other.conversion(path)


def clone_file(source: int, target: int) -> None:
    """Make the empty file `target` share the blocks of `source`; raises `InfrastructureError` code `no_clone`."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as problem:
        if problem.errno not in (*_NO_COPY, errno.ENOTTY):
            raise
        raise InfrastructureError(
            f"the file system of the state directory no longer clones files: {problem.strerror}",
            code="no_clone",
            hint="keep CHARGEHAND_HOME on the btrfs or xfs where this workspace was made, or start a new mission",
        ) from problem


# --- as an index


class IndexEntry(NamedTuple):
    """One file of an index: path, git's mode, size in bytes, raw blob id, mtime in seconds.

    Git treats an `assumed` entry as unchanged, whatever the file on disk.
    """

    path: bytes
    mode: int
    size: int
    id: bytes
    mtime: int
    assumed: bool = False


_INDEX_HEAD = struct.Struct(">10I20sH")
_INDEX_START = 12
_ASSUMED = 0x8000
_LONG_PATH = 0xFFF  # in the flags: the path is at least this long


def encode_index(entries: list[IndexEntry], *, reader: ObjectReader, tree: bytes) -> bytes:
    """Return the git index (version 2) that holds `entries`, in git's order.

    The entries are `tree`'s, so its cached-tree extension is written too. Nothing is read from disk: of the stat
    data only the fields that `core.checkStat=minimal` compares are filled in, whole seconds of mtime and the size.
    """
    parts = [b"DIRC" + struct.pack(">II", 2, len(entries))]
    parts += map(encode_entry, entries)
    extension = _cached_tree(reader, tree, b"")[1]
    parts.append(b"TREE" + struct.pack(">I", len(extension)) + extension)
    body = b"".join(parts)
    return body + hashlib.sha1(body, usedforsecurity=False).digest()


def encode_entry(entry: IndexEntry) -> bytes:
    """Return an entry of an index of version 2."""
    kind = stat.S_IFMT(entry.mode)
    if kind == stat.S_IFREG:  # old trees hold 100664, which an index may not
        kind = 0o100755 if entry.mode & 0o100 else 0o100644
    flags = min(len(entry.path), _LONG_PATH) | (_ASSUMED if entry.assumed else 0)
    head = _INDEX_HEAD.pack(0, 0, entry.mtime, 0, 0, 0, kind, 0, 0, entry.size, entry.id, flags)
    return head + entry.path + b"\0" * (8 - (len(head) + len(entry.path)) % 8)


def edit_index(content: bytes, edits: Mapping[bytes, IndexEntry | None]) -> bytes:
    """Return an index that `encode_index` made, with entries set and (by `None`) removed.

    Unchanged entries are copied in runs. The cached-tree extension is left out: git computes it when needed.
    """
    count = struct.unpack_from(">I", content, _INDEX_START - 4)[0]
    parts = list[bytes]()
    paths = sorted(edits)
    number = replaced = 0
    at = start = _INDEX_START
    for _ in range(count):
        name = at + _INDEX_HEAD.size
        length = ((content[name - 2] << 8) | content[name - 1]) & _LONG_PATH
        end = name + length if length < _LONG_PATH else content.index(b"\0", name)
        path = content[name:end]
        after = end + 8 - (end - at) % 8
        if number < len(paths) and paths[number] <= path:
            parts.append(content[start:at])
            start = at
            while number < len(paths) and paths[number] <= path:
                entry = edits[paths[number]]
                parts.append(b"" if entry is None else encode_entry(entry))
                if paths[number] == path:
                    replaced, start = replaced + 1, after
                number += 1
        at = after
    parts.append(content[start:at])
    parts += [encode_entry(entry) for path in paths[number:] if (entry := edits[path]) is not None]
    total = count - replaced + sum(entry is not None for entry in edits.values())
    body = b"DIRC" + struct.pack(">II", 2, total) + b"".join(parts)
    return body + hashlib.sha1(body, usedforsecurity=False).digest()


def _cached_tree(reader: ObjectReader, tree: bytes, name: bytes) -> tuple[int, bytes]:
    """Return the number of files in a tree, and its cached-tree record with those of its subtrees."""
    files = 0
    subtrees = 0
    below = list[bytes]()
    for child, entry in reader.tree(tree).items():
        if entry.is_tree:
            inside, record = _cached_tree(reader, entry.id, child)
            subtrees += 1
            files += inside
            below.append(record)
        else:
            files += 1
    return files, b"%s\0%d %d\n%s" % (name, files, subtrees, tree) + b"".join(below)


# --- remembered

_StatKey = tuple[int, int, int, int]


class StatCache:
    """Raw blob ids by (inode, size, mtime, ctime) of one directory tree.

    The key includes ctime because a program can set mtime back, but not ctime.
    """

    def __init__(self, known: dict[_StatKey, bytes] | None = None) -> None:
        self._known = known if known is not None else {}
        self._proposed: dict[_StatKey, bytes] = {}

    @classmethod
    def load(cls, path: Path) -> StatCache:
        """Return the saved cache, or an empty cache if it is missing or unreadable."""
        try:
            return cls(unpack_as(path.read_bytes(), dict[tuple[int, int, int, int], bytes]))
        except (OSError, msgspec.MsgspecError):
            return cls()

    def save(self, path: Path) -> None:
        """Save the cache for another process."""
        replace_file(path, msgspec.msgpack.encode(self._known))

    def get(self, info: os.stat_result) -> bytes | None:
        """Return the id of the content if known."""
        return self._known.get(_stat_key(info))

    def propose(self, info: os.stat_result, id: bytes) -> None:
        """Add an id that becomes valid at `accept`, when the object is safely in the depot.

        A file that changed within the last 20 ms is left out: it may change again under the same time stamp.
        """
        if max(info.st_mtime_ns, info.st_ctime_ns) < time.time_ns() - _RACY_NS:
            self._proposed[_stat_key(info)] = id

    def seed(self, info: os.stat_result, id: bytes) -> None:
        """Add the id of a file that we wrote ourselves and no other process could reach yet."""
        self._known[_stat_key(info)] = id

    def accept(self) -> int:
        """Make the proposed ids valid; return their number."""
        count = len(self._proposed)
        self._known.update(self._proposed)
        self._proposed.clear()
        return count

    def forget_proposed(self) -> None:
        """Drop the proposed ids: their objects may not have been written."""
        self._proposed.clear()


def _stat_key(info: os.stat_result) -> _StatKey:
    # Without the device: a tree is on one file system.
    return (info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
