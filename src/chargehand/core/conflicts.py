"""Conflicts of a merge as records: what kind each is and which lines clash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ConflictKind = Literal[
    "content", "both_added", "modify_delete", "rename", "mode", "binary", "file_directory", "submodule"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What one side of a merge has at a path: git's mode and the hex id."""

    mode: int
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """Lines of one side, counted from 1 (without lines: the one before); `cut` where `text` is not all of them."""

    start: int
    lines: int
    text: str
    cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictHunk:
    """Lines that clash: as both sides began, and as each has them; `None` where a side has no such file."""

    base: Excerpt | None
    ours: Excerpt | None
    theirs: Excerpt | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
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
