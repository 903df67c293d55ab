"""Plans of a rollback: what setting a tree back to an earlier one does to each path, told before it is done.

A plan is made from two trees of the depot and writes nothing. What it asks for is kept in it, so that carrying it
out computes the same tree again, this time into the depot, and can compare the two.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from chargehand.core.errors import InfrastructureError, NotFoundError, RefusedError
from chargehand.core.records import Change
from chargehand.workspace._depot import Depot
from chargehand.workspace._objects import ObjectWriter
from chargehand.workspace._rollback_hunks import Drop, HunkPlan, without_hunks
from chargehand.workspace._trees import Entry, edit_tree

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
        self._entries: dict[str, Entry | None] = {}
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
        entry = Entry(change.old_mode, self._writer.add("blob", mixed.content))
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


def _target_entry(change: Change) -> Entry | None:
    if change.new_mode is None or change.new_id is None:
        return None
    return Entry(change.new_mode, bytes.fromhex(change.new_id))


def _set_back(change: Change) -> PathAction:
    return "deleted" if change.new_id is None else "restored"
