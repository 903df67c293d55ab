"""Places of a change: the lines that it adds or replaces, by which feedback and comments name a part of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from msgspec import Struct

from chargehand.workspace.depot import Depot
from chargehand.workspace.hunks import LineRange, find_hunks

_LONGEST_FILE_BYTES = 4_000_000


class ChangedPlace(Struct, frozen=True, kw_only=True):
    """A hunk of a change as `PATH:LINE` or `PATH:FIRST-LAST`, and the lines of the new content that name it.

    A hunk that only deletes is named by the line before it or after it. `lines` is `None` if the file is not
    compared by lines (a link, a binary or large file, only another mode): each line of it names the whole file.
    """

    path: str
    lines: LineRange | None

    def __str__(self) -> str:
        path = os.fsencode(self.path).decode(errors="replace")
        if self.lines is None:
            return f"{path}:1"
        first, last = max(self.lines.first, 1), self.lines.last
        return f"{path}:{first}" if last <= first else f"{path}:{first}-{last}"

    def has(self, path: str, line: int) -> bool:
        """Return whether a line of a file, counted from 1, is in this hunk."""
        return path == self.path and (self.lines is None or self.lines.first <= line <= self.lines.last)


def list_places(depot: Depot, old: str, new: str) -> Iterator[ChangedPlace]:
    """Yield the hunks by which two trees differ, in the order of paths and lines; a rename is a new file."""
    for change in depot.diff(old, new):
        before, after = _read(depot, change.old_mode, change.old_id), _read(depot, change.new_mode, change.new_id)
        hunks = None if before is None or after is None else find_hunks(before, after)
        if not hunks:
            yield ChangedPlace(path=change.path, lines=None)
        for hunk in hunks or ():
            first, last = hunk.new + 1, hunk.new + hunk.new_lines
            lines = LineRange(first=first, last=last) if hunk.new_lines else LineRange(first=hunk.new, last=first)
            yield ChangedPlace(path=change.path, lines=lines)


def _read(depot: Depot, mode: int | None, id: str | None) -> bytes | None:
    """Return one side's content, `None` if it is not compared by lines."""
    if mode is None or id is None:
        return b""
    if not stat.S_ISREG(mode) or depot.blob_size(id) > _LONGEST_FILE_BYTES:
        return None
    return depot.read_blob(id)
