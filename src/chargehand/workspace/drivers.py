"""How a workspace's files are stored on disk: the drivers overlay, reflink and worktree."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from chargehand.core.ports import Bind, DriverName, MountPlan
from chargehand.core.registry import Registry
from chargehand.workspace.bases import OBJECTS_TARGET, BaseLayers, copy_git
from chargehand.workspace.host.files import make_owned
from chargehand.workspace.tree.attributes import TreeAttributes
from chargehand.workspace.tree.objects import NOTHING, Entries, ObjectReader, TreeEntry
from chargehand.workspace.tree.write import StatCache, TreeWriter, clone_file, is_shown_alike, open_directory

TARGET = "/workspace"
_WORTH_SAVING = 1000  # files; writing the cache costs as much as reading some hundred of them


class Generation(Struct, frozen=True, kw_only=True):
    """One generation of a workspace: a separate directory, made completely and never rewound."""

    directory: Path
    layers: BaseLayers
    environment: Path | None
    caches: Path | None = None


class Driver(Protocol):
    """Makes, mounts and reads one generation. A rollback always makes a new generation."""

    name: DriverName

    def make(self, place: Generation, *, base: bytes, tree: bytes, reader: ObjectReader) -> None:
        """Make the generation show `tree`; `place.directory` exists and is empty."""
        ...

    def plan(self, place: Generation) -> MountPlan:
        """Return how a sandbox mounts it."""
        ...

    def root(self, place: Generation) -> Path:
        """Return the directory that a scan walks: it holds the agent's writes and no other files of ours."""
        ...

    def load_cache(self, place: Generation) -> StatCache:
        """Return the cached state of its files."""
        ...

    def keep_cache(self, place: Generation, cache: StatCache, *, learnt: int) -> None:
        """Save the state recorded by a scan if that pays."""
        ...


def _bind_objects(layers: BaseLayers) -> Bind:
    return Bind(source=layers.objects, target=OBJECTS_TARGET)


class OverlayDriver:
    """Kernel overlayfs: the agent's writes go to `upper`; the base is shared and never changes.

    The environment is below the base: a path that the base tracks wins over a file that a setup left there.
    """

    name: DriverName = "overlay"

    def make(self, place: Generation, *, base: bytes, tree: bytes, reader: ObjectReader) -> None:
        """Make the upper that shows `tree` over the base, and an empty work directory."""
        upper = self.root(place)
        make_owned(upper)
        with open_directory(upper) as fd:
            _UpperWriter(reader, place.environment, base, tree).fill(fd, b"", reader.tree(base), reader.tree(tree))
        if place.caches is not None:
            # Make the files newer than build outputs of other trees: a clock that was set back would hide that
            # they changed.
            built = os.stat(place.caches).st_mtime
            for directory, _, names in os.walk(upper):
                for path in (os.path.join(directory, name) for name in names):
                    info = os.lstat(path)
                    if stat.S_ISREG(info.st_mode) and info.st_mtime <= built:
                        os.utime(path, (built + 1, built + 1))
        make_owned(place.directory / "work")  # overlayfs requires it on the upper's file system

    def plan(self, place: Generation) -> MountPlan:
        """Return the overlay: git layer over base over environment over caches."""
        below = tuple(each for each in (place.environment, place.caches) if each is not None)
        return MountPlan(
            target=TARGET,
            lowers=(place.layers.git, place.layers.tree, *below),
            upper=self.root(place),
            work=place.directory / "work",
            binds=(_bind_objects(place.layers),),
        )

    def root(self, place: Generation) -> Path:
        """Return the upper."""
        return place.directory / "upper"

    def load_cache(self, place: Generation) -> StatCache:
        """Return an empty cache: an upper holds few files."""
        return StatCache()

    def keep_cache(self, place: Generation, cache: StatCache, *, learnt: int) -> None:
        """Save nothing."""


