"""Rolls back a whole tree, paths or hunks: first makes a plan, then carries out exactly that plan.

A plan is made from two trees of the depot and writes nothing. It keeps the request, so that carrying it out
computes the same tree again, this time into the depot, and can compare the two.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct

from chargehand.core.errors import InfrastructureError, NotFoundError, RefusedError, UsageError
from chargehand.core.records import Change, Finding
from chargehand.workspace.depot import Depot
from chargehand.workspace.hunks import LineRange, find_hunks, hunks_problem, keep_hunks
from chargehand.workspace.tree.objects import ObjectWriter, TreeEntry, edit_tree

_SHOWN = 12


class Drop(Struct, frozen=True, kw_only=True):
    """A path to revert (a directory completely) or, within a file, the hunks that contain these lines.

    Lines are those of the present file. `because` names the broken rule if a check chose the lines: if no hunk
    contains them the whole file is reverted, while a person gets an error.
    """

    path: str
    lines: tuple[LineRange, ...] = ()
    because: str = ""


class HunkPlan(Struct, frozen=True, kw_only=True):
    """One hunk and whether it stays.

    Lines count from 1 as in a diff: a side without lines names the line before.
    """

    old_start: int
    old_lines: int
    new_start: int
    new_lines: int
    kept: bool


def drops_of(findings: Iterable[Finding]) -> tuple[Drop, ...]:
    """Return drops that revert findings which block a change: their lines, or the path if they have no line."""
    drops = []
    for found in findings:
        if found.path and (found.severity in ("error", "critical") or found.needs_person):
            lines = () if found.line is None else (LineRange(first=found.line, last=found.line),)
            drops.append(Drop(path=found.path, lines=lines, because=found.rule))
    return tuple(drops)


def revert_command(depot: Depot, base: str, commit: str) -> str:
    """Return the git command by which a person reverts the changes of a branch from `base` to `commit`.

    If a merge joined `base` and a mission's branch, that merge is reverted against `base`: git needs to know which
    parent stays.
    """
    at = commit
    while at != base:
        parents = depot.read_commit(at).parents
        if len(parents) > 1 and base in parents:
            merge = f"git revert -m {parents.index(base) + 1} {at}"
            return merge if at == commit else f"git revert {at}..{commit} && {merge}"
        if not parents:
            break
        at = parents[0]
    return f"git revert {base}..{commit}"


RollbackKind = Literal["full", "files", "smart"]
PathAction = Literal["restored", "deleted", "kept", "partly"]


class PathPlan(Struct, frozen=True, kw_only=True):
    """The action for one path that differs: restored, deleted (the target lacks it), kept, or partly restored.

    `why` is the reason why a file is reverted completely although hunks were requested; `renamed_from` is the
    previous path of its content.
    """

    path: str
    action: PathAction
    hunks: tuple[HunkPlan, ...] = ()
    why: str = ""
    renamed_from: str | None = None


class RollbackPlan(Struct, frozen=True, kw_only=True):
    """The effect of a rollback from tree `source` towards tree `target`; `result` is the exact tree it leaves.

    `paths` has every path in which the two differ. `unchanged` names requested paths that do not differ. `drops`
    is the request, `None` for everything.
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
        """The paths that it changes, without those that stay as they are."""
        return tuple(path for path in self.paths if path.action != "kept")


class _DryWriter(ObjectWriter):
    """Computes the ids of objects and writes nothing."""

    def add_as(self, id: bytes, kind: object, content: bytes) -> bytes:
        return id


def plan_rollback(depot: Depot, source: str, target: str, *, drops: Sequence[Drop] | None = None) -> RollbackPlan:
    """Return the plan for rolling `source` back to `target`: all of it, or only the `drops`. Writes nothing.

    Raises `NotFoundError` (`tree_not_found`, or a path that neither tree has), and `UsageError` if a person names
    lines that no change touches.
    """
    return _plan(depot, _DryWriter(depot.reader.objects), source, target, drops)


def write_rollback(depot: Depot, plan: RollbackPlan) -> str:
    """Write the tree of a plan into the depot; return its id."""
    with ObjectWriter(depot.reader.objects) as writer:
        made = _plan(depot, writer, plan.source, plan.target, plan.drops)
    # A plan is shown to a person or recorded before it is carried out: never do anything else.
    if made != plan:
        raise InfrastructureError(f"the plan to roll back to {plan.target!r} came out as {made.result!r}")
    return made.result


