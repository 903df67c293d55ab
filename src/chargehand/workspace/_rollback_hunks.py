"""The smart part of a rollback: which hunks of one file stay, and what the file is then."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass

from chargehand.core.errors import UsageError
from chargehand.core.records import Change, Finding
from chargehand.workspace._depot import Depot
from chargehand.workspace._hunks import Hunk, LineRange, find_hunks, hunks_problem, keep_hunks

_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """What to set back: a path (a directory whole) or, of a file, the hunks that hold these lines of it.

    Lines are those of the file as it is now. `because` names the rule that was broken where it was no person who
    chose the lines: where no hunk holds them the whole file goes then, while a person is told.
    """

    path: str
    lines: tuple[LineRange, ...] = ()
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HunkPlan:
    """One hunk and whether it stays.

    Lines count from 1 as in a diff: a side without lines names the line before.
    """

    old_start: int
    old_lines: int
    new_start: int
    new_lines: int
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """A file without some hunks; `content` is `None` where it has to be set back whole, and `why` says why."""

    content: bytes | None
    hunks: tuple[HunkPlan, ...] = ()
    why: str = ""


def drops_of(findings: Iterable[Finding]) -> tuple[Drop, ...]:
    """Return what sets back the findings that do not let a change in: their lines, or the path that has none."""
    drops = []
    for found in findings:
        if found.path and (found.severity in ("error", "critical") or found.needs_person):
            lines = () if found.line is None else (LineRange(first=found.line, last=found.line),)
            drops.append(Drop(path=found.path, lines=lines, because=found.rule))
    return tuple(drops)


def without_hunks(depot: Depot, change: Change, drop: Drop, *, old: Change | None = None) -> Mixed:
    """Return the file of `change` (from how it is to how it was) without the hunks that `drop` names.

    `old` is the change of the path it was renamed from. Raises `UsageError` where a person's lines are in no hunk.
    """
    before_mode, before = (change.new_mode, change.new_id) if old is None else (old.new_mode, old.new_id)
    if change.old_id is None:
        return Mixed(content=None, why="is deleted, which is one hunk")
    if before is None:
        return Mixed(content=None, why="is new, which is one hunk")
    if not _is_file(change.old_mode) or not _is_file(before_mode):
        return Mixed(content=None, why="is not a file in both")
    past, present = depot.read_blob(before), depot.read_blob(change.old_id)
    hunks = find_hunks(past, present)
    if hunks is None:
        return Mixed(content=None, why=hunks_problem(past, present) or "has too many hunks")
    return _choose(past, present, hunks, drop)


def _choose(past: bytes, present: bytes, hunks: tuple[Hunk, ...], drop: Drop) -> Mixed:
    missed = [lines for lines in drop.lines if not any(hunk.meets(lines) for hunk in hunks)]
    if missed and drop.because:
        return Mixed(content=None, why=f"breaks a rule in line {missed[0].first}, which no hunk holds")
    if missed:
        raise UsageError(
            f"no change of {drop.path!r} touches {_shown(missed[0])}", hint=f"it has: {_shown_hunks(hunks)}"
        )
    kept = {i for i, hunk in enumerate(hunks) if not any(hunk.meets(lines) for lines in drop.lines)}
    content = keep_hunks(past, present, hunks, kept)
    return Mixed(content=content, hunks=tuple(_planned(hunk, i in kept) for i, hunk in enumerate(hunks)))


def _is_file(mode: int | None) -> bool:
    return mode is not None and stat.S_ISREG(mode)


def _planned(hunk: Hunk, kept: bool) -> HunkPlan:
    return HunkPlan(
        old_start=hunk.old + (1 if hunk.old_lines else 0),
        old_lines=hunk.old_lines,
        new_start=hunk.new + (1 if hunk.new_lines else 0),
        new_lines=hunk.new_lines,
        kept=kept,
    )


def _shown(lines: LineRange) -> str:
    return f"line {lines.first}" if lines.first == lines.last else f"lines {lines.first} to {lines.last}"


def _shown_hunks(hunks: tuple[Hunk, ...]) -> str:
    shown = []
    for hunk in hunks[:_SHOWN]:
        if hunk.new_lines:
            shown.append(_shown(LineRange(first=hunk.new + 1, last=hunk.new + hunk.new_lines)))
        else:
            shown.append(f"a deletion after line {hunk.new}")
    more = len(hunks) - _SHOWN
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "") if shown else "no change of lines"