class _UpperWriter:
    """Fills an upper so that over a base (and, below that, an environment) it shows a tree.

    No opaque mark is needed: a directory over a base's file hides it, and within a directory every base entry that
    the tree lacks gets a whiteout.
    """

    def __init__(self, reader: ObjectReader, environment: Path | None, base: bytes, tree: bytes) -> None:
        self._reader = reader
        self._writer = TreeWriter(reader, attributes=TreeAttributes(reader, tree))
        self._base = TreeAttributes(reader, base)
        self._environment = None if environment is None else os.fsencode(environment)

    def fill(self, fd: int, path: bytes, base: Entries, tree: Entries) -> None:
        """Write the differences between two directories into the directory open as `fd`."""
        attributes = self._writer.attributes
        alike = self._base.chain(path) == attributes.chain(path)
        for name in sorted(base.keys() | tree.keys()):
            before, after = base.get(name), tree.get(name)
            if before == after and (
                alike or after is None or is_shown_alike(path + name, after, self._base, attributes)
            ):
                continue
            if after is None:
                below = None if self._environment is None else os.path.join(self._environment, path + name)
                in_environment = below is not None and os.path.isdir(below) and not os.path.islink(below)
                if before is not None and before.is_tree and in_environment:
                    # A whiteout would also hide the environment's files in it: hide the tracked files one by one.
                    self._fill_below(fd, path, name, self._reader.below(before), NOTHING)
                else:
                    self._writer.whiteout(fd, name)
            elif after.is_tree:
                self._fill_below(fd, path, name, self._reader.below(before), self._reader.below(after))
            elif after.is_gitlink and before is not None and before.is_tree:
                # As in a clone an empty directory, which hides the base's entries there.
                self._fill_below(fd, path, name, self._reader.below(before), NOTHING)
            elif not (after.is_gitlink and before is not None and before.is_gitlink):
                self._writer.entry(fd, name, after, path)

    def _fill_below(self, fd: int, path: bytes, name: bytes, base: Entries, tree: Entries) -> None:
        self._writer.directory(fd, name)
        with open_directory(name, at=fd) as below:
            self.fill(below, path + name + b"/", base, tree)


class WorktreeDriver:
    """A plain directory with a copy of the base: for machines without overlayfs. Costs the size of the base."""

    name: DriverName = "worktree"
    clones = False

    def make(self, place: Generation, *, base: bytes, tree: bytes, reader: ObjectReader) -> None:
        """Copy the tree, the agent's `.git` and the environment; store the cache of the files outside.

        Files that are the same in the base are copied from its files with their times. With `clones` they share
        blocks; `InfrastructureError` (`no_clone`) is raised if that is impossible.
        """
        root = self.root(place)
        layers = place.layers
        cache = StatCache()

        def record(path: bytes, entry: TreeEntry, info: os.stat_result) -> None:
            if not entry.is_gitlink:
                cache.seed(info, entry.id)

        shown, attributes = TreeAttributes(reader, base), TreeAttributes(reader, tree)
        same = TreeWriter(reader, attributes=shown, on_file=record, clones=self.clones)
        other = TreeWriter(reader, attributes=attributes, on_file=record)
        make_owned(root)
        with open_directory(root) as fd, open_directory(layers.tree) as source:
            _fill_plain(fd, source, reader.tree(base), reader.tree(tree), same, other, b"")
        copy_git(layers, root)
        if place.environment is not None:
            _add_missing(place.environment, root, reader, reader.tree(base), clones=self.clones)
        # Saved at once: otherwise the first scan in another process would read every file of the base.
        cache.save(self._cache(place))

    def plan(self, place: Generation) -> MountPlan:
        """Return the plain directory, bound writable."""
        return MountPlan(target=TARGET, plain=self.root(place), binds=(_bind_objects(place.layers),))

    def root(self, place: Generation) -> Path:
        """Return the plain directory."""
        return place.directory / "plain"

    def load_cache(self, place: Generation) -> StatCache:
        """Return the cached state of its files."""
        return StatCache.load(self._cache(place))

    def keep_cache(self, place: Generation, cache: StatCache, *, learnt: int) -> None:
        """Save the cache if a scan recorded many files."""
        if learnt >= _WORTH_SAVING:
            cache.save(self._cache(place))

    def _cache(self, place: Generation) -> Path:
        return place.directory / "index.msgpack"


