"""Conflicts of a merge as records: what kind each is and which lines clash."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

ConflictKind = Literal[
    "content", "both_added", "modify_delete", "rename", "mode", "binary", "file_directory", "submodule"
]


class Side(Struct, frozen=True, kw_only=True):
    """What one side of a merge has at a path: git's mode and the hex id."""

    mode: int
    id: str


class Excerpt(Struct, frozen=True, kw_only=True):
    """Lines of one side, counted from 1 (without lines: the one before); `cut` where `text` is not all of them."""

    start: int
    lines: int
    text: str
    cut: bool = False


class ConflictHunk(Struct, frozen=True, kw_only=True):
    """Lines that clash: as both sides began, and as each has them; `None` where a side has no such file."""

    base: Excerpt | None
    ours: Excerpt | None
    theirs: Excerpt | None


class Conflict(Struct, frozen=True, kw_only=True):
    """One path in conflict; `others` are further paths of a rename, `left_out` counts hunks that are not here.

    Text is UTF-8, other bytes as `\\xNN`.
    """

    path: str
    kind: ConflictKind
    base: Side | None
    ours: Side | None
    theirs: Side | None
    others: tuple[str, ...] = ()
    hunks: tuple[ConflictHunk, ...] = ()
    left_out: int = 0
