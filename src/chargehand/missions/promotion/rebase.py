"""Rebases an attempt's tree onto a branch that moved on while the agent worked.

Nothing is left half merged: a merge is either a tree in the depot or nothing, and conflicts are records, not
markers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from chargehand.checks.areas import match_paths
from chargehand.core.attempt_events import CheckpointMade
from chargehand.core.codec import convert_to
from chargehand.core.events import Payload, encode_json
from chargehand.core.mission_events import BaseResolved, MergeConflicted
from chargehand.core.records import Base, Checkpoint, Conflict, Reason
from chargehand.core.state import MissionState
from chargehand.core.text import shown_path
from chargehand.missions.journal import Journal
from chargehand.missions.reading import is_applied
from chargehand.missions.services import Services
from chargehand.store.store import Store
from chargehand.workspace.depot import Depot
from chargehand.workspace.merge import IsUnion, MergeConflictError, MergeResult
from chargehand.workspace.remotes import moved_base

# A log line takes up to 8 kB, and an event contains more than its list of conflicts. A larger list is an artifact.
_EVENT_BYTES = 7 * 1024
_NAMED = 5
_CONFLICT_TEXT = (
    "The branch moved on while you worked, and your change conflicts with it. Your workspace now holds the branch "
    "as it is, with all of your change that could be merged. The paths in `conflicts` are as they are on the "
    "branch (`ours`): make your change to them again (`theirs` is how you had them, `base` how both began)."
)


class Rebase(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt's tree on the current branch, `base`.

    `tree` contains all changes of both if nothing conflicts, otherwise the branch's tree with the mergeable part
    of the attempt's changes. `count` paths conflict, `conflicts` describes them. `checkpoint` keeps `tree`, on top
    of the branch.
    """

    base: Base
    tree: str
    checkpoint: Checkpoint
    count: int = 0
    conflicts: tuple[Conflict, ...] = ()


async def record_rebase(
    journal: Journal, services: Services, base: Base, tree: str, *, step: str, number: int
) -> Rebase | None:
    """Rebase an attempt's tree as a recorded step: after a crash the result is the same."""
    attempt = journal.state.attempt(number)

    async def work() -> Any:
        rebase = await asyncio.to_thread(rebase_tree, services, base, tree, mission=journal.mission)
        return msgspec.to_builtins(rebase)

    def events(output: Any) -> Sequence[Payload]:
        rebase = convert_to(output, Rebase | None)
        if rebase is None or not rebase.count:
            return ()
        event = conflict_event(
            services.store,
            journal.mission,
            rebase.conflicts,
            count=rebase.count,
            attempt=attempt.id if attempt else None,
            branch=rebase.base.branch,
            commit=rebase.base.commit,
            tree=tree,
        )
        return (event,)

    output = await journal.step(step, [base.commit, tree], work, events=events)
    return convert_to(output, Rebase | None)


def rebase_tree(services: Services, base: Base, tree: str, *, mission: str) -> Rebase | None:
    """Merge an attempt's tree with the current tip of its base's branch; `None` if that did not move.

    Also `None` if the branch already contains all changes. Writes objects and the checkpoint's ref into the depot.
    """
    tip = moved_base(services.depot, base)
    if tip is None:
        return None
    return rebase_onto(services.depot, base, tip, tree, mission=mission, union=services.is_union)


def rebase_onto(depot: Depot, base: Base, tip: Base, tree: str, *, mission: str, union: IsUnion) -> Rebase | None:
    """Merge a tree made on `base` with `tip`, as `rebase_tree` does."""

    def merge(candidate: str) -> MergeResult:
        theirs = depot.commit(candidate, (base.commit,), "candidate")
        return depot.merge(tip.commit, theirs, union=union)

    result = merge(tree)
    merged = result.tree or _drop_conflicts(depot, base, tip, tree, result, merge)
    if merged == tip.tree and result.tree is not None:
        return None
    commit = depot.commit(merged, (tip.commit,), f"on top of {tip.commit}")
    # Kept by a ref before the log names it: a commit named in the log must not be garbage-collected. The same tree
    # on the same tip is the same commit, so a repeated step finds its ref.
    ref = f"refs/chargehand/restored/{mission}/{commit}"
    if depot.read_ref(ref) is None:
        depot.swap(ref, commit, None)
    changed = len(depot.diff(tip.tree, merged))
    return Rebase(
        base=tip,
        tree=merged,
        checkpoint=Checkpoint(commit=commit, tree=merged, parent=tip.commit, trigger="merged", changed=changed),
        count=len(result.conflicts),
        conflicts=result.details,
    )


