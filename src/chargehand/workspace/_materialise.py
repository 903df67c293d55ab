"""Makes a directory that shows exactly a given tree: an overlay's upper over a base, or a plain directory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from chargehand.workspace._bases import BaseLayers, copy_git
from chargehand.workspace._files import make_owned
from chargehand.workspace._statcache import StatCache
from chargehand.workspace._trees import GITLINK, NOTHING, TREE, Entries, Entry, ObjectReader
from chargehand.workspace._write import TreeWriter, clone, opened


def fill_upper(upper: Path, *, base: bytes, tree: bytes, reader: ObjectReader, environment: Path | None) -> None:
    """Make the directory `upper` so that over `base` (and, below that, `environment`) it shows `tree`.

    No opaque mark is needed: a directory over a base's file hides it, and within a directory every base entry
    that `tree` lacks gets a whiteout. Where the environment has files of its own in a directory that goes, its
    tracked files are taken out one by one.
    """
    make_owned(upper)
    with opened(upper) as fd:
        _Upper(reader, environment).directory(fd, b"", reader.tree(base), reader.tree(tree))


class _Upper:
    def __init__(self, reader: ObjectReader, environment: Path | None) -> None:
        self._reader = reader
        self._writer = TreeWriter(reader)
        self._environment = environment

    def directory(self, fd: int, path: bytes, base: Entries, tree: Entries) -> None:
        for name in sorted(base.keys() | tree.keys()):
            before, after = base.get(name), tree.get(name)
            if before != after:
                self._differs(fd, path, name, before, after)

    def _differs(self, fd: int, path: bytes, name: bytes, before: Entry | None, after: Entry | None) -> None:
        if after is None:
            self._gone(fd, path, name, before)
        elif not after.is_tree:
            if not (after.mode == GITLINK and before is not None and before.mode in (GITLINK, TREE)):
                self._writer.entry(fd, name, after)
        else:
            self._below(fd, path, name, self._reader.below(before), self._reader.below(after))

    def _gone(self, fd: int, path: bytes, name: bytes, before: Entry | None) -> None:
        if before is not None and before.is_tree and self._in_environment(path + name):
            self._below(fd, path, name, self._reader.below(before), NOTHING)
        else:
            self._writer.whiteout(fd, name)

    def _below(self, fd: int, path: bytes, name: bytes, base: Entries, tree: Entries) -> None:
        self._writer.directory(fd, name)
        with opened(name, at=fd) as below:
            self.directory(below, path + name + b"/", base, tree)

    def _in_environment(self, path: bytes) -> bool:
        if self._environment is None:
            return False
        place = os.path.join(os.fsencode(self._environment), path)
        return os.path.isdir(place) and not os.path.islink(place)


def fill_plain(
    place: Path,
    *,
    layers: BaseLayers,
    base: bytes,
    tree: bytes,
    reader: ObjectReader,
    environment: Path | None,
    cache: StatCache,
    clones: bool,
) -> None:
    """Make the directory `place` hold `tree`, the agent's `.git` and what the environment has besides.

    What the base has alike is copied from its files with their times; with `clones` it shares their blocks.
    `cache` learns every file. Raises `InfrastructureError` code `no_clone`.
    """
    make_owned(place)

    def note(path: bytes, entry: Entry, info: os.stat_result) -> None:
        if not entry.is_gitlink:
            cache.seed(info, entry.id)

    same = TreeWriter(reader, mtime=layers.mtime, on_file=note, clones=clones)
    other = TreeWriter(reader, on_file=note)
    with opened(place) as fd, opened(layers.tree) as source:
        _fill(fd, source, reader.tree(base), reader.tree(tree), same, other, b"")
    copy_git(layers, place)
    if environment is not None:
        _add_missing(environment, place, reader, reader.tree(base), _cloned if clones else shutil.copyfile)


def _fill(
    fd: int, source: int, base: Entries, tree: Entries, same: TreeWriter, other: TreeWriter, path: bytes
) -> None:
    for name, entry in tree.items():
        before = base.get(name)
        if before == entry:
            same.entry(fd, name, entry, path, copy_from=source)
        elif before is not None and before.is_tree and entry.is_tree:
            other.directory(fd, name)
            with opened(name, at=fd) as below, opened(name, at=source) as below_source:
                reader = other.reader
                deeper = path + name + b"/"
                _fill(below, below_source, reader.below(before), reader.below(entry), same, other, deeper)
        else:
            other.entry(fd, name, entry, path)


def _add_missing(
    environment: Path, place: Path, reader: ObjectReader, base: Entries, copy: Callable[[str, Path], object]
) -> None:
    """Copy what neither `place` has nor `base` tracks; nothing that is there is touched or entered by a link."""
    for found in os.scandir(environment):
        target = place / found.name
        entry = base.get(os.fsencode(found.name))
        directory = found.is_dir(follow_symlinks=False)
        if entry is not None and not (directory and entry.is_tree):
            continue
        if directory:
            if not os.path.lexists(target):
                make_owned(target)
            if target.is_dir() and not target.is_symlink():
                _add_missing(environment / found.name, target, reader, reader.below(entry), copy)
        elif not os.path.lexists(target):
            _add_leaf(found, target, copy)


def _add_leaf(source: os.DirEntry[str], target: Path, copy: Callable[[str, Path], object]) -> None:
    if source.is_file(follow_symlinks=False):
        copy(source.path, target)
        shutil.copystat(source.path, target)
    else:
        shutil.copy2(source.path, target, follow_symlinks=False)
    if os.geteuid() == 0:
        info = source.stat(follow_symlinks=False)
        os.chown(target, info.st_uid, info.st_gid, follow_symlinks=False)


def _cloned(source: str, target: Path) -> None:
    with open(source, "rb") as old, open(target, "xb") as new:
        clone(old.fileno(), new.fileno())
