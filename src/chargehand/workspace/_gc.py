"""Frees disk space: what nothing needs, least recently used first; checkpoints only when ordered."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from chargehand.core.codec import decode_as
from chargehand.core.errors import InfrastructureError
from chargehand.workspace._erase import Erasure, doomed_refs, erase
from chargehand.workspace._files import discard_tree, locked_now, remove_tree
from chargehand.workspace._git import private_git
from chargehand.workspace._space import (
    Holding,
    HoldingKind,
    Needed,
    depot_bytes,
    holdings,
    last_use,
    nobody_needs,
    taken,
)
from chargehand.workspace._workspace import WorkspaceState

_HOUR = 3600.0
DAY = 24 * _HOUR
_SHARED_AGE = 7 * DAY
_GRACE = 60.0
"""What was used this lately may be about to be used: a workspace is made only after its base was found."""
_ORDER: dict[HoldingKind, int] = {"litter": 0, "workspace": 1, "layer": 2, "base": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectGc:
    """What was removed (or, on a dry run, would be) of one project's directory `root`, by name.

    `erased` is what became unreachable with checkpoints that were let go; `bytes` on disk is without it.
    """

    root: Path
    workspaces: tuple[str, ...]
    bases: tuple[str, ...]
    layers: tuple[str, ...]
    litter: tuple[str, ...]
    erased: Erasure
    bytes: int

    @property
    def refs(self) -> tuple[str, ...]:
        """The refs that were let go."""
        return self.erased.refs


@dataclass(frozen=True, slots=True, kw_only=True)
class GcReport:
    """What was removed (or, on a dry run, would be) of all projects; `taken` is what they took before."""

    projects: tuple[ProjectGc, ...]
    taken: int
    dry_run: bool

    @property
    def bytes(self) -> int:
        """The bytes freed, without those of erased checkpoints."""
        return sum(project.bytes for project in self.projects)


def gc(
    roots: Iterable[Path],
    *,
    needed: Needed = nobody_needs,
    max_age: float = DAY,
    shared_age: float = _SHARED_AGE,
    max_bytes: int | None = None,
    checkpoints: bool = False,
    pack: bool = True,
    dry_run: bool = False,
    now: float | None = None,
) -> GcReport:
    """Remove what nothing needs from the directories of projects, and tell what that is.

    First goes what was last used longer ago than `max_age` seconds (bases and layers: `shared_age`), then, while
    all take more than `max_bytes`, what was used least recently. Nothing goes that `needed` names, that a
    workspace which stays stands on, that is in use, or was within the last minute; where nobody knows whether a
    workspace is needed, only its age counts. With `checkpoints` those go too whose workspace is gone and whose
    last one is older than `max_age`, and what only they reach: an erasure, never the default. `pack` puts
    together the objects that stay. A dry run names exactly what the same call would remove.
    """
    places = tuple(dict.fromkeys(roots))
    moment = time.time() if now is None else now
    found = [holding for root in places for holding in holdings(root)]
    fixed = sum(depot_bytes(root) for root in places)
    ages: dict[HoldingKind, float] = {"workspace": max_age, "litter": max(max_age, _HOUR)}
    plan = _Plan(found, needed, now=moment, ages=ages, shared_age=shared_age)
    plan.by_age()
    if max_bytes is not None:
        plan.by_size(max_bytes - fixed)
    gone = plan.gone if dry_run else [holding for holding in plan.gone if _remove(holding)]
    erased: dict[Path, Erasure] = {}
    if checkpoints:
        erased = {root: _erased(root, gone, needed, moment - max_age, dry_run=dry_run) for root in places}
    projects = tuple(_project(root, found, gone, erased.get(root, Erasure())) for root in places)
    if pack and not dry_run:
        for root in places:
            _pack(root)
    return GcReport(projects=projects, taken=fixed + taken(found), dry_run=dry_run)


class _Plan:
    """Decides what goes; nothing is touched."""

    def __init__(
        self,
        found: Sequence[Holding],
        needed: Needed,
        *,
        now: float,
        ages: dict[HoldingKind, float],
        shared_age: float,
    ) -> None:
        self._needed = needed
        self._now = now
        self._ages = ages
        self._shared_age = shared_age
        self._left = sorted(found, key=lambda each: (_ORDER[each.kind], each.used, str(each.place)))
        self._below = {each.place: _stands_on(each) for each in found if each.kind == "workspace"}
        self._users = Counter(place for places in self._below.values() for place in places)
        self._linked = Counter(file for each in found for file in each.shared)
        self.gone: list[Holding] = []

    def by_age(self) -> None:
        """Let go of all that is old; workspaces first, so that what they stood on can follow."""
        for each in tuple(self._left):
            if self._old(each) and self._may_go(each):
                self._take(each)

    def by_size(self, most: int) -> None:
        """Let go of what was used least recently until what is left takes at most that many bytes."""
        size = taken(self._left)
        while size > most:
            may_go = [each for each in self._left if self._may_go(each)]
            if not may_go:
                return
            size -= self._take(min(may_go, key=lambda each: (each.used, _ORDER[each.kind], str(each.place))))

    def _old(self, each: Holding) -> bool:
        return each.used < self._now - self._ages.get(each.kind, self._shared_age)

    def _may_go(self, each: Holding) -> bool:
        if each.kind == "litter":
            return self._old(each)
        if each.used > self._now - _GRACE or self._users[each.place]:
            return False
        needed = self._needed(each.root, each.kind, each.name, each.used)
        return self._old(each) if needed is None else not needed

    def _take(self, each: Holding) -> int:
        """Let go of one thing; return the bytes that this frees."""
        self._left.remove(each)
        self.gone.append(each)
        self._users.subtract(self._below.get(each.place, ()))
        self._linked.subtract(each.shared)
        return each.bytes + sum(size for file, size in each.shared.items() if not self._linked[file])


def _stands_on(workspace: Holding) -> tuple[Path, ...]:
    """Return the base and the layer of a workspace; none where its state cannot be read."""
    try:
        content = (workspace.place / "state.json").read_bytes()
        state = decode_as(content, WorkspaceState)
    except (OSError, msgspec.MsgspecError):
        return ()
    base = workspace.root / "bases" / state.base.commit
    return (base,) if state.environment is None else (base, Path(state.environment).parent)


def _remove(holding: Holding) -> bool:
    """Remove one thing unless somebody has begun to use it since it was looked at; tell whether it is gone."""
    if holding.kind == "litter":
        remove_tree(holding.place)
        return True
    lock = holding.root / "locks" / f"{holding.kind}-{holding.name}.lock"
    with suppress(OSError), locked_now(lock) as free:  # on a full disk not even a lock may be had
        if free and last_use(holding.place) == holding.used:
            discard_tree(holding.place)
            return True
    return False


def _erased(root: Path, gone: Sequence[Holding], needed: Needed, limit: float, *, dry_run: bool) -> Erasure:
    left = {place.name for place in (root / "workspaces").glob("[!.]*")}
    left -= {each.name for each in gone if each.root == root and each.kind == "workspace"}

    def kept(workspace: str, last: float) -> bool:
        return workspace in left or last >= limit or needed(root, "workspace", workspace, last) is True

    git = private_git(root / "depot.git")
    erasure = doomed_refs(git, kept) if (root / "depot.git").is_dir() else Erasure()
    if erasure.refs and not dry_run:
        erase(git, erasure, limit=limit, quiet=not left)
    return erasure


def _project(root: Path, found: Sequence[Holding], gone: Sequence[Holding], erased: Erasure) -> ProjectGc:
    here = [each for each in gone if each.root == root]
    removed = {each.place for each in here}
    before = [each for each in found if each.root == root]
    return ProjectGc(
        root=root,
        workspaces=_names(here, "workspace"),
        bases=_names(here, "base"),
        layers=_names(here, "layer"),
        litter=_names(here, "litter"),
        erased=erased,
        bytes=taken(before) - taken(each for each in before if each.place not in removed),
    )


def _names(gone: Sequence[Holding], kind: HoldingKind) -> tuple[str, ...]:
    return tuple(sorted(each.name for each in gone if each.kind == kind))


def _pack(root: Path) -> None:
    if not (root / "depot.git").is_dir():
        return
    try:
        private_git(root / "depot.git")("repack", "-d", "-q", "--geometric=2")
    except InfrastructureError as problem:
        if problem.code != "no_space":  # a disk too full to pack on is no worse than before
            raise
