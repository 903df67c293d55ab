"""A whole patch worked out in memory, so that all of its files are written or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chargehand.agents._patch_apply import added_text, apply_hunks
from chargehand.agents._patch_model import FileChange, PatchProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What becomes of one path: its new text (None: it goes), the path whose mode it takes, a changed mode."""

    path: str
    old: str | None
    new: str | None
    mode_of: str | None = None
    executable: bool | None = None


def paths_of(changes: Sequence[FileChange]) -> tuple[str, ...]:
    """Return every path that a patch reads or writes, each once."""
    named = [path for change in changes for path in (change.path, change.move_to) if path]
    return tuple(dict.fromkeys(named))


def plan(changes: Sequence[FileChange], files: Mapping[str, str | None]) -> tuple[Planned, ...]:
    """Return what a patch makes of `files` (None: there is no such file); raises `PatchProblem`."""
    desk = _Desk(files)
    for change in changes:
        desk.take(change)
    return desk.planned()


class _Desk:
    """The files as they stand after the changes taken so far."""

    def __init__(self, files: Mapping[str, str | None]) -> None:
        self._before = files
        self._now = dict(files)
        self._mode_of: dict[str, str | None] = {}
        self._executable: dict[str, bool | None] = {}

    def take(self, change: FileChange) -> None:
        """Work out one change."""
        match change.action:
            case "add":
                self._vacant(change.path)
                self._now[change.path] = added_text(change.hunks, path=change.path)
                self._executable[change.path] = change.executable
            case "delete":
                left = apply_hunks(self._present(change.path), change.hunks, path=change.path)
                if left and change.hunks:
                    raise PatchProblem(f"{change.path}: the file has more in it than the patch takes away")
                self._now[change.path] = None
            case "update":
                self._update(change)

    def planned(self) -> tuple[Planned, ...]:
        """Return what has to be done, paths that end as they began left out."""
        return tuple(
            Planned(
                path=path,
                old=self._before[path],
                new=new,
                mode_of=self._mode_of.get(path),
                executable=self._executable.get(path),
            )
            for path, new in self._now.items()
            if new != self._before[path] or self._executable.get(path) is not None
        )

    def _update(self, change: FileChange) -> None:
        made = apply_hunks(self._present(change.path), change.hunks, path=change.path)
        target = change.move_to or change.path
        if target != change.path:
            self._vacant(target)
            self._now[change.path] = None
            self._mode_of[target] = self._mode_of.get(change.path) or change.path
        self._now[target] = made
        if change.executable is not None:
            self._executable[target] = change.executable

    def _present(self, path: str) -> str:
        text = self._now[path]
        if text is None:
            raise PatchProblem(f"{path}: there is no such file")
        return text

    def _vacant(self, path: str) -> None:
        if self._now[path]:
            raise PatchProblem(f"{path} exists already: update it, or delete it first")
