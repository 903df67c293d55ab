"""The watched directories: their content on disk, their entries in the base, and which of them are ignored."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, field

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

_KEPT_TREES = 64  # the scan's reader keeps thousands; a watcher has to stay small


class WatchedDirectory(Struct, eq=False):
    """A watched directory.

    `names` are its entries on disk that are not directories, `gone` the base's deleted entries. `wd` is the
    kernel's watch, -1 if it has no watch. `base` and `start` are tree ids. `merged`: the base's entries show
    through. `found` holds names whose state was read from disk ahead of the events that are still queued.
    """

    parent: WatchedDirectory | None
    name: bytes
    inode: int
    base: bytes | None
    start: bytes | None
    chain: IgnoreChain
    merged: bool
    wd: int = -1
    ignored: bool = False
    included: bool = False
    depth: int = 0
    names: set[bytes] = field(default_factory=set)
    gone: set[bytes] = field(default_factory=set)
    children: dict[bytes, WatchedDirectory] = field(default_factory=dict)
    found: set[bytes] = field(default_factory=set)

    @property
    def path(self) -> bytes:
        """The path below the root: empty, or ending in '/'."""
        parts: list[bytes] = []
        node: WatchedDirectory | None = self
        while node is not None and node.parent is not None:
            parts.append(node.name)
            node = node.parent
        return b"".join(part + b"/" for part in reversed(parts))

    def below(self) -> Iterator[WatchedDirectory]:
        """Yield this directory and all known directories below it."""
        pending = [self]
        while pending:
            node = pending.pop()
            yield node
            pending.extend(node.children.values())

    def is_attached_to(self, root: WatchedDirectory) -> bool:
        """Return whether every directory from `root` down to this one still lists the next."""
        node = self
        while node.parent is not None:
            if node.parent.children.get(node.name) is not node:
                return False
            node = node.parent
        return node is root


class WatchRules:
    """Decides which paths belong to the tree of a workspace, by the same rules as its scan."""

    def __init__(
        self,
        reader: ObjectReader,
        *,
        base: bytes,
        start: bytes,
        lowers: tuple[Path, ...],
        include: IgnoreFile | None,
        environment: str | None,
        depth: int,
    ) -> None:
        self.lowers = lowers
        self.overlay = bool(lowers)
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

    def root(self, inode: int, *, merged: bool) -> WatchedDirectory:
        """Return the top directory."""
        chain = self._enter_ignore_file(IgnoreChain(), b"", self._base)
        return WatchedDirectory(None, b"", inode, self._base, self._start, chain, merged)

    def child(self, parent: WatchedDirectory, name: bytes, inode: int, *, merged: bool) -> WatchedDirectory:
        """Return a new directory whose content is not known yet."""
        node = WatchedDirectory(parent, name, inode, None, None, parent.chain, merged)
        self.settle(node)
        return node

    def settle(self, node: WatchedDirectory) -> None:
        """Compute everything that depends on the position of a directory, for it and all directories below it."""
        for each in node.below():
            if each.parent is None:
                continue
            parent, path = each.parent, each.path
            base, start = self._lookup(parent.base, each.name), self._lookup(parent.start, each.name)
            each.base = base.id if base is not None and base.is_tree else None
            each.start = start.id if start is not None and start.is_tree else None
            tracked = each.base is not None or each.start is not None
            each.ignored, each.included = self._classify(parent, each.name, directory=True, tracked=tracked)
            each.merged = each.merged and parent.merged and each.base is not None
            each.depth = parent.depth + 1
            each.chain = self._enter_ignore_file(parent.chain, path, each.base)

    def reaches(self, node: WatchedDirectory) -> bool:
        """Return whether the tree can have entries in this directory."""
        return (
            not node.ignored
            or node.base is not None
            or node.start is not None
            or (self._include is not None and self._include.may_match_below(node.path[:-1]))
        )

    def too_deep(self, node: WatchedDirectory) -> bool:
        """Return whether the directory is deeper than a scan goes."""
        return node.depth > self._depth

    def listed(self, node: WatchedDirectory, name: bytes) -> bool:
        """Return whether the tree has, or could have, a file of this name."""
        entries = (self._lookup(node.base, name), self._lookup(node.start, name))
        if any(entry is not None and not entry.is_tree for entry in entries):
            return True
        return not self._classify(node, name, directory=False, tracked=False)[0]

    def shows_through(self, node: WatchedDirectory, name: bytes) -> bool:
        """Return whether the base has a file of this name that no change above it hides."""
        if not node.merged or name in node.gone:
            return False
        entry = self._lookup(node.base, name)
        return entry is not None and not entry.is_tree

    def base_entry(self, node: WatchedDirectory, name: bytes) -> TreeEntry | None:
        """Return the base's entry of this name, hidden or not."""
        return self._lookup(node.base, name) if node.merged else None

    def base_files(self, id: bytes, prefix: bytes) -> Iterator[bytes]:
        """Yield the path of every file of the tree `id`."""
        for name, entry in self.tree(id).items():
            if entry.is_tree:
                yield from self.base_files(entry.id, prefix + name + b"/")
            else:
                yield prefix + name

    def _lookup(self, tree: bytes | None, name: bytes) -> TreeEntry | None:
        return None if tree is None else self.tree(tree).get(name)

    def _classify(
        self, node: WatchedDirectory, name: bytes, *, directory: bool, tracked: bool
    ) -> tuple[bool, bool]:
        path = node.path + name
        included = node.included
        if not included and self._include is not None:
            included = self._include.includes(path, directory=directory)
        if included:
            return False, True
        ignored = node.ignored or node.chain.ignores(path, directory=directory)
        if ignored or name == b".git" or tracked or self._environment is None:
            return ignored or name == b".git", False
        return os.path.lexists(os.path.join(self._environment, path)), False

    def _enter_ignore_file(self, chain: IgnoreChain, path: bytes, base: bytes | None) -> IgnoreChain:
        entry = self._lookup(base, b".gitignore")
        if entry is None or entry.mode not in (FILE, EXECUTABLE):
            return chain
        file = self._files.get(entry.id)
        if file is None:
            file = self._files[entry.id] = IgnoreFile(self._reader.blob(entry.id))
        return chain.enter(path, file)
