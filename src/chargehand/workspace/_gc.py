"""Frees disk space: old workspaces, bases and layers that nothing uses; checkpoints only when ordered."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from chargehand.core import ChargehandError
from chargehand.workspace._depot import Depot
from chargehand.workspace._files import discard_tree, locked, remove_tree, tree_bytes
from chargehand.workspace._workspace import WORKSPACES, read_state

_DAY = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GcReport:
    """What was removed (or, on a dry run, would be): ids of workspaces, bases, layers; refs; bytes on disk."""

    workspaces: tuple[str, ...]
    bases: tuple[str, ...]
    layers: tuple[str, ...]
    refs: tuple[str, ...]
    bytes: int
    dry_run: bool


def gc(
    depot: Depot,
    *,
    keep: Collection[str] = (),
    keep_bases: Collection[str] = (),
    max_age: float = 7 * _DAY,
    checkpoints: bool = False,
    dry_run: bool = False,
    now: float | None = None,
) -> GcReport:
    """Remove workspaces that are not in `keep`, and bases and layers that none of the rest uses.

    Only what was last used more than `max_age` seconds ago goes. With `checkpoints` the refs of workspaces whose
    files are gone go too, and with them what only they reach and is older: an erasure, never the default. Objects
    that are kept are packed together.
    """
    limit = (time.time() if now is None else now) - max_age
    stale = [place for place in _workspaces(depot) if place.name not in keep and _used(place) < limit]
    gone = {place.name for place in stale}
    commits, layers = _in_use(depot, gone)
    commits |= set(keep_bases)
    old_bases = [p for p in _listed(depot.root / "bases") if p.name not in commits and _used(p) < limit]
    old_layers = [p for p in _listed(depot.root / "layers") if p not in layers and _used(p) < limit]
    refs = list(_refs(depot, keep, gone)) if checkpoints else []
    size = sum(tree_bytes(place)[1] for place in (*stale, *old_bases, *old_layers))
    if not dry_run:
        for kind, places in (("workspace", stale), ("base", old_bases), ("layer", old_layers)):
            for place in places:
                _remove(depot, place, f"{kind}-{place.name}", limit)
        _sweep(depot, limit)
        if refs:
            _erase(depot, refs, limit)
        else:
            depot.git("repack", "-d", "-q", "--geometric=2")
    return GcReport(
        workspaces=tuple(sorted(gone)),
        bases=tuple(sorted(place.name for place in old_bases)),
        layers=tuple(sorted(place.name for place in old_layers)),
        refs=tuple(refs),
        bytes=size,
        dry_run=dry_run,
    )


def _listed(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted(place for place in directory.iterdir() if not place.name.startswith("."))


def _workspaces(depot: Depot) -> list[Path]:
    return _listed(depot.root / "workspaces")


def _used(place: Path) -> float:
    """Return when something was last used; without its own record it is litter and infinitely old."""
    for name in ("state.json", "meta.json"):
        with suppress(OSError):
            return (place / name).stat().st_mtime
    return 0.0


def _in_use(depot: Depot, gone: set[str]) -> tuple[set[str], set[Path]]:
    commits: set[str] = set()
    layers: set[Path] = set()
    for place in _workspaces(depot):
        if place.name in gone:
            continue
        try:
            state = read_state(depot, place.name)
        except ChargehandError:
            continue
        commits.add(state.base.commit)
        if state.environment is not None:
            layers.add(Path(state.environment).parent)
    return commits, layers


def _refs(depot: Depot, keep: Collection[str], gone: set[str]) -> Iterator[str]:
    alive = {place.name for place in _workspaces(depot)} - gone | set(keep)
    for ref in depot.git("for-each-ref", "--format=%(refname)", WORKSPACES).text.splitlines():
        if ref.removeprefix(WORKSPACES) not in alive:
            yield ref


def _remove(depot: Depot, place: Path, lock: str, limit: float) -> None:
    with locked(depot.root / "locks" / f"{lock}.lock"):
        if _used(place) < limit:  # someone may have begun to use it while we looked
            discard_tree(place)


def _erase(depot: Depot, refs: list[str], limit: float) -> None:
    """Let go of refs, and of what only they reached: objects younger than `limit` may be in use by a scan."""
    for ref in refs:
        depot.swap(ref, None, depot.read_ref(ref))
    when = datetime.fromtimestamp(min(limit, time.time()), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    depot.git("repack", "-A", "-d", "-q", f"--unpack-unreachable={when}")
    depot.git("prune", f"--expire={when}")


def _sweep(depot: Depot, limit: float) -> None:
    """Remove what crashes left half made or half thrown away."""
    for directory in ("bases", "layers", "workspaces"):
        for place in (depot.root / directory).glob(".*"):
            if place.name.startswith(".trash-") or place.stat().st_mtime < limit:
                remove_tree(place)
