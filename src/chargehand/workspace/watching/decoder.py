"""Makes changes of paths out of the kernel's events.

Over an overlay the watched directories are the upper's, which shows what overlayfs does and not what the agent
did: a deletion arrives as the rename of a character device 0:0 onto the name, a file made again over one too, a
first write as the creation of the copy. `Spot` keeps just enough to tell them apart.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

from chargehand.workspace.file_events import FileEvent, Outbox
from chargehand.workspace.watching import inotify as kernel
from chargehand.workspace.watching.directories import Spot, SpotRules
from chargehand.workspace.watching.inotify import Raw
from chargehand.workspace.watching.snapshot import EDIT_SECONDS, Look

_LATE_MOVES = 2


class Sight(Look):
    """What is seen of one directory tree."""

    def __init__(self, root: Path, rules: SpotRules, outbox: Outbox) -> None:
        self.overflowed = False
        self._pairs: set[int] = set()
        self._leaving: dict[int, tuple[Spot, bytes]] = {}
        self._later: Counter[tuple[int, bytes]] = Counter()
        super().__init__(root, rules, outbox)

    def step(self) -> int:
        """Take the next events from the kernel; return how many there were."""
        raws = self.inotify.read()
        for _ in range(_LATE_MOVES):  # the other end of a move may not be queued yet
            if not raws or not _dangles(raws):
                break
            time.sleep(0.001)
            raws += self.inotify.read()
        self._handle(raws)
        if not raws:
            self._settled()
        return len(raws)

    def expire_edits(self) -> None:
        """Tell the next write to any file, also to one that is being edited: what came before was dealt with."""
        self._open = dict.fromkeys(self._open, -EDIT_SECONDS)

    def _settled(self) -> None:
        """Nothing is queued: from here on events are newer than what was looked at."""
        for spot in self._fresh:
            for name in spot.found:
                if (spot, name) in self._open:
                    self._open[(spot, name)] = -EDIT_SECONDS
            spot.found.clear()
        self._fresh.clear()
        self._leaving.clear()

    def _handle(self, raws: list[Raw]) -> None:
        self._now = time.monotonic()
        left = {raw.cookie for raw in raws if raw.mask & kernel.MOVED_FROM}
        came = {raw.cookie for raw in raws if raw.mask & kernel.MOVED_TO}
        self._pairs = left & came
        self._later = Counter((raw.wd, raw.name) for raw in raws if self._arrives_alone(raw))
        for raw in raws:
            if raw.mask & kernel.OVERFLOW:
                self.overflowed = True
                continue
            spot = self._spots.get(raw.wd)
            if spot is None:
                continue
            if raw.mask & kernel.IGNORED:
                del self._spots[raw.wd]
                spot.wd = -1
            elif self._outbox.lost:
                continue  # what cannot be told must not be taken for known: the look that follows tells it
            elif raw.name and not (spot is self._root and raw.name == b".git"):
                self._take(spot, raw)

    def _arrives_alone(self, raw: Raw) -> bool:
        return bool(raw.mask & kernel.MOVED_TO) and not raw.mask & kernel.ISDIR and raw.cookie not in self._pairs

    def _take(self, spot: Spot, raw: Raw) -> None:
        if raw.mask & kernel.ISDIR:
            self._directory(spot, raw)
        elif not self._rules.reaches(spot):
            self._outbox.count_ignored()
        elif raw.mask & kernel.MODIFY:
            self._modified(spot, raw.name)
        elif raw.mask & kernel.CLOSE_WRITE:
            self._closed(spot, raw.name)
        elif raw.mask & kernel.CREATE:
            self._created(spot, raw.name)
        elif raw.mask & kernel.DELETE:
            self._deleted(spot, raw.name)
        elif raw.mask & kernel.MOVED_FROM:
            self._left(spot, raw)
        elif raw.mask & kernel.MOVED_TO:
            self._arrived(spot, raw)
        elif raw.mask & kernel.ATTRIB:
            self._touched(spot, raw.name)

    # --- files

    def _created(self, spot: Spot, name: bytes) -> None:
        if name in spot.found:
            spot.found.discard(name)
            return
        if name not in spot.names and self._rules.shows_through(spot, name):
            spot.names.add(name)  # copied up: what it was copied up for comes next
            return
        self._appeared(spot, name, "created")

    def _modified(self, spot: Spot, name: bytes) -> None:
        if self._being_edited(spot, name):
            return
        # The kernel joins equal events, so a deletion over an overlay and the making anew may be one.
        self._appeared(spot, name, "modified" if self._exists(spot, name) else "created")

    def _closed(self, spot: Spot, name: bytes) -> None:
        if self._open.pop((spot, name), None) is not None:
            return
        if self._exists(spot, name):
            self._tell(spot, name, "touched")
        else:
            self._appeared(spot, name, "created")
            del self._open[(spot, name)]

    def _touched(self, spot: Spot, name: bytes) -> None:
        if self._exists(spot, name) and not self._being_edited(spot, name):
            self._tell(spot, name, "touched")

    def _deleted(self, spot: Spot, name: bytes) -> None:
        spot.found.discard(name)
        if name in spot.names:
            self._vanished(spot, name, "deleted")

    def _left(self, spot: Spot, raw: Raw) -> None:
        name = raw.name
        spot.found.discard(name)
        if not self._exists(spot, name):
            return
        paired = raw.cookie in self._pairs
        if paired:
            self._leaving[raw.cookie] = (spot, name)
        self._vanished(spot, name, "renamed_from" if paired else "deleted")

    def _arrived(self, spot: Spot, raw: Raw) -> None:
        name = raw.name
        if raw.cookie in self._leaving:
            del self._leaving[raw.cookie]
            spot.names.add(name)
            spot.gone.discard(name)
            self._tell(spot, name, "renamed_to")
        elif name in spot.found or name in spot.children:
            self._look_at(spot, name)
        else:
            self._later[(raw.wd, name)] -= 1
            again = self._later[(raw.wd, name)] > 0
            self._arrived_alone(spot, name, again=again)

    def _arrived_alone(self, spot: Spot, name: bytes, *, again: bool) -> None:
        """A rename from where nothing is watched: by overlayfs from its work directory, or from a new directory.

        `again`: more of these are queued for the name, so what lies there now tells nothing of this one.
        """
        present = self._exists(spot, name)
        there = self._state(spot, name)
        if not present:
            if again or there != "whiteout":
                self._appeared(spot, name, "created")
            elif self._rules.base_entry(spot, name) is not None:
                spot.gone.add(name)
        elif self._rules.overlay and (again or there in ("whiteout", "nothing")):
            self._vanished(spot, name, "deleted")
        elif there == "link" and name not in spot.names:
            spot.names.add(name)  # a link is copied up by a rename
        else:
            self._appeared(spot, name, "modified")

    # --- directories

    def _directory(self, spot: Spot, raw: Raw) -> None:
        """Act on an event of a directory: moves are followed, for all else what is on disk now counts."""
        child = spot.children.get(raw.name)
        if raw.mask & kernel.ATTRIB:
            if child is not None and child.wd < 0:
                self._look_at(spot, raw.name)
        elif raw.mask & kernel.MOVED_FROM and raw.cookie in self._pairs and child is not None:
            self._leaving[raw.cookie] = (spot, raw.name)
        elif raw.mask & kernel.MOVED_TO and raw.cookie in self._leaving:
            old, name = self._leaving.pop(raw.cookie)
            self._moved(old, name, spot, raw.name)
        else:
            self._look_at(spot, raw.name)

    def _moved(self, old: Spot, old_name: bytes, new: Spot, new_name: bytes) -> None:
        child = old.children.get(old_name)
        if child is None:
            self._look_at(new, new_name)
            return
        if new_name in new.children:
            self._drop(new, new_name)
        was_listed, was_reached = not child.ignored, self._rules.reaches(child)
        if was_listed:
            self._put(FileEvent(os.fsdecode(child.path), "renamed_from"))
        del old.children[old_name]
        child.parent, child.name = new, new_name
        new.children[new_name] = child
        self._rules.settle(child)
        if not child.ignored:
            self._put(FileEvent(os.fsdecode(child.path), "renamed_to"))
        if not was_listed and child.ignored:
            self._outbox.count_ignored()
        if not was_reached and self._rules.reaches(child):
            self._look_at(new, new_name, deep=True)


def _dangles(raws: list[Raw]) -> bool:
    """Tell whether the last event is one end of a move whose other end is not there."""
    last = raws[-1]
    return bool(last.mask & kernel.MOVED_FROM)
