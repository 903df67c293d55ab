"""Where a branch moved on while an agent worked on what it was: the two trees together, or what conflicts.

Nothing is left half merged: a merge is a tree in the depot or it is none, and a conflict is records, no markers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from chargehand.core.attempt_events import CheckpointMade
from chargehand.core.codec import convert_to
from chargehand.core.events import Payload, encode_json
from chargehand.core.mission_events import BaseResolved, MergeConflicted
from chargehand.core.records import Base, Change, Checkpoint, Conflict, Reason
from chargehand.core.text import shown_path
from chargehand.missions._journal import Journal
from chargehand.store.store import Store
from chargehand.workspace.depot import Depot
from chargehand.workspace.merge import MergeResult
from chargehand.workspace.remotes import moved_base

_EVENT_BYTES = 7 * 1024
_NAMED = 5
_TOLD = (
    "The branch moved on while you worked, and your change conflicts with it. Your workspace now holds the branch "
    "as it is, with all of your change that could be merged. The paths in `conflicts` are as they are on the "
    "branch (`ours`): make your change to them again (`theirs` is how you had them, `base` how both began)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """An attempt's tree on the branch as it is now, `base`.

    `tree` is all of both where nothing conflicts, else the branch's with what of the attempt's could be merged.
    `count` paths conflict, `conflicts` tells of them. `checkpoint` keeps `tree`, on top of the branch.
    """

    base: Base
    tree: str
    checkpoint: Checkpoint
    count: int = 0
    conflicts: tuple[Conflict, ...] = ()


def meet(depot: Depot, base: Base, tree: str, *, mission: str) -> Meeting | None:
    """Merge an attempt's tree with where the branch of its base is now; `None` where that did not move.

    Also `None` where the branch holds all of it already. Writes objects and the checkpoint's ref into the depot.
    """
    tip = moved_base(depot, base)
    if tip is None:
        return None
    result = _merged(depot, base, tip, tree)
    together = result.tree or _without_conflicts(depot, base, tip, tree, result)
    if together == tip.tree and result.tree is not None:
        return None
    return Meeting(
        base=tip,
        tree=together,
        checkpoint=_checkpoint(depot, tip, together, mission=mission),
        count=len(result.conflicts),
        conflicts=result.details,
    )


def _merged(depot: Depot, base: Base, tip: Base, tree: str) -> MergeResult:
    return depot.merge(tip.commit, depot.commit(tree, (base.commit,), "candidate"))


def _without_conflicts(depot: Depot, base: Base, tip: Base, tree: str, result: MergeResult) -> str:
    """Return the branch's tree with all of the attempt's changes but those to paths that conflict."""
    out: set[str] = set()
    while result.tree is None:
        paths = {*result.conflicts, *(other for each in result.details for other in each.others)}
        if paths <= out:  # a path is in conflict by others than itself: nothing is taken of the attempt
            return tip.tree
        out |= paths
        result = _merged(depot, base, tip, depot.replace_paths(tree, sorted(out), base.tree))
    return result.tree


def _checkpoint(depot: Depot, tip: Base, tree: str, *, mission: str) -> Checkpoint:
    commit = depot.commit(tree, (tip.commit,), f"on top of {tip.commit}")
    ref = f"refs/chargehand/restored/{mission}/{commit}"
    if depot.read_ref(ref) is None:
        depot.swap(ref, commit, None)
    changed = len(depot.diff(tip.tree, tree))
    return Checkpoint(commit=commit, tree=tree, parent=tip.commit, trigger="merged", changed=changed)


def conflicted(
    store: Store, mission: str, conflicts: Sequence[Conflict], *, count: int, **where: Any
) -> MergeConflicted:
    """Return the event of a merge that conflicts, with as much of the conflicts as a line of the log may hold."""
    told = MergeConflicted(count=count, conflicts=tuple(conflicts), **where)
    if len(encode_json(told)) <= _EVENT_BYTES:
        return told
    whole = store.artifacts.put(encode_json(conflicts), kind="conflicts", mission=mission)
    return replace(told, conflicts=tuple(_fitting(conflicts)), artifact=whole)


def _fitting(conflicts: Iterable[Conflict]) -> Iterable[Conflict]:
    left = _EVENT_BYTES - 1024
    for each in conflicts:
        bare = replace(each, hunks=(), left_out=each.left_out + len(each.hunks))
        left -= len(encode_json(bare))
        if left < 0:
            return
        yield bare


def conflict_reason(conflicts: Sequence[Conflict], *, branch: str, count: int) -> Reason:
    """Return why an attempt whose change conflicts with a branch is not let in."""
    named = ", ".join(shown_path(each.path) for each in conflicts[:_NAMED])
    more = f" and {count - _NAMED} more" if count > _NAMED else ""
    return Reason(code="merge_conflict", message=f"the change conflicts with {branch} in {named}{more}")


def feedback(meeting: Meeting) -> bytes:
    """Return the report that the next attempt gets: what conflicts and from where it begins, as JSON.

    The keys of `chargehand.checks.Report` that have nothing to say are empty; `merge` holds the rest.
    """
    document = {
        "schema": 1,
        "tree": meeting.tree,
        "scope": "merged",
        "status": "red",
        "passed": (),
        "failing": (),
        "findings": (),
        "reverted": (),
        "merge": {
            "told": _TOLD,
            "branch": meeting.base.branch,
            "commit": meeting.base.commit,
            "count": meeting.count,
            "conflicts": meeting.conflicts,
        },
    }
    return encode_json(document)


async def recorded_meeting(
    journal: Journal, store: Store, depot: Depot, base: Base, tree: str, *, number: int
) -> Meeting | None:
    """Return where an attempt's tree meets the branch, found once: after a crash it is as it was found."""
    attempt = journal.state.attempt(number)

    async def found() -> Any:
        return msgspec.to_builtins(await asyncio.to_thread(meet, depot, base, tree, mission=journal.mission))

    def told(output: Any) -> Sequence[Payload]:
        meeting = convert_to(output, Meeting | None)
        if meeting is None or not meeting.count:
            return ()
        where = {"branch": meeting.base.branch, "commit": meeting.base.commit, "tree": tree}
        by = attempt.id if attempt else None
        return (conflicted(store, journal.mission, meeting.conflicts, count=meeting.count, attempt=by, **where),)

    output = await journal.step(f"merge/{number}", [base.commit, tree], found, notes=told)
    return convert_to(output, Meeting | None)


def move_on(journal: Journal, meeting: Meeting, *, number: int) -> None:
    """Note that the mission stands on the branch as it is now, its last checkpoint with it; once."""
    state, attempt = journal.state, journal.state.attempt(number)
    if attempt is None or any(point.commit == meeting.checkpoint.commit for point in state.checkpoints):
        return
    made = CheckpointMade(attempt=attempt.id, checkpoint=meeting.checkpoint)
    journal.note(BaseResolved(base=meeting.base), made, durable=True)


def changes_of(depot: Depot, meeting: Meeting) -> tuple[Change, ...]:
    """Return what the mission changes on the branch as it is now."""
    return depot.diff(meeting.base.tree, meeting.tree)
