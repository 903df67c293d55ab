"""Decodes the kernel's events into changes of paths.

With an overlay, the watched directories are those of the upper, which shows the actions of overlayfs and not those
of the agent: a deletion arrives as the rename of a character device 0:0 onto the name, and so does the re-creation
of a file; a first write arrives as the creation of the copy. `WatchedDirectory` keeps just enough state to tell
them apart.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

from chargehand.workspace.file_events import EventQueue, FileEvent, Gap
from chargehand.workspace.watching import inotify as kernel
from chargehand.workspace.watching.directories import WatchedDirectory, WatchRules
from chargehand.workspace.watching.inotify import Raw
from chargehand.workspace.watching.snapshot import EDIT_SECONDS, DirectorySnapshot

_LATE_MOVES = 2


class EventDecoder(DirectorySnapshot):
    """A directory snapshot kept up to date by the events of its watches."""

    def __init__(self, root: Path, rules: WatchRules, queue: EventQueue) -> None:
        self.overflowed = False
        self._pairs: set[int] = set()
        self._leaving: dict[int, tuple[WatchedDirectory, bytes]] = {}
        self._later: Counter[tuple[int, bytes]] = Counter()
        super().__init__(root, rules, queue)

    def step(self) -> int:
        """Process the next events from the kernel; return their number."""
        raws = self.inotify.read()
        for _ in range(_LATE_MOVES):  # the other end of a move may not be queued yet
            if not raws or not raws[-1].mask & kernel.MOVED_FROM:
                break
            time.sleep(0.001)
            raws += self.inotify.read()
        self._dispatch(raws)
        if not raws:  # the queue is empty: from here on events are newer than the listing
            for node in self._fresh:
                self._edits |= {(node, name): -EDIT_SECONDS for name in node.found if (node, name) in self._edits}
                node.found.clear()
            self._fresh.clear()
            self._leaving.clear()
        return len(raws)

    @property
    def behind(self) -> bool:
        """Whether a directory was just entered, so that more files may appear in it before the next reading."""
        return bool(self._fresh)

    def expire_edits(self) -> None:
        """Report the next write to any file, even one that is being edited: all earlier writes were handled."""
        self._edits = dict.fromkeys(self._edits, -EDIT_SECONDS)

    def _dispatch(self, raws: list[Raw]) -> None:
        self._now = time.monotonic()
        left = {raw.cookie for raw in raws if raw.mask & kernel.MOVED_FROM}
        came = {raw.cookie for raw in raws if raw.mask & kernel.MOVED_TO}
        self._pairs = left & came
        self._later = Counter(
            (raw.wd, raw.name)
            for raw in raws
            if raw.mask & kernel.MOVED_TO and not raw.mask & kernel.ISDIR and raw.cookie not in self._pairs
        )
        for raw in raws:
            node = self._nodes.get(raw.wd)
            if raw.mask & kernel.OVERFLOW:
                self.overflowed = True
            elif node is None:
                continue
            elif raw.mask & kernel.IGNORED:
                del self._nodes[raw.wd]
                node.wd = -1
            # A change that cannot be queued must not count as known: the scan that follows reports it.
            elif self._queue.lost or not raw.name or (node is self._root and raw.name == b".git"):
                continue
            elif raw.mask & kernel.ISDIR:
                self._on_directory(node, raw)
            elif not self._rules.reaches(node):
                self._queue.count_ignored()
            elif raw.mask & (kernel.MODIFY | kernel.CLOSE_WRITE | kernel.ATTRIB):
                self._on_content(node, raw)
            elif raw.mask & kernel.MOVED_TO:
                self._on_moved_to(node, raw)
            else:
                self._on_name(node, raw)

    # --- files

    def _on_content(self, node: WatchedDirectory, raw: Raw) -> None:
        name = raw.name
        exists = self._exists(node, raw.name)
        if raw.mask & kernel.MODIFY:
            if not self._is_being_edited(node, name):
                # The kernel joins equal events, so over an overlay a deletion and a re-creation may be one event.
                self._add_file(node, name, "modified" if exists else "created")
        elif raw.mask & kernel.CLOSE_WRITE:
            if self._edits.pop((node, name), None) is not None:
                return
            if exists:
                self._report(node, name, "touched")
            else:
                self._add_file(node, name, "created")
                del self._edits[(node, name)]
        elif exists and not self._is_being_edited(node, name):
            self._report(node, name, "touched")

    def _on_name(self, node: WatchedDirectory, raw: Raw) -> None:
        """Act on a file that was created, deleted, or moved elsewhere."""
        name = raw.name
        found = raw.name in node.found
        node.found.discard(name)
        if raw.mask & kernel.CREATE:
            if found:
                return
            if name not in node.names and self._rules.shows_through(node, name):
                node.names.add(name)  # copied up: the event that caused the copy comes next
            else:
                self._add_file(node, name, "created")
        elif raw.mask & kernel.DELETE:
            if name in node.names:
                self._remove_file(node, name, "deleted")
            elif node in self._fresh and not found and self._rules.base_entry(node, name) is None:
                # Created before the directory was watched, deleted before it was listed.
                self._report(node, name, "created", found=True)
                self._report(node, name, "deleted")
        elif self._exists(node, name):
            paired = raw.cookie in self._pairs
            if paired:
                self._leaving[raw.cookie] = (node, name)
            self._remove_file(node, name, "renamed_from" if paired else "deleted")

    def _on_moved_to(self, node: WatchedDirectory, raw: Raw) -> None:
        name = raw.name
        if raw.cookie in self._leaving:
            del self._leaving[raw.cookie]
            node.names.add(name)
            node.gone.discard(name)
            self._report(node, name, "renamed_to")
        elif name in node.found or name in node.children:
            self._refresh_entry(node, name)
        else:
            self._later[(raw.wd, name)] -= 1
            again = self._later[(raw.wd, name)] > 0
            # It comes from an unwatched place: overlayfs's work directory, or a new directory. If more such events
            # are queued for the name, its present state on disk says nothing about this event.
            present = self._exists(node, name)
            there = self._kind_on_disk(node, name)
            if not present:
                if again or there != "whiteout":
                    self._add_file(node, name, "created")
                elif self._rules.base_entry(node, name) is not None:
                    node.gone.add(name)
            elif self._rules.overlay and (again or there in ("whiteout", "nothing")):
                self._remove_file(node, name, "deleted")
            elif there == "link" and name not in node.names:
                node.names.add(name)  # a link is copied up by a rename
            else:
                self._add_file(node, name, "modified")

    # --- directories

    def _on_directory(self, node: WatchedDirectory, raw: Raw) -> None:
        """Act on an event of a directory: follow moves; for all other events use the present state on disk."""
        child = node.children.get(raw.name)
        if raw.mask & kernel.ATTRIB:
            if child is not None and child.wd < 0:
                self._refresh_entry(node, raw.name)
        elif raw.mask & kernel.MOVED_FROM and raw.cookie in self._pairs and child is not None:
            self._leaving[raw.cookie] = (node, raw.name)
        elif raw.mask & kernel.MOVED_TO and raw.cookie in self._leaving:
            old, name = self._leaving.pop(raw.cookie)
            self._move_directory(old, name, node, raw.name)
        else:
            self._refresh_entry(node, raw.name)
            if raw.mask & (kernel.CREATE | kernel.MOVED_TO) and raw.name not in node.children:
                gone = self._rules.child(node, raw.name, 0, merged=node.merged)
                if self._rules.reaches(gone):
                    self._queue_event(Gap("new_directory", os.fsdecode(gone.path)))

    def _move_directory(
        self, old: WatchedDirectory, old_name: bytes, new: WatchedDirectory, new_name: bytes
    ) -> None:
        child = old.children.get(old_name)
        if child is None:
            self._refresh_entry(new, new_name)
            return
        if new_name in new.children:
            self._drop(new, new_name)
        was_listed, was_reached = not child.ignored, self._rules.reaches(child)
        if was_listed:
            self._queue_event(FileEvent(os.fsdecode(child.path), "renamed_from"))
        del old.children[old_name]
        child.parent, child.name = new, new_name
        new.children[new_name] = child
        self._rules.settle(child)
        if not child.ignored:
            self._queue_event(FileEvent(os.fsdecode(child.path), "renamed_to"))
        if not was_listed and child.ignored:
            self._queue.count_ignored()
        if not was_reached and self._rules.reaches(child):
            self._refresh_entry(new, new_name, deep=True)
