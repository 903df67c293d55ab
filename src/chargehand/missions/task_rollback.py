"""Plans the roll-back of single tasks of a coordinator; the promoter carries it out."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from chargehand.core.errors import NotFoundError, RefusedError, nearest
from chargehand.core.events import read_payload
from chargehand.core.plan_events import TaskMerged
from chargehand.core.plans import predecessors
from chargehand.core.state import ENDED, MissionState
from chargehand.core.text import shown_path
from chargehand.missions.reading import (
    already_rolled_back_error,
    is_exported,
    is_rolled_back,
    not_promoted_error,
)
from chargehand.store.store import Store
from chargehand.workspace.depot import Depot
from chargehand.workspace.merge import MergeConflictError

_NAMED = 5


class TaskRollback(Struct, frozen=True, kw_only=True):
    """A planned roll-back of `tasks`: it reverts the merges in `reverted`; the result is `tree`, on top of
    `commit`.
    """

    tasks: tuple[str, ...]
    reverted: tuple[str, ...]
    commit: str
    tree: str


class _TaskMerge(Struct, frozen=True, kw_only=True):
    """A task's merge that changed something: its commit, the commit before it, and the differing paths."""

    task: str
    commit: str
    before: str
    paths: frozenset[str]


def check_whole(state: MissionState) -> None:
    """Raise `RefusedError` if a mission's promoted result is only a part of its plan.

    `not_at_rest` while a plan is running: the base of its other tasks would move under them, and the merged part
    would be exported as if it were complete. `task_of_plan` for a task: its coordinator exports.
    """
    if state.plan is not None and state.status not in ENDED:
        raise RefusedError(
            f"mission {state.id!r} still works on its plan",
            code="not_at_rest",
            hint=f"wait for its end, or cancel it: chargehand mission cancel {state.id}",
        )
    if state.parent:
        raise RefusedError(
            f"mission {state.id!r} does task {state.task!r} of {state.parent!r}, which alone exports it",
            code="task_of_plan",
            hint=f"name {state.parent} instead; its roll-back takes --task {state.task}",
        )


def check_task_rollback(state: MissionState, task: str) -> None:
    """Raise the error that forbids rolling a task back, as far as the coordinator's state shows.

    `RefusedError` (`no_plan`, `not_at_rest`, `not_promoted`, `rolled_back`), `NotFoundError`.
    """
    look = f"chargehand mission plan {state.id}"
    if state.plan is None:
        raise RefusedError(f"mission {state.id!r} has no plan", code="no_plan", hint="leave out --task")
    if task not in state.plan.tasks:
        hint = nearest(task, state.plan.tasks)
        raise NotFoundError(f"mission {state.id!r} has no task {task!r}", hint=hint)
    check_whole(state)
    if state.commit is None:
        raise not_promoted_error(state)
    if is_rolled_back(state):
        raise already_rolled_back_error(state)
    if state.plan.tasks[task].rolled_back:
        hint = look if is_exported(state) else f"chargehand mission promote {state.id} exports the rollback"
        raise RefusedError(f"task {task!r} is already rolled back", code="rolled_back", hint=hint)


def plan_task_rollback(
    store: Store, depot: Depot, state: MissionState, task: str, *, with_dependents: bool
) -> TaskRollback:
    """Plan the roll-back of a task and, `with_dependents`, of the tasks built on it.

    Built on it are the tasks after it in the plan, and those that were merged later and touch the same paths. Each
    merge is taken back by a three-way merge, the latest first; only objects are written. Raises `RefusedError`
    (`task_not_merged`, `built_on`, `merge_conflict`), and the errors of `check_task_rollback`.
    """
    check_task_rollback(state, task)
    assert state.plan is not None
    assert state.commit is not None
    merges: list[_TaskMerge] = []
    # If a task's change was already on the branch, its event names a commit that another task merged.
    seen = {state.first_base.commit if state.first_base is not None else ""}
    for line in store.log.read(state.id, types=(TaskMerged.type,)):
        event = read_payload(line)
        if not isinstance(event, TaskMerged) or event.commit in seen:
            continue
        seen.add(event.commit)
        before = depot.read_commit(event.commit).parents[0]
        paths = frozenset(each.path for each in depot.diff(depot.tree_of(before), depot.tree_of(event.commit)))
        if not state.plan.tasks[event.task].rolled_back:
            merges.append(_TaskMerge(task=event.task, commit=event.commit, before=before, paths=paths))
    if task not in {each.task for each in merges}:
        raise RefusedError(
            f"task {task!r} of mission {state.id!r} merged nothing: there is nothing to take back",
            code="task_not_merged",
            hint=f"chargehand mission plan {state.id} shows how each task ended",
        )
    built = _find_dependents(state, merges, task)
    if built and not with_dependents:
        named = ", ".join(built)
        raise RefusedError(
            f"task {task!r} cannot be rolled back alone: {named} built on it",
            code="built_on",
            hint=f"--with-dependents takes back {named} too",
        )
    chosen = (task, *built)
    reverted = [each for each in reversed(merges) if each.task in chosen]
    tree = _revert(depot, state, reverted)
    if tree == depot.tree_of(state.commit):
        message = f"the changes of task {task!r} are no longer on the branch"
        raise RefusedError(message, code="no_change", hint=f"chargehand mission diff {state.id}")
    return TaskRollback(
        tasks=chosen, reverted=tuple(each.commit for each in reverted), commit=state.commit, tree=tree
    )


def _find_dependents(state: MissionState, merges: Sequence[_TaskMerge], task: str) -> tuple[str, ...]:
    """Return the tasks that are built on one, in the order in which they were merged."""
    assert state.plan is not None
    before, chosen, known = predecessors(state.plan.plan), {task}, 0
    # Repeated until nothing is added: for a task in a loop, found late, the earlier merges are taken back too.
    while known != len(chosen):
        known, touched = len(chosen), frozenset[str]()
        for each in merges:
            if before.get(each.task, frozenset()) & chosen or each.paths & touched:
                chosen.add(each.task)
            if each.task in chosen:
                touched |= each.paths
    return tuple(dict.fromkeys(each.task for each in merges if each.task in chosen - {task}))


def _revert(depot: Depot, state: MissionState, reverted: Sequence[_TaskMerge]) -> str:
    """Return the tree of the branch's tip without these merges."""
    assert state.commit is not None
    tip = state.commit
    for each in reverted:
        result = depot.merge(tip, each.before, each.commit)
        if result.tree is None:
            paths = [shown_path(path) for path in result.conflicts]
            more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
            raise MergeConflictError(
                f"task {each.task!r} cannot be taken back: later changes touch the same lines in"
                f" {', '.join(paths[:_NAMED])}{more}",
                result.details,
                hint=f"revert commit {each.commit[:12]} yourself, or roll back all: chargehand mission rollback"
                f" {state.id}",
            )
        tip = depot.commit(result.tree, (tip,), "candidate")
    return depot.tree_of(tip)