def _drop_conflicts(
    depot: Depot, base: Base, tip: Base, tree: str, result: MergeResult, merge: Callable[[str], MergeResult]
) -> str:
    """Return the branch's tree with all of the attempt's changes except those to conflicting paths."""
    dropped: set[str] = set()
    while result.tree is None:
        # A renamed file conflicts under both names: dropping only one side would conflict again.
        paths = {*result.conflicts, *(other for each in result.details for other in each.others)}
        if paths <= dropped:  # a path conflicts because of other paths: nothing is taken from the attempt
            return tip.tree
        dropped |= paths
        result = merge(depot.replace_paths(tree, sorted(dropped), base.tree))
    return result.tree


def union_of(state: MissionState) -> IsUnion:
    """Return which paths keep the lines of both sides on a conflict, as a mission was configured."""
    return match_paths(state.config.project.union if state.config is not None else ())


def has_branch_moved(journal: Journal, depot: Depot) -> bool:
    """Return whether a promoted result must still be applied to a branch that has moved since."""
    state = journal.state
    base = state.promoted_on if state.request is not None and state.request.apply else None
    return base is not None and not is_applied(state) and moved_base(depot, base) is not None


async def rebase_promoted(journal: Journal, services: Services) -> Rebase | None:
    """Rebase the promoted result onto the branch that it must still be applied to; `None` if that did not move.

    Raises `MergeConflictError` if the two conflict, with the hunks in the log.
    """
    state, mission = journal.state, journal.mission
    base, tree, commit = state.promoted_on, state.tree, state.commit
    assert state.request is not None
    if base is None or tree is None or commit is None or not state.request.apply or is_applied(state):
        return None
    rebase = await asyncio.to_thread(rebase_tree, services, base, tree, mission=mission)
    if rebase is None or not rebase.count:
        return rebase
    where, tip = rebase.base.branch or rebase.base.revision, rebase.base.commit
    journal.record(
        conflict_event(
            services.store, mission, rebase.conflicts, count=rebase.count, branch=where, commit=tip, tree=tree
        )
    )
    named = name_paths([each.path for each in rebase.conflicts], rebase.count)
    raise MergeConflictError(
        f"the result of mission {mission!r} conflicts with the present {where!r}, in {named}",
        rebase.conflicts,
        hint=f"see the hunks with 'chargehand mission show {mission}', and merge commit {commit[:12]} yourself",
    )


def advance_base(journal: Journal, rebase: Rebase) -> None:
    """Record, once, that the mission's base is the current branch, with its last checkpoint on top."""
    state = journal.state
    if not state.attempts or any(point.commit == rebase.checkpoint.commit for point in state.checkpoints):
        return
    made = CheckpointMade(attempt=state.attempts[-1].id, checkpoint=rebase.checkpoint)
    journal.record(BaseResolved(base=rebase.base), made, durable=True)


def conflict_event(
    store: Store,
    mission: str,
    conflicts: Sequence[Conflict],
    *,
    count: int,
    branch: str | None,
    commit: str,
    tree: str,
    attempt: str | None = None,
) -> MergeConflicted:
    """Return the event of a conflicting merge, with as many conflicts as fit into a log line."""
    event = MergeConflicted(
        count=count, conflicts=tuple(conflicts), branch=branch, commit=commit, tree=tree, attempt=attempt
    )
    if len(encode_json(event)) <= _EVENT_BYTES:
        return event
    whole = store.artifacts.put(encode_json(conflicts), kind="conflicts", mission=mission)
    fitting: list[Conflict] = []
    left = _EVENT_BYTES - 1024
    for each in conflicts:
        without_hunks = replace(each, hunks=(), left_out=each.left_out + len(each.hunks))
        left -= len(encode_json(without_hunks))
        if left < 0:
            break
        fitting.append(without_hunks)
    return replace(event, conflicts=tuple(fitting), artifact=whole)


def name_paths(paths: Sequence[str], count: int) -> str:
    """Return the first five of `count` paths as text."""
    more = f" and {count - _NAMED} more" if count > _NAMED else ""
    return ", ".join(shown_path(path) for path in paths[:_NAMED]) + more


def conflict_reason(conflicts: Sequence[Conflict], *, branch: str, count: int) -> Reason:
    """Return the reason for refusing an attempt whose change conflicts with a branch."""
    named = name_paths([each.path for each in conflicts], count)
    return Reason(code="merge_conflict", message=f"the change conflicts with {branch} in {named}")


def conflict_report(rebase: Rebase) -> bytes:
    """Return the report for the next attempt as JSON: the conflicts and the starting point.

    The keys of `chargehand.checks.Report` that do not apply are empty; `merge` holds the rest.
    """
    document = {
        "schema": 1,
        "tree": rebase.tree,
        "scope": "merged",
        "status": "red",
        "passed": (),
        "failing": (),
        "findings": (),
        "reverted": (),
        "merge": {
            "told": _CONFLICT_TEXT,
            "branch": rebase.base.branch,
            "commit": rebase.base.commit,
            "count": rebase.count,
            "conflicts": rebase.conflicts,
        },
    }
    return encode_json(document)
