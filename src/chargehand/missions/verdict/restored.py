"""Changes that people took back by restoring: not promoted unless a person approves them."""

from __future__ import annotations

from chargehand.core.records import Finding
from chargehand.core.state import MissionState, RestoredTree
from chargehand.core.text import shown_path
from chargehand.missions.reading import mission_ref
from chargehand.missions.transcript import WORK
from chargehand.workspace.depot import Depot

# Checkpoints that a restore makes; merges, rebases and formatting by a person reject nothing.
RESTORES = {"full": "restored", "files": "restored files", "smart": "restored hunks"}


def restored_after_work(state: MissionState, number: int) -> RestoredTree | None:
    """Return the last tree that a person made from an attempt's finished work, else `None`."""
    steps = list(state.steps)
    work = WORK.format(number=number)
    if work not in state.steps:
        return None
    done = steps.index(work)
    return next((e for e in reversed(state.restored) if e.attempt == number and e.steps > done), None)


def find_rejected(depot: Depot, state: MissionState, base: str, tree: str) -> tuple[Finding, ...]:
    """Return a finding for each path of a tree, based on the tree `base`, in a version that a person took back."""
    rejected: dict[str, tuple[tuple[int | None, str | None], str]] = {}
    for each in state.restored:
        made = each.checkpoint
        if made.trigger in RESTORES.values():
            for change in depot.diff(depot.tree_of(made.parent), made.tree):
                rejected[change.path] = (change.old_mode, change.old_id), made.commit
    if not rejected:
        return ()
    # A version that the base has too is not part of the change: it came with a branch that moved. A version on the
    # mission's branch was promoted before: only a roll-back removes it.
    tip = depot.read_ref(mission_ref(state.id))
    new = None if tip is None else {change.path for change in depot.diff(depot.tree_of(tip), tree)}
    changed = {
        change.path: (change.new_mode, change.new_id)
        for change in depot.diff(base, tree)
        if new is None or change.path in new
    }
    return tuple(
        Finding(
            rule="rejected_again",
            severity="warning",
            path=path,
            message=f"{shown_path(path)} is again as a person rejected it (checkpoint {commit[:12]})",
            needs_person=True,
        )
        for path, (was, commit) in sorted(rejected.items())
        if path in changed and changed[path] == was
    )
