"""Finds the hunks between two contents, on bytes, and applies some of them.

Only a newline ends a line, so carriage returns and a missing last newline are ordinary content. No context is
kept: two changes form one hunk only if no line between them stayed the same.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct

_MAX_BYTES = 16 * 1024 * 1024  # both contents are held in memory, as bytes and as lines
_MAX_LINES = 200_000  # above this, comparing two unlike contents takes seconds
_MAX_HUNKS = 10_000


class LineRange(Struct, frozen=True, kw_only=True):
    """Lines `first` to `last` of a file, counted from 1, both included."""

    first: int
    last: int


class Hunk(Struct, frozen=True, kw_only=True):
    """Lines of the old content replaced by lines of the new content.

    `old` and `new` are the 0-based index of the first line. If there are no lines (`old_lines` or `new_lines` is
    0), they are the position at which lines would be inserted.
    """

    old: int
    old_lines: int
    new: int
    new_lines: int

    def meets(self, lines: LineRange) -> bool:
        """Return whether the hunk covers any of these lines of the new content.

        A pure deletion covers the line before it and the line after it: both are unchanged, so a fault in them can
        only come from the missing lines.
        """
        if not self.new_lines:
            return lines.first <= self.new + 1 and lines.last >= self.new
        return lines.first <= self.new + self.new_lines and lines.last > self.new


def split_lines(content: bytes) -> list[bytes]:
    """Return the lines with their ends; only a newline ends a line."""
    lines = content.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def hunks_problem(old: bytes, new: bytes) -> str:
    """Return why two contents are not compared by lines, or an empty string."""
    if b"\0" in old or b"\0" in new:
        return "is binary"
    if max(len(old), len(new)) > _MAX_BYTES or max(old.count(b"\n"), new.count(b"\n")) > _MAX_LINES:
        return "is too large to compare by lines"
    return ""


def find_hunks(old: bytes, new: bytes) -> tuple[Hunk, ...] | None:
    """Return the differences in order; `None` if lines cannot be compared (binary, too large, too many)."""
    if hunks_problem(old, new):
        return None
    import pygit2

    # FORCE_TEXT: git decides by the first 8,000 bytes or by attributes whether a file is binary; we have already
    # looked for a NUL.
    patch = pygit2.Patch.create_from(
        old, new, flag=pygit2.enums.DiffOption.FORCE_TEXT, context_lines=0, interhunk_lines=0
    )
    # For a hunk without lines git gives the line before it, otherwise its first line.
    found = tuple(
        Hunk(
            old=part.old_start - (1 if part.old_lines else 0),
            old_lines=part.old_lines,
            new=part.new_start - (1 if part.new_lines else 0),
            new_lines=part.new_lines,
        )
        for part in patch.hunks
    )
    return found if len(found) <= _MAX_HUNKS else None


def keep_hunks(old: bytes, new: bytes, hunks: Sequence[Hunk], kept: Collection[int]) -> bytes:
    """Return `old` with the hunks applied whose indices are in `kept`."""
    before, after = split_lines(old), split_lines(new)
    out: list[bytes] = []
    at = 0
    for index, hunk in enumerate(hunks):
        out += before[at : hunk.old]
        at = hunk.old + hunk.old_lines
        out += after[hunk.new : hunk.new + hunk.new_lines] if index in kept else before[hunk.old : at]
    return b"".join(out + before[at:])
