"""Roll back a tree in whole, by path or by hunk: a plan first, then exactly that plan."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from chargehand.core.errors import InfrastructureError, NotFoundError, RefusedError, UsageError
from chargehand.core.records import Change, Finding
from chargehand.workspace.depot import Depot
from chargehand.workspace.hunks import Hunk, LineRange, find_hunks, hunks_problem, keep_hunks
from chargehand.workspace.tree.objects import ObjectWriter, TreeEntry, edit_tree

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


RollbackKind = Literal["full", "files", "smart"]
PathAction = Literal["restored", "deleted", "kept", "partly"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPlan:
    """What becomes of one path that differs: set back, deleted (the target lacks it), kept, or set back in part.

    `why` tells of a file set back whole where hunks were asked for; `renamed_from` where its content was before.
    """

    path: str
    action: PathAction
    hunks: tuple[HunkPlan, ...] = ()
    why: str = ""
    renamed_from: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPlan:
    """What a rollback from tree `source` towards tree `target` does; `result` is the exact tree it leaves.

    `paths` has every path in which the two differ. `unchanged` names what was asked for and is alike already.
    `drops` is what was asked, `None` for everything.
    """

    kind: RollbackKind
    source: str
    target: str
    result: str
    paths: tuple[PathPlan, ...]
    unchanged: tuple[str, ...] = ()
    drops: tuple[Drop, ...] | None = None

    @property
    def reverted(self) -> tuple[PathPlan, ...]:
        """The paths that it changes; none are named that stay as they are."""
        return tuple(path for path in self.paths if path.action != "kept")


class _NothingWritten(ObjectWriter):
    """Names objects and keeps none."""

    def add_as(self, id: bytes, kind: object, content: bytes) -> bytes:
        return id


def plan_rollback(depot: Depot, source: str, target: str, *, drops: Sequence[Drop] | None = None) -> RollbackPlan:
    """Return what rolling `source` back to `target` does: all of it, or only what `drops` name. Writes nothing.

    Raises `NotFoundError` (`tree_not_found`, or a path that neither tree has) and `UsageError` where a person
    names lines that no change touches.
    """
    return _plan(depot, _NothingWritten(depot.reader.objects), source, target, drops)


def write_rollback(depot: Depot, plan: RollbackPlan) -> str:
    """Write the tree that a plan promised into the depot; return its id."""
    with ObjectWriter(depot.reader.objects) as writer:
        made = _plan(depot, writer, plan.source, plan.target, plan.drops)
    if made != plan:
        raise InfrastructureError(f"the plan to roll back to {plan.target!r} came out as {made.result!r}")
    return made.result


def stale_plan(plan: RollbackPlan, found: str) -> RefusedError:
    """Return the error for a plan that was made for another tree than the one there is."""
    return RefusedError(
        f"the plan was made for tree {plan.source!r}, and there is {found!r} now",
        code="plan_stale",
        hint="nothing was changed; look at what is there now and plan again",
    )


def _plan(
    depot: Depot, writer: ObjectWriter, source: str, target: str, drops: Sequence[Drop] | None
) -> RollbackPlan:
    depot.check_tree(source)
    depot.check_tree(target)
    if drops is not None:
        return _Partial(depot, writer, source, target).plan(drops)
    changes = depot.diff(source, target)
    paths = tuple(PathPlan(path=change.path, action=_set_back(change)) for change in changes)
    return RollbackPlan(kind="full", source=source, target=target, result=target, paths=paths)


class _Partial:
    """Plans a rollback of some paths or hunks: gathers raw entries to set, and what is to be said of paths."""

    def __init__(self, depot: Depot, writer: ObjectWriter, source: str, target: str) -> None:
        self._depot = depot
        self._writer = writer
        self._source, self._target = source, target
        self._changes = {change.path: change for change in depot.diff(source, target)}
        self._above = {parent for path in self._changes for parent in _parents(path)}
        kinds = {change.kind for change in self._changes.values()}
        self._renames = depot.renames(target, source) if {"added", "deleted"} <= kinds else {}
        self._entries: dict[str, TreeEntry | None] = {}
        self._hunks: dict[str, tuple[HunkPlan, ...]] = {}
        self._why: dict[str, str] = {}
        self._unchanged: list[str] = []

    def plan(self, drops: Sequence[Drop]) -> RollbackPlan:
        for drop in _joined(drops):
            self._take(drop)
        raw = bytes.fromhex(self._source)
        named = [(os.fsencode(path), entry) for path, entry in self._entries.items()]
        return RollbackPlan(
            kind="smart" if any(drop.lines for drop in drops) else "files",
            source=self._source,
            target=self._target,
            result=edit_tree(self._depot.reader, self._writer, raw, named).hex(),
            paths=self._paths(),
            unchanged=tuple(self._unchanged),
            drops=tuple(drops),
        )

    def _take(self, drop: Drop) -> None:
        concerned = self._concerned(drop.path)
        if not concerned:
            self._check_known(drop.path)
            self._unchanged.append(drop.path)
        elif not drop.lines:
            self._whole(concerned)
        elif concerned == [drop.path]:
            self._in_part(drop)
        else:
            self._why[drop.path] = "is not a file in both"
            self._whole(concerned)

    def _concerned(self, path: str) -> list[str]:
        """Return the differing paths that are `path` or lie below it; all of them for the root."""
        if path in ("", "."):
            return list(self._changes)
        if path not in self._above:
            return [path] if path in self._changes else []
        return [other for other in self._changes if other == path or other.startswith(path + "/")]

    def _check_known(self, path: str) -> None:
        depot = self._depot
        if path in ("", "."):
            return
        if depot.lookup(self._source, path) is None and depot.lookup(self._target, path) is None:
            raise NotFoundError(f"neither tree has {path!r}", hint="paths are named from the repository's root")

    def _whole(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._entries[path] = _target_entry(self._changes[path])

    def _in_part(self, drop: Drop) -> None:
        """Set back hunks of a file; what was renamed is told apart from what it was renamed from."""
        change = self._changes[drop.path]
        origin = self._renames.get(drop.path)
        mixed = without_hunks(self._depot, change, drop, old=None if origin is None else self._changes[origin])
        if mixed.content is None or change.old_mode is None:
            self._why[drop.path] = mixed.why
            self._whole([drop.path] if origin is None else [drop.path, origin])
            return
        entry = TreeEntry(change.old_mode, self._writer.add("blob", mixed.content))
        if entry.id.hex() == change.old_id:
            self._unchanged.append(drop.path)
        else:
            self._entries[drop.path] = entry
            self._hunks[drop.path] = mixed.hunks

    def _paths(self) -> tuple[PathPlan, ...]:
        made = {path for path, entry in self._entries.items() if entry is not None}
        replaced = {parent for path in made for parent in _parents(path)}
        return tuple(
            PathPlan(
                path=path,
                action=self._action(change, replaced),
                hunks=self._hunks.get(path, ()),
                why=self._why.get(path, ""),
                renamed_from=self._renames.get(path),
            )
            for path, change in self._changes.items()
        )

    def _action(self, change: Change, replaced: set[str]) -> PathAction:
        """Return what becomes of a path; a file also goes where a directory takes its place."""
        if change.path in self._entries:
            whole = self._entries[change.path] == _target_entry(change)
            return _set_back(change) if whole else "partly"
        return "deleted" if change.path in replaced and change.new_id is None else "kept"


def _joined(drops: Sequence[Drop]) -> list[Drop]:
    """Return one drop per path: lines are joined, and a whole path swallows its lines and all below it."""
    by_path: dict[str, Drop] = {}
    for drop in drops:
        path = drop.path.rstrip("/")
        before = by_path.get(path)
        if before is None:
            by_path[path] = Drop(path=path, lines=drop.lines, because=drop.because)
        else:
            lines = (*before.lines, *drop.lines) if before.lines and drop.lines else ()
            because = ", ".join(dict.fromkeys(filter(None, (before.because, drop.because))))
            by_path[path] = Drop(path=path, lines=lines, because=because)
    whole = {path for path, drop in by_path.items() if not drop.lines}
    return [drop for path, drop in by_path.items() if not drop.lines or not _parents(path) & whole]


def _parents(path: str) -> set[str]:
    parts = path.split("/")
    return {"/".join(parts[:count]) for count in range(1, len(parts))}


def _target_entry(change: Change) -> TreeEntry | None:
    if change.new_mode is None or change.new_id is None:
        return None
    return TreeEntry(change.new_mode, bytes.fromhex(change.new_id))


def _set_back(change: Change) -> PathAction:
    return "deleted" if change.new_id is None else "restored"