class ReflinkDriver(WorktreeDriver):
    """A plain directory whose unchanged files are clones of the base's: for file systems such as btrfs and xfs.

    Costs an inode for each file of the base, and the blocks of changed files. It never copies instead: if the file
    system cannot clone, `make` raises `InfrastructureError` code `no_clone`.
    """

    name: DriverName = "reflink"
    clones = True


# No extension adds one: the sandbox tries each by name.
DRIVERS: Registry[Driver] = Registry("drivers", "workspace driver", extensible=False)
DRIVERS.register("overlay", OverlayDriver, "overlayfs over the shared base")
DRIVERS.register("reflink", ReflinkDriver, "a plain directory of clones")
DRIVERS.register("worktree", WorktreeDriver, "a plain directory of copies")


def _fill_plain(
    fd: int, source: int, base: Entries, tree: Entries, same: TreeWriter, other: TreeWriter, path: bytes
) -> None:
    """Write a directory of a tree: entries that equal the base by `same` from its files, all others by `other`."""
    alike = same.attributes.chain(path) == other.attributes.chain(path)
    for name, entry in tree.items():
        before = base.get(name)
        if before == entry and (alike or is_shown_alike(path + name, entry, same.attributes, other.attributes)):
            same.entry(fd, name, entry, path, copy_from=source)
        elif before is not None and before.is_tree and entry.is_tree:
            other.directory(fd, name)
            with open_directory(name, at=fd) as below, open_directory(name, at=source) as below_source:
                reader = other.reader
                deeper = path + name + b"/"
                _fill_plain(below, below_source, reader.below(before), reader.below(entry), same, other, deeper)
        else:
            other.entry(fd, name, entry, path)


def _add_missing(environment: Path, place: Path, reader: ObjectReader, base: Entries, *, clones: bool) -> None:
    """Copy files that neither `place` has nor `base` tracks; never change existing files or follow a link."""
    for found in os.scandir(environment):
        target = place / found.name
        entry = base.get(os.fsencode(found.name))
        directory = found.is_dir(follow_symlinks=False)
        # Also if the tree lacks it: over an overlay its whiteout hides the environment's entry too.
        if entry is not None and not (directory and entry.is_tree):
            continue
        if directory:
            if not os.path.lexists(target):
                make_owned(target)
            if target.is_dir() and not target.is_symlink():
                _add_missing(environment / found.name, target, reader, reader.below(entry), clones=clones)
        elif not os.path.lexists(target):
            if found.is_file(follow_symlinks=False):
                if clones:
                    with open(found, "rb") as old, open(target, "xb") as new:
                        clone_file(old.fileno(), new.fileno())
                else:
                    shutil.copyfile(found.path, target)
                shutil.copystat(found.path, target)
            else:
                shutil.copy2(found.path, target, follow_symlinks=False)
            # `shutil` does not copy the owner, and the sandbox's user cannot change files of root.
            if os.geteuid() == 0:
                info = found.stat(follow_symlinks=False)
                os.chown(target, info.st_uid, info.st_gid, follow_symlinks=False)


@contextmanager
def open_root(driver: Driver, place: Generation) -> Iterator[int]:
    """Open the directory that a scan walks, restoring the owner's access if an agent removed it.

    The mode of this directory is in no tree, and the files in it must not be lost because of it.
    """
    root = driver.root(place)
    mode = stat.S_IMODE(root.lstat().st_mode)
    if mode & stat.S_IRWXU != stat.S_IRWXU:
        root.chmod(mode | stat.S_IRWXU)
    with open_directory(root) as fd:
        yield fd
