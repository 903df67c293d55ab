"""What a patch says, once read: changes of files, made of hunks."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Literal

Action = Literal["add", "update", "delete"]
Sign = Literal[" ", "-", "+"]


class PatchProblem(ValueError):
    """The patch cannot be read or applied: a model's mistake, told to the model and to nobody else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a hunk without its line feed; `ended` is false where the text ends without one."""

    sign: Sign
    text: str
    ended: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunk:
    """Lines to find and what to make of them.

    `near` is the index of the first old line that a header states, or None; `anchors` are lines that stand above;
    `at_end` says that the old lines are the last ones of the file.
    """

    lines: tuple[Line, ...]
    near: int | None = None
    anchors: tuple[str, ...] = ()
    at_end: bool = False

    @property
    def old(self) -> list[str]:
        """Return the lines that must be there."""
        return [line.text for line in self.lines if line.sign != "+"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """What happens to one file, path relative to the workspace; `executable` None leaves the mode alone.

    An `add` has hunks that only add; a `delete` may have none, else they must take everything away.
    """

    action: Action
    path: str
    move_to: str | None = None
    hunks: tuple[Hunk, ...] = ()
    executable: bool | None = None


def workspace_path(path: str) -> str:
    """Return a patch's path relative to the workspace; raises `PatchProblem` for one that is not inside it."""
    if "\0" in path or not path.strip():
        raise PatchProblem(f"{path!r} is no path of a file")
    relative = posixpath.relpath(posixpath.normpath(posixpath.join("/workspace", path)), "/workspace")
    parts = relative.split("/")
    if parts[0] == ".." or relative == ".":
        raise PatchProblem(f"{path!r} is not a file inside /workspace: give a path relative to /workspace")
    if in_git(relative):
        raise PatchProblem(f"{path!r} is inside .git, which patches and edits may not touch")
    return relative


def in_git(path: str) -> bool:
    """Say whether a path runs through a directory of git's own."""
    return any(part.lower() == ".git" for part in path.split("/"))