def stale_plan(plan: RollbackPlan, found: str) -> RefusedError:
    """Return the error for a plan that was made for another tree than the present one."""
    return RefusedError(
        f"the plan was made for tree {plan.source!r}, but the tree is now {found!r}",
        code="plan_stale",
        hint="nothing was changed; plan again on the present state",
    )


def _plan(
    depot: Depot, writer: ObjectWriter, source: str, target: str, drops: Sequence[Drop] | None
) -> RollbackPlan:
    depot.check_tree(source)
    depot.check_tree(target)
    if drops is not None:
        return _PartialRollback(depot, writer, source, target).plan(drops)
    changes = depot.diff(source, target)
    paths = tuple(PathPlan(path=change.path, action=_whole_action(change)) for change in changes)
    return RollbackPlan(kind="full", source=source, target=target, result=target, paths=paths)


class _PartialRollback:
    """Plans a rollback of some paths or hunks: collects the entries to set and a report for each path."""

    def __init__(self, depot: Depot, writer: ObjectWriter, source: str, target: str) -> None:
        self._depot = depot
        self._writer = writer
        self._source, self._target = source, target
        self._changes = {change.path: change for change in depot.diff(source, target)}
        self._above = {parent for path in self._changes for parent in _parents(path)}
        kinds = {change.kind for change in self._changes.values()}
        # Run git only if a rename is possible at all: it compares contents, and starts a process.
        self._renames = depot.renames(target, source) if {"added", "deleted"} <= kinds else {}
        self._entries: dict[str, TreeEntry | None] = {}
        self._hunks: dict[str, tuple[HunkPlan, ...]] = {}
        self._why: dict[str, str] = {}
        self._unchanged: list[str] = []

    def plan(self, drops: Sequence[Drop]) -> RollbackPlan:
        # One drop for each path: lines are joined, and a whole path includes its lines and everything below it.
        merged: dict[str, Drop] = {}
        for drop in drops:
            name = drop.path.rstrip("/")
            lines = drop.lines
            because = drop.because
            if (before := merged.get(name)) is not None:
                lines = (*before.lines, *lines) if before.lines and lines else ()
                because = ", ".join(dict.fromkeys(filter(None, (before.because, because))))
            merged[name] = Drop(path=name, lines=lines, because=because)
        swallowing = {name for name, drop in merged.items() if not drop.lines}
        for name, drop in merged.items():
            if not drop.lines or not _parents(name) & swallowing:
                self._add_drop(drop)
        raw = bytes.fromhex(self._source)
        named = [(os.fsencode(path), entry) for path, entry in self._entries.items()]
        made = {path for path, entry in self._entries.items() if entry is not None}
        replaced = {parent for path in made for parent in _parents(path)}
        found = []
        for path, change in self._changes.items():
            action: PathAction = "kept"
            if path in self._entries:
                whole = self._entries[path] == _target_entry(change)
                action = _whole_action(change) if whole else "partly"
            elif path in replaced and change.new_id is None:  # a directory replaces the file
                action = "deleted"
            found.append(
                PathPlan(
                    path=path,
                    action=action,
                    hunks=self._hunks.get(path, ()),
                    why=self._why.get(path, ""),
                    renamed_from=self._renames.get(path),
                )
            )
        return RollbackPlan(
            kind="smart" if any(drop.lines for drop in drops) else "files",
            source=self._source,
            target=self._target,
            result=edit_tree(self._depot.reader, self._writer, raw, named).hex(),
            paths=tuple(found),
            unchanged=tuple(self._unchanged),
            drops=tuple(drops),
        )

    def _add_drop(self, drop: Drop) -> None:
        # The differing paths at or below this path; all of them for the root.
        if drop.path in ("", "."):
            matching = list(self._changes)
        elif drop.path not in self._above:
            matching = [drop.path] if drop.path in self._changes else []
        else:
            matching = [
                other for other in self._changes if other == drop.path or other.startswith(drop.path + "/")
            ]
        if not matching:
            depot = self._depot
            path = drop.path
            known = path in ("", ".") or depot.lookup(self._source, path) or depot.lookup(self._target, path)
            if not known:
                raise NotFoundError(
                    f"neither tree has {path!r}", hint="paths are named from the repository's root"
                )
            self._unchanged.append(drop.path)
        elif not drop.lines:
            self._revert_whole(matching)
        elif matching != [drop.path]:
            self._why[drop.path] = "is not a file in both"
            self._revert_whole(matching)
        else:
            change = self._changes[drop.path]
            origin = self._renames.get(drop.path)
            # A renamed file is compared with its previous path.
            old = None if origin is None else self._changes[origin]
            partial = _without_hunks(self._depot, change, drop, old=old)
            if partial.content is None or change.old_mode is None:
                self._why[drop.path] = partial.why
                # Both ends of a rename: the new path is removed, and without the old one its content would be
                # lost.
                self._revert_whole([drop.path] if origin is None else [drop.path, origin])
                return
            entry = TreeEntry(change.old_mode, self._writer.add("blob", partial.content))
            if entry.id.hex() == change.old_id:
                self._unchanged.append(drop.path)
            else:
                self._entries[drop.path] = entry
                self._hunks[drop.path] = partial.hunks

    def _revert_whole(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._entries[path] = _target_entry(self._changes[path])


def _parents(path: str) -> set[str]:
    parts = path.split("/")
    return {"/".join(parts[:count]) for count in range(1, len(parts))}


def _target_entry(change: Change) -> TreeEntry | None:
    if change.new_mode is None or change.new_id is None:
        return None
    return TreeEntry(change.new_mode, bytes.fromhex(change.new_id))


def _whole_action(change: Change) -> PathAction:
    return "deleted" if change.new_id is None else "restored"


# --- hunks of one file


class PartialFile(Struct, frozen=True, kw_only=True):
    """A file without some hunks; `content` is `None` if it must be reverted completely, for the reason `why`."""

    content: bytes | None
    hunks: tuple[HunkPlan, ...] = ()
    why: str = ""


def _without_hunks(depot: Depot, change: Change, drop: Drop, *, old: Change | None = None) -> PartialFile:
    """Return the file of `change` (from its present to its previous state) without the hunks that `drop` names.

    `old` is the change of the path it was renamed from. Raises `UsageError` if a person's lines are in no hunk.
    """
    before_mode, before = (change.new_mode, change.new_id) if old is None else (old.new_mode, old.new_id)
    if change.old_id is None:
        return PartialFile(content=None, why="is deleted, which is one hunk")
    if before is None:
        return PartialFile(content=None, why="is new, which is one hunk")
    if not all(mode is not None and stat.S_ISREG(mode) for mode in (change.old_mode, before_mode)):
        return PartialFile(content=None, why="is not a file in both")
    past, present = depot.read_blob(before), depot.read_blob(change.old_id)
    hunks = find_hunks(past, present)
    if hunks is None:
        return PartialFile(content=None, why=hunks_problem(past, present) or "has too many hunks")
    # A rule names the line of its finding. The line may be unchanged, and the fault may be a missing line.
    missed = [lines for lines in drop.lines if not any(hunk.meets(lines) for hunk in hunks)]
    if missed and drop.because:
        return PartialFile(content=None, why=f"breaks a rule in line {missed[0].first}, which is in no hunk")
    if missed:
        shown = [
            _format_range(LineRange(first=hunk.new + 1, last=hunk.new + hunk.new_lines))
            if hunk.new_lines
            else f"a deletion after line {hunk.new}"
            for hunk in hunks[:_SHOWN]
        ]
        shown += [f"and {len(hunks) - _SHOWN} more"] if len(hunks) > _SHOWN else []
        raise UsageError(
            f"no change of {drop.path!r} touches {_format_range(missed[0])}",
            hint=f"it has: {'; '.join(shown) or 'no change of lines'}",
        )
    kept = {i for i, hunk in enumerate(hunks) if not any(hunk.meets(lines) for lines in drop.lines)}
    content = keep_hunks(past, present, hunks, kept)
    planned = tuple(
        HunkPlan(
            old_start=hunk.old + (1 if hunk.old_lines else 0),
            old_lines=hunk.old_lines,
            new_start=hunk.new + (1 if hunk.new_lines else 0),
            new_lines=hunk.new_lines,
            kept=index in kept,
        )
        for index, hunk in enumerate(hunks)
    )
    return PartialFile(content=content, hunks=planned)


def _format_range(lines: LineRange) -> str:
    return f"line {lines.first}" if lines.first == lines.last else f"lines {lines.first} to {lines.last}"
