"""A snapshot of a directory tree: compares it with the disk and reports differences.

A new directory is listed after its watch is set, so its events that are still queued are known already
(`WatchedDirectory.found`). Every directory is opened step by step from the top and never through a link.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Literal

from chargehand.workspace.file_events import EventQueue, FileEvent, Gap, SeenKind
from chargehand.workspace.scan import opaque_attribute
from chargehand.workspace.watching.directories import WatchedDirectory, WatchRules
from chargehand.workspace.watching.inotify import Inotify

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
EDIT_SECONDS = 1.0
"""Writes within this time are one edit, reported once."""
_MAX_EDITS = 4096
_MAX_IGNORED_WATCHES = 4096  # at most half of the kernel's limit per user, 8,192 on small machines


class DirectorySnapshot:
    """The known state of one directory tree; used by one thread at a time."""

    def __init__(self, root: Path, rules: WatchRules, queue: EventQueue) -> None:
        self.blind: list[WatchedDirectory] = []
        self.inotify = Inotify()
        self._rules = rules
        self._queue = queue
        self._opaque = opaque_attribute()
        self._nodes: dict[int, WatchedDirectory] = {}
        self._edits: dict[tuple[WatchedDirectory, bytes], float] = {}
        self._fresh: set[WatchedDirectory] = set()
        self._ignored_watches = 0
        self._wait_for_room = False
        self._gap_told = True  # files that exist when watching begins are not reported, so no gap
        self._now = 0.0
        try:
            self._top = os.open(root, _DIRECTORY)
        except OSError:
            self.inotify.close()
            raise
        self._root = rules.root(os.fstat(self._top).st_ino, merged=self._is_merged(self._top))
        fd = self._open_node(self._root)  # a separate one: listing a descriptor moves its position
        try:
            self._enter(self._root, fd, report=False)
        finally:
            os.close(fd)
        self._gap_told = False

    def close(self) -> None:
        """Release watches and descriptors."""
        self.inotify.close()
        os.close(self._top)

    # --- comparing

    def report_changes(self, *, since: int) -> None:
        """Report differences from the known state: names, and files whose inode changed after `since` (ns)."""
        self._wait_for_room = self._gap_told = True
        try:
            self._rescan(self._root, since=since, deep=True)
        finally:
            self._wait_for_room = self._gap_told = False

    def poll_blind(self, *, since: int) -> None:
        """Report differences in the directories for which no watch was available."""
        self.blind = [node for node in self.blind if node.wd < 0 and node.is_attached_to(self._root)]
        self._gap_told = True
        for node in tuple(self.blind):
            self._rescan(node, since=since, deep=False)
        self._gap_told = False

    def _rescan(self, node: WatchedDirectory, *, since: int | None, deep: bool) -> None:
        with suppress(OSError):  # gone since: its event will come
            fd = self._open_node(node)
            try:
                self._scan_directory(node, fd, report=True, since=since, deep=deep)
            finally:
                os.close(fd)

    def _refresh_entry(self, node: WatchedDirectory, name: bytes, *, deep: bool = False) -> None:
        """Update the known state of one name from disk, and report the difference."""
        with suppress(OSError):
            fd = self._open_node(node)
            try:
                self._scan_entry(node, name, fd, report=True, since=None, deep=deep)
            finally:
                os.close(fd)

    def _enter(
        self, node: WatchedDirectory, fd: int, *, report: bool, since: int | None = None, deep: bool = False
    ) -> None:
        """Watch a directory, then list it: files made before the watch was set are found, not seen."""
        told = self._gap_told
        before = node.wd
        self._watch(node, fd)
        if node.wd not in (-1, before):
            self._fresh.add(node)
            # No time stamp proves that a new directory was left alone: one tick of the clock covers many changes.
            if not told and self._rules.reaches(node) and not self._has_names_of_base(node, fd):
                self._queue_event(Gap("new_directory", os.fsdecode(node.path)))
                self._gap_told = True  # for all below it as well
        self._scan_directory(node, fd, report=report, since=since, deep=deep)
        self._gap_told = told

    def _has_names_of_base(self, node: WatchedDirectory, fd: int) -> bool:
        """Return whether nothing was made or removed in a copied directory of the base.

        overlayfs gives it the time of the base's directory, also again after each file that it copies into it.
        """
        if node.merged:
            for lower in self._rules.lowers:
                with suppress(OSError):
                    before = os.stat(lower / os.fsdecode(node.path), follow_symlinks=False)
                    return before.st_mtime_ns == os.fstat(fd).st_mtime_ns
        return False

    def _watch(self, node: WatchedDirectory, fd: int) -> None:
        reached = self._rules.reaches(node)
        if not reached and node.wd < 0:
            if self._ignored_watches >= _MAX_IGNORED_WATCHES:
                return
            self._ignored_watches += 1
        try:
            wd = self.inotify.watch(fd)
        except OSError as problem:
            if reached:
                self._mark_blind(node, problem)
            return
        if node.wd not in (-1, wd):
            self._nodes.pop(node.wd, None)
        before = self._nodes.get(wd)
        # The kernel has one watch per inode: a directory that moved unseen keeps its old watch.
        if before is not None and before is not node:
            before.wd = -1
        node.wd = wd
        self._nodes[wd] = node

    def _mark_blind(self, node: WatchedDirectory, problem: OSError) -> None:
        if not self.blind:
            reason: Literal["watches", "unreadable"] = "watches" if problem.errno == errno.ENOSPC else "unreadable"
            self._queue_event(Gap(reason, os.fsdecode(node.path)))
        self.blind.append(node)

    def _scan_directory(
        self, node: WatchedDirectory, fd: int, *, report: bool, since: int | None, deep: bool
    ) -> None:
        """Update the known state of a directory from disk; with `deep` also that of the directories below it."""
        with os.scandir(fd) as listing:
            names = sorted(os.fsencode(entry.name) for entry in listing)
        for name in names:
            self._scan_entry(node, name, fd, report=report, since=since, deep=deep)
        there = set(names)
        for name in sorted(node.names - there):
            self._remove_file(node, name, "deleted", found=True)
        for name in sorted(set(node.children) - there):
            self._drop(node, name)

    def _scan_entry(
        self, node: WatchedDirectory, name: bytes, fd: int, *, report: bool, since: int | None, deep: bool
    ) -> None:
        if node is self._root and name == b".git":
            return
        try:
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            if name in node.names:
                self._remove_file(node, name, "deleted", found=True)
            if name in node.children:
                self._drop(node, name)
            return
        if stat.S_ISDIR(info.st_mode):
            self._scan_subdirectory(node, name, fd, info.st_ino, report=report, since=since, deep=deep)
            return
        if name in node.children:
            self._drop(node, name)
        if not self._rules.reaches(node):
            self._queue.count_ignored()
        elif self._is_whiteout(info):
            self._scan_whiteout(node, name, report=report)
        else:
            self._scan_file(node, name, info, report=report, since=since)

    def _scan_whiteout(self, node: WatchedDirectory, name: bytes, *, report: bool) -> None:
        self._mark_found(node, name)
        if self._exists(node, name):
            if report:
                self._remove_file(node, name, "deleted", found=True)
            node.names.discard(name)
        elif report:
            self._report_base_deleted(node, name, None)
        if self._rules.base_entry(node, name) is not None:
            node.gone.add(name)

    def _scan_file(
        self, node: WatchedDirectory, name: bytes, info: os.stat_result, *, report: bool, since: int | None
    ) -> None:
        if name in node.names:
            if since is not None and info.st_ctime_ns >= since:
                self._report(node, name, "modified", found=True)
            return
        self._mark_found(node, name)
        if not report:
            node.names.add(name)
            return
        self._report_base_deleted(node, name, None)
        shows = self._rules.shows_through(node, name)
        self._add_file(node, name, "modified" if shows else "created", found=True)

    def _scan_subdirectory(
        self,
        node: WatchedDirectory,
        name: bytes,
        fd: int,
        inode: int,
        *,
        report: bool,
        since: int | None,
        deep: bool,
    ) -> None:
        child = node.children.get(name)
        if child is not None and child.inode != inode:
            self._drop(node, name)
            child = None
        if child is not None and child.wd >= 0 and not deep:
            return
        if name in node.names:
            self._remove_file(node, name, "deleted", found=True)
        try:
            inside = os.open(name, _DIRECTORY, dir_fd=fd)
        except OSError as problem:
            # If it was replaced since, its event will come. Any other directory is recorded, so that it is tried
            # again when its mode changes.
            if child is None and problem.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                child = node.children[name] = self._rules.child(node, name, inode, merged=node.merged)
                if self._rules.reaches(child):
                    self._mark_blind(child, problem)
            return
        try:
            if child is not None and child.merged and not self._is_merged(inside):
                self._drop(node, name)  # created again with the inode number of the removed one
                child = None
            if child is None:
                self._add_directory(node, name, inside, report=report)
            else:
                # Also if there is a watch: the number of a dead inode is used again.
                self._enter(child, inside, report=report, since=since, deep=deep)
        finally:
            os.close(inside)

    def _add_directory(self, node: WatchedDirectory, name: bytes, fd: int, *, report: bool) -> None:
        merged = self._is_merged(fd) and name not in node.gone
        child = self._rules.child(node, name, os.fstat(fd).st_ino, merged=merged)
        if not merged:
            if report:
                self._report_base_deleted(node, name, None)
            if self._rules.base_entry(node, name) is not None:
                node.gone.add(name)
        node.children[name] = child
        if not self._rules.too_deep(child):
            self._enter(child, fd, report=report)

    # --- known state

    def _drop(self, parent: WatchedDirectory, name: bytes) -> None:
        """Forget a directory that is gone and report the files that it contained."""
        child = parent.children[name]
        for node in child.below():
            for each in sorted(node.names):
                self._report(node, each, "deleted", found=True)
            if node.wd >= 0:
                self._nodes.pop(node.wd, None)
                self.inotify.forget(node.wd)
        self._report_base_deleted(parent, name, child)
        del parent.children[name]

    def _report_base_deleted(self, parent: WatchedDirectory, name: bytes, child: WatchedDirectory | None) -> None:
        """Report the base's files that were deleted with a directory, except those already reported."""
        entry = self._rules.base_entry(parent, name)
        if entry is None or not entry.is_tree or name in parent.gone or not self._rules.overlay:
            return
        parent.gone.add(name)
        if child is not None and not child.merged:
            return
        for path in self._visible_base_files(child, entry.id, parent.path + name + b"/"):
            self._queue_event(FileEvent(os.fsdecode(path), "deleted", found=True))

    def _visible_base_files(self, node: WatchedDirectory | None, tree: bytes, prefix: bytes) -> list[bytes]:
        if node is None:
            return list(self._rules.base_files(tree, prefix))
        found: list[bytes] = []
        for name, entry in self._rules.tree(tree).items():
            below = node.children.get(name)
            if name in node.gone or (below is not None and not below.merged):
                continue
            if entry.is_tree:
                found += self._visible_base_files(below, entry.id, prefix + name + b"/")
            elif name not in node.names:
                found.append(prefix + name)
        return found

    def _add_file(self, node: WatchedDirectory, name: bytes, kind: SeenKind, *, found: bool = False) -> None:
        node.names.add(name)
        node.gone.discard(name)
        # The oldest is forgotten, to keep the watcher small; its next write is reported once more.
        if len(self._edits) >= _MAX_EDITS:
            self._edits.pop(next(iter(self._edits)))
        self._edits[(node, name)] = self._now
        self._report(node, name, kind, found=found)

    def _remove_file(self, node: WatchedDirectory, name: bytes, kind: SeenKind, *, found: bool = False) -> None:
        if self._rules.shows_through(node, name):
            node.gone.add(name)
        node.names.discard(name)
        self._edits.pop((node, name), None)
        self._report(node, name, kind, found=found)

    def _exists(self, node: WatchedDirectory, name: bytes) -> bool:
        return name in node.names or self._rules.shows_through(node, name)

    def _is_being_edited(self, node: WatchedDirectory, name: bytes) -> bool:
        return self._now - self._edits.get((node, name), -EDIT_SECONDS) < EDIT_SECONDS

    # --- disk

    def _open_node(self, node: WatchedDirectory) -> int:
        """Open a directory step by step from the top, never through a link. Raises `OSError`."""
        parts: list[bytes] = []
        while node.parent is not None:
            parts.append(node.name)
            node = node.parent
        fd = os.open(".", _DIRECTORY, dir_fd=self._top)
        for name in reversed(parts):
            try:
                inside = os.open(name, _DIRECTORY, dir_fd=fd)
            finally:
                os.close(fd)
            fd = inside
        return fd

    def _kind_on_disk(
        self, node: WatchedDirectory, name: bytes
    ) -> Literal["nothing", "whiteout", "link", "other"]:
        try:
            fd = self._open_node(node)
        except OSError:
            return "nothing"
        try:
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except OSError:
            return "nothing"
        finally:
            os.close(fd)
        if self._is_whiteout(info):
            return "whiteout"
        return "link" if stat.S_ISLNK(info.st_mode) else "other"

    def _is_whiteout(self, info: os.stat_result) -> bool:
        return self._rules.overlay and stat.S_ISCHR(info.st_mode) and info.st_rdev == 0

    def _is_merged(self, fd: int) -> bool:
        if not self._rules.overlay:
            return False
        try:
            return os.getxattr(fd, self._opaque) != b"y"
        except OSError:
            return True

    # --- reporting

    def _mark_found(self, node: WatchedDirectory, name: bytes) -> None:
        self._fresh.add(node)
        node.found.add(name)

    def _report(self, node: WatchedDirectory, name: bytes, kind: SeenKind, *, found: bool = False) -> None:
        if self._rules.reaches(node) and self._rules.listed(node, name):
            self._queue_event(FileEvent(os.fsdecode(node.path + name), kind, found))
        else:
            self._queue.count_ignored()

    def _queue_event(self, event: FileEvent | Gap) -> None:
        if self._wait_for_room:
            self._queue.put_found(event)
        else:
            self._queue.put(event)
