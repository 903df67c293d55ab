"""The ways a workspace lies on disk, behind one seam."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from chargehand.core.ports import Bind, DriverName, MountPlan
from chargehand.workspace._bases import OBJECTS_TARGET, BaseLayers
from chargehand.workspace._files import make_owned
from chargehand.workspace._materialise import fill_plain, fill_upper
from chargehand.workspace._statcache import StatCache
from chargehand.workspace._trees import ObjectReader

TARGET = "/workspace"
_MANY = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One generation of a workspace: a directory of its own, made whole and never rewound."""

    directory: Path
    layers: BaseLayers
    environment: Path | None


class Driver(Protocol):
    """How one generation is made, mounted and read. A rollback always makes a new generation."""

    name: DriverName

    def make(self, place: Place, *, base: bytes, tree: bytes, reader: ObjectReader) -> None:
        """Make the generation show `tree`; `place.directory` exists and is empty."""
        ...

    def plan(self, place: Place) -> MountPlan:
        """Return how a sandbox mounts it."""
        ...

    def root(self, place: Place) -> Path:
        """Return the directory that a scan walks: an agent's writes and nothing else of ours."""
        ...

    def load_cache(self, place: Place) -> StatCache:
        """Return what is known of its files from earlier."""
        ...

    def keep_cache(self, place: Place, cache: StatCache, *, learnt: int) -> None:
        """Keep what a scan learnt, where that pays."""
        ...


def _objects(layers: BaseLayers) -> Bind:
    return Bind(source=layers.objects, target=OBJECTS_TARGET)


class OverlayDriver:
    """Kernel overlayfs: the agent's writes land in `upper`, the base is shared and stays as it is.

    The environment lies below the base: what the base tracks wins over what a setup once left at that path.
    """

    name: DriverName = "overlay"

    def make(self, place: Place, *, base: bytes, tree: bytes, reader: ObjectReader) -> None:
        """Make the upper that shows `tree` over the base, and an empty work directory."""
        fill_upper(self.root(place), base=base, tree=tree, reader=reader, environment=place.environment)
        make_owned(place.directory / "work")

    def plan(self, place: Place) -> MountPlan:
        """Return the overlay: git layer over base over environment."""
        environment = () if place.environment is None else (place.environment,)
        return MountPlan(
            target=TARGET,
            lowers=(place.layers.git, place.layers.tree, *environment),
            upper=self.root(place),
            work=place.directory / "work",
            binds=(_objects(place.layers),),
        )

    def root(self, place: Place) -> Path:
        """Return the upper."""
        return place.directory / "upper"

    def load_cache(self, place: Place) -> StatCache:
        """Return an empty cache: an upper holds little."""
        return StatCache()

    def keep_cache(self, place: Place, cache: StatCache, *, learnt: int) -> None:
        """Keep nothing."""


class WorktreeDriver:
    """A plain directory with a copy of the base: for machines without overlayfs. Costs the size of the base."""

    name: DriverName = "worktree"
    clones = False

    def make(self, place: Place, *, base: bytes, tree: bytes, reader: ObjectReader) -> None:
        """Copy the tree, the agent's `.git` and the environment; keep what is known of the files outside."""
        cache = StatCache()
        fill_plain(
            self.root(place),
            layers=place.layers,
            base=base,
            tree=tree,
            reader=reader,
            environment=place.environment,
            cache=cache,
            clones=self.clones,
        )
        cache.save(self._cache(place))

    def plan(self, place: Place) -> MountPlan:
        """Return the plain directory, bound writable."""
        return MountPlan(target=TARGET, plain=self.root(place), binds=(_objects(place.layers),))

    def root(self, place: Place) -> Path:
        """Return the plain directory."""
        return place.directory / "plain"

    def load_cache(self, place: Place) -> StatCache:
        """Return what is known of its files."""
        return StatCache.load(self._cache(place))

    def keep_cache(self, place: Place, cache: StatCache, *, learnt: int) -> None:
        """Keep it when much was learnt: writing it costs as much as reading some hundred files."""
        if learnt >= _MANY:
            cache.save(self._cache(place))

    def _cache(self, place: Place) -> Path:
        return place.directory / "index.msgpack"


class ReflinkDriver(WorktreeDriver):
    """A plain directory whose unchanged files are clones of the base's: for btrfs, xfs and whatever shares blocks.

    Costs an inode for each file of the base, and the blocks of what is changed. It never copies instead: where
    the file system cannot clone, `make` raises `InfrastructureError` code `no_clone`.
    """

    name: DriverName = "reflink"
    clones = True


DRIVERS: dict[DriverName, Driver] = {
    driver.name: driver for driver in (OverlayDriver(), ReflinkDriver(), WorktreeDriver())
}


@contextmanager
def open_root(driver: Driver, place: Place) -> Iterator[int]:
    """Open the directory that a scan walks; one that an agent closed to its owner is opened to it again.

    The mode of this directory is in no tree, and what stands in it is not to be lost with it.
    """
    root = driver.root(place)
    mode = stat.S_IMODE(root.lstat().st_mode)
    if mode & stat.S_IRWXU != stat.S_IRWXU:
        root.chmod(mode | stat.S_IRWXU)
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
