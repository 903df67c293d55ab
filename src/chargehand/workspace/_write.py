"""Writes trees as files: raw blobs, no filters, owned by the sandbox's user, relative to open directories."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from chargehand.core.errors import InfrastructureError, RepositoryError
from chargehand.core.ports import sandbox_ids
from chargehand.workspace._files import write_all
from chargehand.workspace._trees import LINK, Entries, Entry, ObjectReader

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_COPY = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
_FICLONE = 0x40049409
OnFile = Callable[[bytes, Entry, os.stat_result], None]


@contextmanager
def opened(name: bytes | Path, *, at: int | None = None) -> Iterator[int]:
    """Open a directory, itself not a link, for as long as the block runs."""
    fd = os.open(name, DIRECTORY, dir_fd=at)
    try:
        yield fd
    finally:
        os.close(fd)


class TreeWriter:
    """Writes entries of trees below open directories.

    `mtime` in whole seconds is given to files and links (`None`: the time of writing). `on_file` hears of each.
    With `clones` a file that comes from another one shares its blocks, or is refused.
    """

    def __init__(
        self,
        reader: ObjectReader,
        *,
        mtime: int | None = None,
        on_file: OnFile | None = None,
        clones: bool = False,
    ) -> None:
        self.reader = reader
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
        """Make the mark by which an overlay hides what a lower layer has."""
        os.mknod(name, stat.S_IFCHR | 0o600, os.makedev(0, 0), dir_fd=at)
        if self._ids is not None:
            os.chown(name, *self._ids, dir_fd=at, follow_symlinks=False)

    def tree(self, at: int, entries: Entries, prefix: bytes = b"", *, copy_from: int | None = None) -> None:
        """Write all entries; files come from the directory open as `copy_from` where it is given."""
        for name, entry in entries.items():
            if name in (b"", b".", b"..", b".git") or b"/" in name:
                raise RepositoryError(
                    f"the tree holds {os.fsdecode(prefix + name)!r}",
                    code="base_tree",
                    hint="no checkout can hold that",
                )
            self.entry(at, name, entry, prefix, copy_from=copy_from)

    def entry(
        self, at: int, name: bytes, entry: Entry, prefix: bytes = b"", *, copy_from: int | None = None
    ) -> None:
        """Write one entry, a directory with all below it; a submodule is an empty directory."""
        if entry.is_tree or entry.is_gitlink:
            self.directory(at, name)
            if entry.is_tree:
                self._below(at, name, entry, prefix, copy_from)
            elif self._on_file is not None:
                self._on_file(prefix + name, entry, os.stat(name, dir_fd=at))
        elif entry.mode == LINK:
            self._link(at, name, entry, prefix)
        else:
            self._file(at, name, entry, prefix, copy_from)

    def _below(self, at: int, name: bytes, entry: Entry, prefix: bytes, copy_from: int | None) -> None:
        path = prefix + name + b"/"
        with opened(name, at=at) as fd:
            if copy_from is None:
                self.tree(fd, self.reader.tree(entry.id), path)
                return
            with opened(name, at=copy_from) as source:
                self.tree(fd, self.reader.tree(entry.id), path, copy_from=source)

    def _link(self, at: int, name: bytes, entry: Entry, prefix: bytes) -> None:
        os.symlink(self.reader.blob(entry.id), name, dir_fd=at)
        if self._ids is not None:
            os.chown(name, *self._ids, dir_fd=at, follow_symlinks=False)
        if self._times is not None:
            os.utime(name, ns=self._times, dir_fd=at, follow_symlinks=False)
        if self._on_file is not None:
            self._on_file(prefix + name, entry, os.stat(name, dir_fd=at, follow_symlinks=False))

    def _file(self, at: int, name: bytes, entry: Entry, prefix: bytes, copy_from: int | None) -> None:
        fd = os.open(name, _NEW_FILE, 0o755 if entry.mode & 0o100 else 0o644, dir_fd=at)
        try:
            if copy_from is None or not self._copied(copy_from, name, fd):
                write_all(fd, self.reader.blob(entry.id))
            if self._ids is not None:
                os.fchown(fd, *self._ids)
            if self._times is not None:
                os.utime(fd, ns=self._times)
            if self._on_file is not None:
                self._on_file(prefix + name, entry, os.fstat(fd))
        finally:
            os.close(fd)

    def _copied(self, directory: int, name: bytes, target: int) -> bool:
        source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            if self._clones:
                clone(source, target)
                return True
            return copy_content(source, target)
        finally:
            os.close(source)


def clone(source: int, target: int) -> None:
    """Make the empty file `target` share the blocks of `source`; raises `InfrastructureError` code `no_clone`."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as problem:
        if problem.errno not in (*_NO_COPY, errno.ENOTTY):
            raise
        raise InfrastructureError(
            f"the file system of the state directory no longer clones files: {problem.strerror}",
            code="no_clone",
            hint="keep CHARGEHAND_HOME on the btrfs or xfs where this workspace was made, or start anew",
        ) from problem


def copy_content(source: int, target: int) -> bool:
    """Copy a file inside the kernel, which shares its blocks where the file system can; `False` if it cannot."""
    left = os.fstat(source).st_size
    try:
        while left > 0 and (copied := os.copy_file_range(source, target, left)):
            left -= copied
    except OSError as problem:
        if problem.errno not in _NO_COPY:
            raise
        os.ftruncate(target, 0)
        os.lseek(target, 0, os.SEEK_SET)
        return False
    return True
