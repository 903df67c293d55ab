"""Disk space of projects' state: garbage collection, and quotas of all projects and of one attempt."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct, field

from chargehand.core.codec import decode_as
from chargehand.core.errors import InfrastructureError, RefusedError
from chargehand.workspace.errors import no_space
from chargehand.workspace.host.closed import closed_bytes
from chargehand.workspace.host.files import (
    Need,
    describe_lack,
    discard_tree,
    megabytes,
    nearest_directory,
    no_room,
    tree_bytes,
    try_lock,
)
from chargehand.workspace.host.files import remove_tree as remove_tree
from chargehand.workspace.host.git import private_git
from chargehand.workspace.scan import WorkspaceLimits
from chargehand.workspace.tree.history import swap_ref
from chargehand.workspace.workspace import WORKSPACES, WorkspaceState

ItemKind = Literal["workspace", "base", "layer", "litter"]
Needed = Callable[[Path, ItemKind, str, float], bool | None]
"""Returns whether an item (its project's directory, kind, name, last use) is needed; `None` if unknown."""

_HOUR = 3600.0
DAY = 24 * _HOUR
_SHARED_AGE = 7 * DAY
_GRACE = 60.0  # seconds; items used this recently may be used next: a workspace is made after its base is found
_YOUNG_OBJECTS = 3600.0  # seconds; younger objects may belong to a checkpoint that is being made
_DIRECTORIES: Mapping[str, ItemKind] = {
    "workspaces": "workspace",
    "bases": "base",
    "layers": "layer",
    "maps": "layer",  # the index of the repository map: derived from the depot, like a layer
}
# Workspaces before the layers that they use, so that one call can remove both.
_ORDER: dict[ItemKind, int] = {"litter": 0, "workspace": 1, "layer": 2, "base": 3}


def nobody_needs(root: Path, kind: ItemKind, name: str, used: float, /) -> bool | None:
    """Return that the item is not needed: the simplest `Needed`."""
    return False


class Erasure(Struct, frozen=True, kw_only=True):
    """Removed refs with their commits, the number of commits that become unreachable, and their bytes."""

    refs: tuple[str, ...] = ()
    tips: tuple[str, ...] = ()
    commits: int = 0
    bytes: int = 0


class ProjectGc(Struct, frozen=True, kw_only=True):
    """Removed items (on a dry run: to be removed) of one project's directory `root`, by name.

    `erased` is the part that became unreachable with erased checkpoints; `bytes` on disk excludes it.
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
        """The checkpoint refs that were removed."""
        return self.erased.refs


class GcReport(Struct, frozen=True, kw_only=True):
    """Removed items (on a dry run: to be removed) of all projects; `taken` is their disk usage before."""

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
    """Remove unneeded items from the directories of projects, and report them.

    First removes items last used longer ago than `max_age` seconds (bases and layers: `shared_age`), then, while
    all take more than `max_bytes`, the least recently used ones. Never removes an item that `needed` names, that a
    remaining workspace uses, that is in use, or was within the last minute; if it is unknown whether a workspace
    is needed, only its age counts. `checkpoints` also removes checkpoints whose workspace is gone and whose last
    one is older than `max_age`, and objects reachable only from them: an erasure, never the default. `pack` packs
    the remaining objects. A dry run names exactly the items that the same call would remove.
    """
    places = tuple(dict.fromkeys(roots))
    moment = time.time() if now is None else now
    found = [item for root in places for item in list_items(root)]
    fixed = sum(depot_bytes(root) for root in places)
    ages: dict[ItemKind, float] = {"workspace": max_age, "litter": max(max_age, _HOUR)}
    plan = _RemovalPlan(found, needed, now=moment, ages=ages, shared_age=shared_age)
    plan.drop_old()
    if max_bytes is not None:
        # Depots are never removed, so the rest has to fit in addition to them.
        plan.drop_until(max_bytes - fixed)
    gone = plan.gone if dry_run else [item for item in plan.gone if item.remove_unused()]
    # After the workspaces, since a remaining workspace keeps its checkpoints, and before packing, which reads
    # them.
    erased: dict[Path, Erasure] = {}
    if checkpoints:
        erased = {root: _erase_checkpoints(root, gone, needed, moment - max_age, dry_run) for root in places}
    projects = tuple(_report_project(root, found, gone, erased.get(root, Erasure())) for root in places)
    if pack and not dry_run:
        for root in places:
            try:
                if (root / "depot.git").is_dir():
                    # Geometric: small packs are joined and large ones left alone, so the cost depends on the new
                    # objects.
                    private_git(root / "depot.git")("repack", "-d", "-q", "--geometric=2")
            except InfrastructureError as problem:
                if problem.code != "no_space":  # a disk too full for packing is no worse than before
                    raise
    return GcReport(projects=projects, taken=fixed + total_bytes(found), dry_run=dry_run)


# --- items


# Files that several items may share: a file by device and inode, a base's files by project and commit.
_Shared = tuple[int, int] | tuple[str, str]


class StoredItem(Struct, frozen=True, kw_only=True):
    """A removable item: its kind, last use, and size without and with shared files.

    `shared` maps parts that other items may also have (packs of objects by device and inode, files of bases by the
    commit for which they were written) to their bytes.
    """

    root: Path
    kind: ItemKind
    place: Path
    used: float
    bytes: int
    shared: Mapping[_Shared, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The workspace's id, the base's commit, the layer's key."""
        return self.place.name

    def remove_unused(self) -> bool:
        """Remove it unless a process has started to use it since it was measured; return whether it is gone."""
        if self.kind == "litter":
            remove_tree(self.place)
            return True
        lock = self.root / "locks" / f"{self.kind}-{self.name}.lock"
        with suppress(OSError), try_lock(lock) as free:  # on a full disk even locking may fail
            # Under the lock, and compared with the plan's time: a process that starts to use an item touches its
            # record.
            if free and _last_use(self.place) == self.used:
                discard_tree(self.place)
                return True
        return False


def list_items(root: Path) -> list[StoredItem]:
    """Return the workspaces, bases and layers of a project's directory, and the remains of crashes."""
    found: list[StoredItem] = []
    for directory, kind in _DIRECTORIES.items():
        with suppress(FileNotFoundError):
            found += [_measure_item(root, kind, place) for place in sorted((root / directory).iterdir())]
    return found


def depot_bytes(root: Path) -> int:
    """Return the bytes of a project's depot, without files that it shares with the user's repository."""
    return tree_bytes(root / "depot.git", shared=False)[1]


def total_bytes(items: Iterable[StoredItem]) -> int:
    """Return the bytes that items take together, counting shared files once."""
    own = 0
    shared = dict[_Shared, int]()
    for each in items:
        own += each.bytes
        shared.update(each.shared)
    return own + sum(shared.values())


def _last_use(place: Path) -> float:
    """Return the time of an item's last use; an item without a record is litter and infinitely old."""
    for name in ("state.json", "meta.json"):
        with suppress(OSError):
            return (place / name).stat().st_mtime
    return 0.0


def _measure_item(root: Path, kind: ItemKind, place: Path) -> StoredItem:
    if place.name.startswith("."):  # `.new-…` and `.trash-…`: half made or half removed at a crash
        used, size = 0.0, 0
        with suppress(OSError):
            # No process resumes `.trash-…`, while a young `.new-…` may still be in the making.
            used = 0.0 if place.name.startswith(".trash-") else place.stat().st_mtime
            size = tree_bytes(place)[1]
        return StoredItem(root=root, kind="litter", place=place, used=used, bytes=size)
    shared: dict[_Shared, int] = {}
    if kind == "base":
        with suppress(OSError), os.scandir(place / "objects" / "pack") as listing:
            for entry in listing:
                info = entry.stat(follow_symlinks=False)
                shared[info.st_dev, info.st_ino] = info.st_blocks * 512
    size = 0
    if kind != "workspace":  # bases and layers never change: their size was recorded when they were made
        with suppress(OSError, ValueError, AttributeError):
            meta = json.loads((place / "meta.json").read_bytes())
            noted = meta.get("disk")
            size = noted if isinstance(noted, int) else 0
            if kind == "base" and size > 0:
                files = {**meta.get("linked", {}), place.name: size}
                shared |= {(str(root), commit): int(brought) for commit, brought in files.items()}
                return StoredItem(root=root, kind=kind, place=place, used=_last_use(place), bytes=0, shared=shared)
    if size <= 0:  # a workspace, or made by an older version
        size = tree_bytes(place)[1] - sum(shared.values())
    return StoredItem(root=root, kind=kind, place=place, used=_last_use(place), bytes=size, shared=shared)


# --- removal


class _RemovalPlan:
    """Decides which items to remove; changes nothing on disk."""

    def __init__(
        self,
        found: Sequence[StoredItem],
        needed: Needed,
        *,
        now: float,
        ages: dict[ItemKind, float],
        shared_age: float,
    ) -> None:
        self._needed = needed
        self._now = now
        self._ages = ages
        self._shared_age = shared_age
        self._left = sorted(found, key=lambda each: (_ORDER[each.kind], each.used, str(each.place)))
        self._below: dict[Path, tuple[Path, ...]] = {}  # the base and layers of each workspace
        for each in found:
            if each.kind == "workspace":
                with suppress(OSError, msgspec.MsgspecError):
                    state = decode_as((each.place / "state.json").read_bytes(), WorkspaceState)
                    base = each.root / "bases" / state.base.commit
                    layers = (
                        Path(layer).parent for layer in (state.environment, state.caches) if layer is not None
                    )
                    self._below[each.place] = (base, *layers)
        self._users = Counter(place for places in self._below.values() for place in places)
        self._linked = Counter(file for each in found for file in each.shared)
        self.gone: list[StoredItem] = []

    def drop_old(self) -> None:
        """Drop all old items."""
        for each in tuple(self._left):
            if self._is_old(each) and self._may_go(each):
                self._drop(each)

    def drop_until(self, most: int) -> None:
        """Drop the least recently used items until the rest takes at most `most` bytes."""
        size = total_bytes(self._left)
        while size > most:
            # Computed again each time: a base may be removed with the last workspace on it.
            may_go = [each for each in self._left if self._may_go(each)]
            if not may_go:
                return
            size -= self._drop(min(may_go, key=lambda each: (each.used, _ORDER[each.kind], str(each.place))))

    def _is_old(self, each: StoredItem) -> bool:
        return each.used < self._now - self._ages.get(each.kind, self._shared_age)

    def _may_go(self, each: StoredItem) -> bool:
        if each.kind == "litter":  # another process may be making young litter right now
            return self._is_old(each)
        if each.used > self._now - _GRACE or self._users[each.place]:
            return False
        needed = self._needed(each.root, each.kind, each.name, each.used)
        return self._is_old(each) if needed is None else not needed

    def _drop(self, each: StoredItem) -> int:
        """Drop one item; return the bytes freed: those of a shared file only with its last owner."""
        self._left.remove(each)
        self.gone.append(each)
        self._users.subtract(self._below.get(each.place, ()))
        self._linked.subtract(each.shared)
        return each.bytes + sum(size for file, size in each.shared.items() if not self._linked[file])


def _report_project(
    root: Path, found: Sequence[StoredItem], gone: Sequence[StoredItem], erased: Erasure
) -> ProjectGc:
    here = [each for each in gone if each.root == root]
    removed = {each.place for each in here}
    before = [each for each in found if each.root == root]
    names: dict[ItemKind, tuple[str, ...]] = {
        kind: tuple(sorted(each.name for each in here if each.kind == kind)) for kind in _ORDER
    }
    return ProjectGc(
        root=root,
        workspaces=names["workspace"],
        bases=names["base"],
        layers=names["layer"],
        litter=names["litter"],
        erased=erased,
        bytes=total_bytes(before) - total_bytes(each for each in before if each.place not in removed),
    )


# --- checkpoints and objects


def _erase_checkpoints(
    root: Path, gone: Sequence[StoredItem], needed: Needed, limit: float, dry_run: bool
) -> Erasure:
    if not (root / "depot.git").is_dir():
        return Erasure()
    left = {place.name for place in (root / "workspaces").glob("[!.]*")}
    left -= {each.name for each in gone if each.root == root and each.kind == "workspace"}

    git = private_git(root / "depot.git")
    doomed: dict[str, str] = {}
    stay: dict[str, None] = {}
    for line in git("for-each-ref", "--format=%(objectname) %(committerdate:unix) %(refname)").lines:
        tip, when, ref = line.split(" ", 2)
        workspace = ref.removeprefix(WORKSPACES)
        last = float(when or 0)
        stays = workspace in left or last >= limit
        if not ref.startswith(WORKSPACES) or stays or needed(root, "workspace", workspace, last) is True:
            stay[tip] = None
        else:
            doomed[ref] = tip
    if not doomed:
        return Erasure()
    only = "".join(f"{tip}\n" for tip in doomed.values()) + "".join(f"^{tip}\n" for tip in stay)
    lost = git("rev-list", "--count", "--stdin", input=only.encode())
    size = git("rev-list", "--objects", "--disk-usage", "--stdin", input=only.encode())
    refs, tips = tuple(doomed), tuple(doomed.values())
    erasure = Erasure(refs=refs, tips=tips, commits=int(lost.text), bytes=int(size.text))
    if dry_run:
        return erasure
    for ref, tip in doomed.items():
        swap_ref(git, ref, new=None, old=tip)  # `RefMovedError` if a checkpoint was added meanwhile
    # While a workspace exists, a recently written object may be about to get its ref: git would prune it.
    newest = min(limit, time.time() - _YOUNG_OBJECTS if left else time.time())
    when = datetime.fromtimestamp(newest, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    # Unreachable objects become loose files first: git distinguishes young from old objects by file times.
    git("repack", "-A", "-d", "-q", f"--unpack-unreachable={when}")
    git("prune", f"--expire={when}")
    return erasure


# --- quotas

_SMALL = 16 << 20  # bytes; for less than this a measurement of the last seconds is good enough
_FRESH_SECONDS = 30.0
_NEARLY_FULL = 1 << 20  # bytes; with less free even the store's log might not be written any more


class StateQuota:
    """The disk space of all projects of a state directory; a `Room` that frees space if needed.

    `roots` are the projects' directories, `limit` in bytes applies to all of them together; `needed` is called
    only if something must be removed, and returns the present `Needed`.
    """

    def __init__(
        self,
        roots: Callable[[], Sequence[Path]],
        *,
        limit: int,
        needed: Callable[[], Needed],
        max_age: float = DAY,
    ) -> None:
        self._roots = roots
        self._limit = limit
        self._needed = needed
        self._max_age = max_age
        self._lock = threading.Lock()
        self._measured: tuple[float, int] | None = None

    def __call__(self, place: Path, need: Need, what: str) -> None:
        """Return if `need` and a tenth more fits on the disk of `place` and under the limit.

        If it does not fit, remove unneeded items first, least recently used first. Raises `InfrastructureError`
        (`no_space`) with the figures if that is not enough.
        """
        wanted = need.with_margin()
        if self._describe_lack(place, wanted) is None:
            return
        disk = os.statvfs(nearest_directory(place))
        taken = self.taken()
        short = max(0, wanted.bytes - disk.f_bavail * disk.f_frsize)
        most = min(self._limit - wanted.bytes, taken - short)
        if disk.f_files and disk.f_favail < wanted.files:
            most = 0  # items are measured in bytes, not in inodes: remove all unneeded ones
        # Unpacked: a new pack is written before the old ones are removed, and there is too little room.
        gc(self._roots(), needed=self._needed(), max_age=self._max_age, max_bytes=most, pack=False)
        with self._lock:
            self._measured = None
        problem = self._describe_lack(place, wanted)
        if problem is not None:
            raise no_room(what, wanted, problem)

    def taken(self) -> int:
        """Return the bytes that all projects take now."""
        size = sum(depot_bytes(root) + total_bytes(list_items(root)) for root in self._roots())
        with self._lock:
            self._measured = (time.monotonic(), size)
        return size

    def _describe_lack(self, place: Path, need: Need) -> str | None:
        on_disk = describe_lack(place, need)
        if on_disk is not None:
            return on_disk
        with self._lock:
            measured = self._measured
        # Measuring walks every workspace: repeated only for large needs, or after half a minute.
        fresh = measured is not None and time.monotonic() - measured[0] < _FRESH_SECONDS
        taken = measured[1] if measured is not None and fresh and need.bytes < _SMALL else self.taken()
        room = self._limit - taken
        if room >= need.bytes:
            return None
        limit = megabytes(self._limit)
        return f"{megabytes(room)} are left of the {limit} that `limits.state_mb` gives all projects together"


def require_room(place: Path, what: str, *, bytes: int = _NEARLY_FULL) -> None:
    """Raise `InfrastructureError` (`no_space`) if the disk of `place` is nearly full; `what` was in progress."""
    disk = os.statvfs(place)
    if disk.f_bavail * disk.f_frsize < bytes or (disk.f_files and not disk.f_favail):
        raise no_space(what)


class AttemptQuota:
    """Limits on writing in one workspace, ignored files included; checked repeatedly during an attempt.

    `root` is the directory of its writes (`Workspace.scan_root`), `before` the entries and bytes in it before the
    first write: zeros over an overlay, the copy of the base in a plain directory.
    """

    def __init__(self, root: Path, limits: WorkspaceLimits, *, before: tuple[int, int] = (0, 0)) -> None:
        self._root = root
        self._most = (limits.files + before[0], limits.disk_bytes + before[1])
        self._limits = limits

    def find_passed(self) -> Literal["disk", "files"] | None:
        """Return which limit is exceeded; the cost grows with the written files, up to the limit."""
        # Programs may hide files in directories that deny access to their owner, us. Count those as root of a user
        # namespace, in a separate process.
        closed: list[str] = []
        entries, size = tree_bytes(self._root, stop=self._most, closed=closed)
        if closed:
            more = closed_bytes(closed, stop=self._most)
            entries, size = entries + more[0], size + more[1]
        if size > self._most[1]:
            return "disk"
        return "files" if entries > self._most[0] else None

    def check(self) -> None:
        """Return if the attempt is within its limits; the cost grows with the written files, up to the limit.

        Raises `RefusedError` (`disk`) if more was written than allowed, `InfrastructureError` (`no_space`) if the
        disk itself is nearly full.
        """
        passed = self.find_passed()
        if passed == "disk":
            raise _quota_error(f"more than {megabytes(self._limits.disk_bytes)}", "sandbox.disk_mb")
        if passed == "files":
            raise _quota_error(f"more than {self._limits.files} files and directories", "sandbox.files")
        require_room(self._root, "the agent worked")


def _quota_error(what: str, key: str) -> RefusedError:
    return RefusedError(
        f"the agent wrote {what}, ignored files included",
        code="disk",
        hint=f"raise {key}, or ask for less at once",
    )
