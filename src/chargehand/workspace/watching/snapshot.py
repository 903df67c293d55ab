"""Holds what is known of a directory tree against what is on disk, and tells the difference.

A directory that appears is looked at once its watch is set; so what its own, still queued events tell is known
already (`Spot.found`). Every directory is opened step by step from the top and never through a link.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Literal

from chargehand.workspace.file_events import FileEvent, Gap, Outbox, SeenKind
from chargehand.workspace.scan import opaque_attribute
from chargehand.workspace.watching.directories import Spot, SpotRules
from chargehand.workspace.watching.inotify import Inotify

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
EDIT_SECONDS = 1.0
"""Writes through one descriptor are one edit, told anew after this time."""
_MAX_OPEN = 4096
_MAX_IGNORED_WATCHES = 4096


class Look:
    """What is known of one directory tree; used by one thread at a time."""

    def __init__(self, root: Path, rules: SpotRules, outbox: Outbox) -> None:
        self.blind: list[Spot] = []
        self.inotify = Inotify()
        self._rules = rules
        self._outbox = outbox
        self._opaque = opaque_attribute()
        self._spots: dict[int, Spot] = {}
        self._open: dict[tuple[Spot, bytes], float] = {}
        self._fresh: list[Spot] = []
        self._ignored_watches = 0
        self._waits = False
        self._now = 0.0
        try:
            self._top = os.open(root, _DIRECTORY)
        except OSError:
            self.inotify.close()
            raise
        self._root = rules.root(os.fstat(self._top).st_ino, merged=self._is_merged(self._top))
        with_copy = self._opened(self._root)
        try:
            self._enter(self._root, with_copy, tell=False)
        finally:
            os.close(with_copy)

    def close(self) -> None:
        """Give back watches and descriptors."""
        self.inotify.close()
        os.close(self._top)

    # --- looking

    def look(self, *, since: int) -> None:
        """Tell what differs from what is known: names, and files whose inode changed after `since` (ns)."""
        self._waits = True
        try:
            self._list_again(self._root, since=since, deep=True)
        finally:
            self._waits = False

    def look_at_blind(self, *, since: int) -> None:
        """Tell what differs in the directories that no watch could be had for."""
        self.blind = [spot for spot in self.blind if spot.wd < 0 and self._attached(spot)]
        for spot in tuple(self.blind):
            self._list_again(spot, since=since, deep=False)

    def _attached(self, spot: Spot) -> bool:
        while spot.parent is not None:
            if spot.parent.children.get(spot.name) is not spot:
                return False
            spot = spot.parent
        return spot is self._root

    def _list_again(self, spot: Spot, *, since: int | None, deep: bool) -> None:
        with suppress(OSError):  # gone since: its own event comes
            fd = self._opened(spot)
            try:
                self._list(spot, fd, tell=True, since=since, deep=deep)
            finally:
                os.close(fd)

    def _look_at(self, spot: Spot, name: bytes, *, deep: bool = False) -> None:
        """Bring what is known of one name up to what is on disk, and tell the difference."""
        with suppress(OSError):
            fd = self._opened(spot)
            try:
                self._entry(spot, name, fd, tell=True, since=None, deep=deep)
            finally:
                os.close(fd)

    def _enter(self, spot: Spot, fd: int, *, tell: bool) -> None:
        """Watch a directory, then look at it: what was made before the watch was set is found, not seen."""
        self._watch(spot, fd)
        self._list(spot, fd, tell=tell, since=None, deep=False)

    def _watch(self, spot: Spot, fd: int) -> None:
        reached = self._rules.reaches(spot)
        if not reached and spot.wd < 0:
            if self._ignored_watches >= _MAX_IGNORED_WATCHES:
                return
            self._ignored_watches += 1
        try:
            wd = self.inotify.watch(fd)
        except OSError as problem:
            if reached:
                self._unwatched(spot, problem)
            return
        if spot.wd not in (-1, wd):
            self._spots.pop(spot.wd, None)
        before = self._spots.get(wd)
        if before is not None and before is not spot:
            before.wd = -1
        spot.wd = wd
        self._spots[wd] = spot

    def _unwatched(self, spot: Spot, problem: OSError) -> None:
        if not self.blind:
            reason: Literal["watches", "unreadable"] = "watches" if problem.errno == errno.ENOSPC else "unreadable"
            self._put(Gap(reason, os.fsdecode(spot.path)))
        self.blind.append(spot)

    def _list(self, spot: Spot, fd: int, *, tell: bool, since: int | None, deep: bool) -> None:
        """Bring what is known of a directory up to what is on disk; with `deep` also those below it."""
        with os.scandir(fd) as listing:
            names = sorted(os.fsencode(entry.name) for entry in listing)
        for name in names:
            self._entry(spot, name, fd, tell=tell, since=since, deep=deep)
        there = set(names)
        for name in sorted(spot.names - there):
            self._vanished(spot, name, "deleted", found=True)
        for name in sorted(set(spot.children) - there):
            self._drop(spot, name)

    def _entry(self, spot: Spot, name: bytes, fd: int, *, tell: bool, since: int | None, deep: bool) -> None:
        if spot is self._root and name == b".git":
            return
        try:
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            if name in spot.names:
                self._vanished(spot, name, "deleted", found=True)
            if name in spot.children:
                self._drop(spot, name)
            return
        if stat.S_ISDIR(info.st_mode):
            self._entry_directory(spot, name, fd, info.st_ino, tell=tell, since=since, deep=deep)
            return
        if name in spot.children:
            self._drop(spot, name)
        if not self._rules.reaches(spot):
            self._outbox.count_ignored()
        elif self._is_whiteout(info):
            self._entry_whiteout(spot, name, tell=tell)
        else:
            self._entry_file(spot, name, info, tell=tell, since=since)

    def _entry_whiteout(self, spot: Spot, name: bytes, *, tell: bool) -> None:
        self._mark_found(spot, name)
        if self._exists(spot, name):
            if tell:
                self._vanished(spot, name, "deleted", found=True)
            spot.names.discard(name)
        elif tell:
            self._base_gone(spot, name, None)
        if self._rules.base_entry(spot, name) is not None:
            spot.gone.add(name)

    def _entry_file(self, spot: Spot, name: bytes, info: os.stat_result, *, tell: bool, since: int | None) -> None:
        if name in spot.names:
            if since is not None and info.st_ctime_ns >= since:
                self._tell(spot, name, "modified", found=True)
            return
        self._mark_found(spot, name)
        if not tell:
            spot.names.add(name)
            return
        self._base_gone(spot, name, None)
        shows = self._rules.shows_through(spot, name)
        self._appeared(spot, name, "modified" if shows else "created", found=True)

    def _entry_directory(
        self, spot: Spot, name: bytes, fd: int, inode: int, *, tell: bool, since: int | None, deep: bool
    ) -> None:
        child = spot.children.get(name)
        if child is not None and child.inode != inode:
            self._drop(spot, name)
            child = None
        if child is not None and child.wd >= 0 and not deep:
            return
        if name in spot.names:
            self._vanished(spot, name, "deleted", found=True)
        try:
            inside = os.open(name, _DIRECTORY, dir_fd=fd)
        except OSError as problem:
            if child is None:
                self._closed_door(spot, name, inode, problem)
            return
        try:
            if child is None:
                self._new_directory(spot, name, inside, tell=tell)
            else:
                self._watch(child, inside)  # also where there was one: the number of a dead inode is used again
                self._list(child, inside, tell=tell, since=since, deep=deep)
        finally:
            os.close(inside)

    def _closed_door(self, spot: Spot, name: bytes, inode: int, problem: OSError) -> None:
        """A directory that cannot be opened is known, so that it is tried again when its mode changes."""
        if problem.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # replaced since: its own event comes
            return
        child = self._rules.child(spot, name, inode, merged=spot.merged)
        spot.children[name] = child
        if self._rules.reaches(child):
            self._unwatched(child, problem)

    def _new_directory(self, spot: Spot, name: bytes, fd: int, *, tell: bool) -> None:
        merged = self._is_merged(fd) and name not in spot.gone
        child = self._rules.child(spot, name, os.fstat(fd).st_ino, merged=merged)
        if not merged:
            if tell:
                self._base_gone(spot, name, None)
            if self._rules.base_entry(spot, name) is not None:
                spot.gone.add(name)
        spot.children[name] = child
        if not self._rules.too_deep(child):
            self._enter(child, fd, tell=tell)

    # --- what is known

    def _drop(self, parent: Spot, name: bytes) -> None:
        """Forget a directory that is gone and tell what went with it."""
        child = parent.children[name]
        for spot in child.below():
            for each in sorted(spot.names):
                self._tell(spot, each, "deleted", found=True)
            if spot.wd >= 0:
                self._spots.pop(spot.wd, None)
                self.inotify.forget(spot.wd)
        self._base_gone(parent, name, child)
        del parent.children[name]

    def _base_gone(self, parent: Spot, name: bytes, child: Spot | None) -> None:
        """Tell the files of the base that a directory of it takes along, those that were told left out."""
        entry = self._rules.base_entry(parent, name)
        if entry is None or not entry.is_tree or name in parent.gone or not self._rules.overlay:
            return
        parent.gone.add(name)
        if child is not None and not child.merged:
            return
        for path in self._still_there(child, entry.id, parent.path + name + b"/"):
            self._put(FileEvent(os.fsdecode(path), "deleted", found=True))

    def _still_there(self, spot: Spot | None, tree: bytes, prefix: bytes) -> list[bytes]:
        if spot is None:
            return list(self._rules.base_files(tree, prefix))
        found: list[bytes] = []
        for name, entry in self._rules.tree(tree).items():
            below = spot.children.get(name)
            if name in spot.gone or (below is not None and not below.merged):
                continue
            if entry.is_tree:
                found += self._still_there(below, entry.id, prefix + name + b"/")
            elif name not in spot.names:
                found.append(prefix + name)
        return found

    def _appeared(self, spot: Spot, name: bytes, kind: SeenKind, *, found: bool = False) -> None:
        spot.names.add(name)
        spot.gone.discard(name)
        self._edit(spot, name)
        self._tell(spot, name, kind, found=found)

    def _vanished(self, spot: Spot, name: bytes, kind: SeenKind, *, found: bool = False) -> None:
        if self._rules.shows_through(spot, name):
            spot.gone.add(name)
        spot.names.discard(name)
        self._open.pop((spot, name), None)
        self._tell(spot, name, kind, found=found)

    def _exists(self, spot: Spot, name: bytes) -> bool:
        return name in spot.names or self._rules.shows_through(spot, name)

    def _edit(self, spot: Spot, name: bytes) -> None:
        if len(self._open) >= _MAX_OPEN:
            self._open.pop(next(iter(self._open)))
        self._open[(spot, name)] = self._now

    def _being_edited(self, spot: Spot, name: bytes) -> bool:
        return self._now - self._open.get((spot, name), -EDIT_SECONDS) < EDIT_SECONDS

    # --- disk

    def _opened(self, spot: Spot) -> int:
        """Open a directory step by step from the top, never through a link. Raises `OSError`."""
        parts: list[bytes] = []
        while spot.parent is not None:
            parts.append(spot.name)
            spot = spot.parent
        fd = os.open(".", _DIRECTORY, dir_fd=self._top)
        for name in reversed(parts):
            try:
                inside = os.open(name, _DIRECTORY, dir_fd=fd)
            finally:
                os.close(fd)
            fd = inside
        return fd

    def _state(self, spot: Spot, name: bytes) -> Literal["nothing", "whiteout", "link", "other"]:
        try:
            fd = self._opened(spot)
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

    # --- telling

    def _mark_found(self, spot: Spot, name: bytes) -> None:
        if not spot.found:
            self._fresh.append(spot)
        spot.found.add(name)

    def _tell(self, spot: Spot, name: bytes, kind: SeenKind, *, found: bool = False) -> None:
        if self._rules.reaches(spot) and self._rules.listed(spot, name):
            self._put(FileEvent(os.fsdecode(spot.path + name), kind, found))
        else:
            self._outbox.count_ignored()

    def _put(self, event: FileEvent | Gap) -> None:
        if self._waits:
            self._outbox.put_found(event)
        else:
            self._outbox.put(event)
