"""Going back to an earlier checkpoint of a mission, wholly or in part, always by a new checkpoint."""

from __future__ import annotations

from chargehand.core.errors import RefusedError
from chargehand.core.mission_events import BaseResolved, CheckpointRestored
from chargehand.core.records import Checkpoint
from chargehand.missions._journal import Journal
from chargehand.workspace.depot import Depot
from chargehand.workspace.rollback import RollbackPlan, plan_rollback, stale_plan, write_rollback

_TRIGGERS = {"full": "restored", "files": "restored files", "smart": "restored hunks"}


def restore_checkpoint(
    depot: Depot, journal: Journal, commit: str, *, plan: RollbackPlan | None = None
) -> Checkpoint:
    """Do what `plan` says (by default all of the tree of `commit`); return the mission's last checkpoint then.

    A plan that changes nothing makes no checkpoint. Raises `RefusedError` (`no_change`, `plan_stale`).
    """
    state, target = journal.state, depot.tree_of(commit)
    if not state.checkpoints:
        raise RefusedError(f"mission {state.id!r} left no checkpoint", code="no_change")
    last = state.checkpoints[-1]
    if plan is None:
        plan = plan_rollback(depot, last.tree, target)
    elif (plan.source, plan.target) != (last.tree, target):
        raise stale_plan(plan, last.tree)
    if plan.result == last.tree:
        return last
    tree = write_rollback(depot, plan)
    made = depot.commit(tree, (last.commit,), f"restore {commit}")
    depot.swap(f"refs/chargehand/restored/{state.id}/{made}", made, None)
    restored = Checkpoint(
        commit=made,
        tree=tree,
        parent=last.commit,
        trigger=_TRIGGERS[plan.kind],
        changed=len(depot.diff(last.tree, tree)),
    )
    base = state.stands.get(commit, state.base)
    # A mission that moved on with its branch has trees of several bases: the base goes back with the tree.
    moved = base is not None and base != state.base and tree == target
    journal.note(
        *((BaseResolved(base=base),) if moved and base else ()),
        CheckpointRestored(workspace="", checkpoint=restored),
    )
    return restored
