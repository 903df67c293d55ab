"""What a watcher knows of the directories it watches: what is there, what the base has there, what is ignored."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from chargehand.workspace.tree.ignore import IgnoreChain, IgnoreFile
from chargehand.workspace.tree.objects import (
    EXECUTABLE,
    FILE,
    NOTHING,
    Entries,
    ObjectReader,
    TreeEntry,
    parse_tree,
)

_KEPT_TREES = 64  # the scan's own reader keeps thousands; a watcher has to stay small


@dataclass(slots=True, eq=False)
class Spot:
    """One directory; `names` are its entries on disk that are no directories, `gone` the base's that are deleted.

    `base` and `start` are tree ids. `merged`: the base's entries show through. `found` holds names whose state was
    read from disk ahead of the events that are still queued.
    """

    parent: Spot | None
    name: bytes
    inode: int
    wd: int
    base: bytes | None
    start: bytes | None
    chain: IgnoreChain
    merged: bool
    ignored: bool
    included: bool
    depth: int
    names: set[bytes]
    gone: set[bytes]
    children: dict[bytes, Spot]
    found: set[bytes]

    @property
    def path(self) -> bytes:
        """The path below the root: empty, or ending in '/'."""
        parts: list[bytes] = []
        spot: Spot | None = self
        while spot is not None and spot.parent is not None:
            parts.append(spot.name)
            spot = spot.parent
        return b"".join(part + b"/" for part in reversed(parts))

    def below(self) -> Iterator[Spot]:
        """Yield this directory and all that are known below it."""
        pending = [self]
        while pending:
            spot = pending.pop()
            yield spot
            pending.extend(spot.children.values())


class SpotRules:
    """Tells for a workspace what belongs to the tree, as its scan does."""

    def __init__(
        self,
        reader: ObjectReader,
        *,
        base: bytes,
        start: bytes,
        overlay: bool,
        include: IgnoreFile | None,
        environment: str | None,
        depth: int,
    ) -> None:
        self.overlay = overlay
        self._reader = reader
        self._base, self._start = base, start
        self._include = include
        self._environment = None if environment is None else os.fsencode(environment)
        self._depth = depth
        self._trees: OrderedDict[bytes, Entries] = OrderedDict()
        self._files: dict[bytes, IgnoreFile] = {}

    def tree(self, id: bytes | None) -> Entries:
        """Return the entries of a tree of the depot."""
        if id is None:
            return NOTHING
        known = self._trees.get(id)
        if known is None:
            known = self._trees[id] = parse_tree(self._reader.read(id)[1])
            if len(self._trees) > _KEPT_TREES:
                self._trees.popitem(last=False)
        else:
            self._trees.move_to_end(id)
        return known

    def root(self, inode: int, *, merged: bool) -> Spot:
        """Return the top directory."""
        chain = self._entered(IgnoreChain(), b"", self._base)
        base, start = self._base, self._start
        return Spot(None, b"", inode, -1, base, start, chain, merged, False, False, 0, set(), set(), {}, set())

    def child(self, parent: Spot, name: bytes, inode: int, *, merged: bool) -> Spot:
        """Return a directory as it starts out; nothing of what it holds is known yet."""
        spot = Spot(
            parent, name, inode, -1, None, None, parent.chain, merged, False, False, 0, set(), set(), {}, set()
        )
        self.settle(spot)
        return spot

    def settle(self, spot: Spot) -> None:
        """Work out what depends on where a directory lies, for it and all below it."""
        for each in spot.below():
            if each.parent is None:
                continue
            parent, path = each.parent, each.path
            base, start = self._entry(parent.base, each.name), self._entry(parent.start, each.name)
            each.base = base.id if base is not None and base.is_tree else None
            each.start = start.id if start is not None and start.is_tree else None
            tracked = each.base is not None or each.start is not None
            each.ignored, each.included = self._outside(parent, each.name, directory=True, tracked=tracked)
            each.merged = each.merged and parent.merged and each.base is not None
            each.depth = parent.depth + 1
            each.chain = self._entered(parent.chain, path, each.base)

    def reaches(self, spot: Spot) -> bool:
        """Tell whether the tree can have something in this directory."""
        return (
            not spot.ignored
            or spot.base is not None
            or spot.start is not None
            or (self._include is not None and self._include.may_match_below(spot.path[:-1]))
        )

    def too_deep(self, spot: Spot) -> bool:
        """Tell whether it lies deeper than a scan goes."""
        return spot.depth > self._depth

    def listed(self, spot: Spot, name: bytes) -> bool:
        """Tell whether the tree has, or could have, a file of this name."""
        if self._tracked(spot, name):
            return True
        return not self._outside(spot, name, directory=False, tracked=False)[0]

    def shows_through(self, spot: Spot, name: bytes) -> bool:
        """Tell whether the base has a file of this name that no change above it hides."""
        if not spot.merged or name in spot.gone:
            return False
        entry = self._entry(spot.base, name)
        return entry is not None and not entry.is_tree

    def base_entry(self, spot: Spot, name: bytes) -> TreeEntry | None:
        """Return what the base has at this name, hidden or not."""
        return self._entry(spot.base, name) if spot.merged else None

    def base_files(self, id: bytes, prefix: bytes) -> Iterator[bytes]:
        """Yield the path of every file of the tree `id`."""
        for name, entry in self.tree(id).items():
            if entry.is_tree:
                yield from self.base_files(entry.id, prefix + name + b"/")
            else:
                yield prefix + name

    def _entry(self, tree: bytes | None, name: bytes) -> TreeEntry | None:
        return None if tree is None else self.tree(tree).get(name)

    def _tracked(self, spot: Spot, name: bytes) -> bool:
        entries = (self._entry(spot.base, name), self._entry(spot.start, name))
        return any(entry is not None and not entry.is_tree for entry in entries)

    def _outside(self, spot: Spot, name: bytes, *, directory: bool, tracked: bool) -> tuple[bool, bool]:
        path = spot.path + name
        included = spot.included
        if not included and self._include is not None:
            included = self._include.includes(path, directory=directory)
        if included:
            return False, True
        ignored = spot.ignored or spot.chain.ignores(path, directory=directory)
        return ignored or name == b".git" or (not tracked and self._in_environment(path)), False

    def _in_environment(self, path: bytes) -> bool:
        return self._environment is not None and os.path.lexists(os.path.join(self._environment, path))

    def _entered(self, chain: IgnoreChain, path: bytes, base: bytes | None) -> IgnoreChain:
        entry = self._entry(base, b".gitignore")
        if entry is None or entry.mode not in (FILE, EXECUTABLE):
            return chain
        file = self._files.get(entry.id)
        if file is None:
            file = self._files[entry.id] = IgnoreFile(self._reader.blob(entry.id))
        return chain.enter(path, file)
