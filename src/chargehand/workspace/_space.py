"""What a project's directory takes on the disk, thing by thing, and what making something new will take."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pygit2

from chargehand.core.errors import InfrastructureError
from chargehand.workspace._files import tree_bytes
from chargehand.workspace._trees import LINK, Entries, ObjectReader

HoldingKind = Literal["workspace", "base", "layer", "litter"]
DIRECTORIES: Mapping[str, HoldingKind] = {"workspaces": "workspace", "bases": "base", "layers": "layer"}
_BLOCK = 4096
_INDEX_ENTRY = 100
_MARGIN = 10
INODE = 512
"""What a file takes whose content is shared: its own record."""

Room = Callable[[Path, "Need", str], None]
"""Sees to it that there is room below a directory for what is about to be made; else raises `no_space`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What something new will take: bytes on disk, and how many files and directories."""

    bytes: int
    files: int = 0

    def with_margin(self) -> Need:
        """Return it with a tenth more, for what cannot be known before."""
        return Need(bytes=self.bytes + self.bytes // _MARGIN, files=self.files + self.files // _MARGIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One thing that may go: what it is, when it was last used, what it takes without and with shared files.

    `shared` maps files that other holdings may have too (packs of objects) to their size.
    """

    root: Path
    kind: HoldingKind
    place: Path
    used: float
    bytes: int
    shared: Mapping[tuple[int, int], int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its id, commit or key."""
        return self.place.name


def holdings(root: Path) -> list[Holding]:
    """Return what the workspaces, bases and layers of a project's directory take, what crashes left included.

    Bases and layers never change: their size was remembered when they were made. Others are measured now.
    """
    found: list[Holding] = []
    for directory, kind in DIRECTORIES.items():
        with suppress(FileNotFoundError):
            found += [_holding(root, kind, place) for place in sorted((root / directory).iterdir())]
    return found


def depot_bytes(root: Path) -> int:
    """Return what the depot takes; what it shares with the user's repository is that one's."""
    return tree_bytes(root / "depot.git", shared=False)[1]


def taken(found: Iterable[Holding]) -> int:
    """Return the bytes that these take together, shared files once."""
    own, shared = 0, dict[tuple[int, int], int]()
    for each in found:
        own += each.bytes
        shared.update(each.shared)
    return own + sum(shared.values())


def last_use(place: Path) -> float:
    """Return when something was last used; without its own record it is litter and infinitely old."""
    for name in ("state.json", "meta.json"):
        with suppress(OSError):
            return (place / name).stat().st_mtime
    return 0.0


def _holding(root: Path, kind: HoldingKind, place: Path) -> Holding:
    if place.name.startswith("."):
        with suppress(OSError):
            used = 0.0 if place.name.startswith(".trash-") else place.stat().st_mtime
            return Holding(root=root, kind="litter", place=place, used=used, bytes=tree_bytes(place)[1])
        return Holding(root=root, kind="litter", place=place, used=0.0, bytes=0)
    shared = _packs(place) if kind == "base" else {}
    size = _remembered(place) if kind != "workspace" else None
    if size is None:
        size = tree_bytes(place)[1] - sum(shared.values())
    return Holding(root=root, kind=kind, place=place, used=last_use(place), bytes=size, shared=shared)


def _remembered(place: Path) -> int | None:
    """Return the size that was noted when a base or layer was made; `None` where an older version made it."""
    try:
        meta = json.loads((place / "meta.json").read_bytes())
    except (OSError, ValueError):
        return None
    size = meta.get("disk") if isinstance(meta, dict) else None
    return size if isinstance(size, int) and size > 0 else None


def _packs(place: Path) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    with suppress(OSError), os.scandir(place / "objects" / "pack") as listing:
        for entry in listing:
            info = entry.stat(follow_symlinks=False)
            found[info.st_dev, info.st_ino] = info.st_blocks * 512
    return found


def unshared_bytes(place: Path) -> int:
    """Return what a base that is being made takes besides its packs, which others may link."""
    return tree_bytes(place)[1] - sum(_packs(place).values())


# --- before something is made


def tree_need(reader: ObjectReader, tree: bytes, *, besides: bytes | None = None) -> Need:
    """Return what writing a tree out as files takes, from the sizes that git has of its blobs; none is read.

    With `besides` only what differs from that tree is written, and a mark where something of it is missing.
    """
    odb = pygit2.Odb(str(reader.objects))
    size = files = 0
    for length in _sizes(odb, reader, reader.tree(tree), reader.tree(besides)):
        files += 1
        size += -(-length // _BLOCK) * _BLOCK + _INDEX_ENTRY
    return Need(bytes=size, files=files)


def _sizes(odb: pygit2.Odb, reader: ObjectReader, tree: Entries, besides: Entries) -> Iterator[int]:
    """Yield the size of everything below a tree that is not in the other, directories included."""
    yield from (0 for name in besides if name not in tree)
    for name, entry in tree.items():
        other = besides.get(name)
        if entry == other:
            continue
        if entry.is_tree:
            yield _BLOCK
            yield from _sizes(odb, reader, reader.below(entry), reader.below(other))
        elif entry.is_gitlink:
            yield _BLOCK
        else:
            yield 0 if entry.mode == LINK else _size(odb, entry.id)


def _size(odb: pygit2.Odb, id: bytes) -> int:
    try:
        return int(odb.read_header(pygit2.Oid(raw=id))[1])
    except (KeyError, pygit2.GitError):  # whoever writes the tree says so better
        return 0


def room_on_disk(place: Path, need: Need, what: str) -> None:
    """The plainest `Room`: what the file system of `place` has free must do."""
    problem = lacking(place, need)
    if problem is not None:
        raise no_room(what, need, problem)


def lacking(place: Path, need: Need) -> str | None:
    """Return what the file system of `place` lacks for `need`, in words; `None` where it lacks nothing."""
    free = os.statvfs(existing(place))
    room = free.f_bavail * free.f_frsize
    if room < need.bytes:
        return f"{megabytes(room)} are free at {str(place)!r}"
    if free.f_files and free.f_favail < need.files:
        return f"{free.f_favail} more files are possible at {str(place)!r}, {need.files} are needed"
    return None


def existing(place: Path) -> Path:
    """Return `place`, or the nearest directory above it that is there."""
    return next((path for path in (place, *place.parents) if path.is_dir()), Path("/"))


def no_room(what: str, need: Need, problem: str) -> InfrastructureError:
    """Return the error for something that will not fit, found before anything of it was written."""
    return InfrastructureError(
        f"no space left for {what}: it takes about {megabytes(need.bytes)}, and {problem}",
        code="no_space",
        hint="free some space, or run 'chargehand gc'; what stays is shown by 'chargehand gc --dry-run'",
    )


def megabytes(size: int) -> str:
    """Return bytes as a person reads them."""
    return f"{max(0, size) / 1e6:.1f} MB"


def nobody_needs(root: Path, kind: HoldingKind, name: str, used: float, /) -> bool | None:
    """The plainest `Needed`: nothing is."""
    return False


Needed = Callable[[Path, HoldingKind, str, float], bool | None]
"""Tells whether a thing (its project's directory, kind, name, last use) is needed; `None`: nobody knows."""
