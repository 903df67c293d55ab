"""Parts of a task that its agent delegates: they become tasks of the plan, within bounds."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from chargehand.core.errors import UsageError
from chargehand.core.events import encode_json
from chargehand.core.messages import Delegation
from chargehand.core.plan_events import PlanProgress, TaskProgress
from chargehand.core.plans import MOST_TASKS, Plan, Task
from chargehand.missions.planning.expansion import TaskDraft
from chargehand.missions.planning.loading import LARGEST_PLAN, PlanTable, load_plan
from chargehand.missions.planning.problems import PlanProblems
from chargehand.missions.planning.reading import DraftPlan, read_plan
from chargehand.missions.planning.teams import fill_task
from chargehand.missions.planning.validation import check_plan

# How many parts one task's agents may delegate, in all rounds, and how deep delegation may nest.
MOST_DELEGATED = 3
DEEPEST_DELEGATION = 2


def plan_with_delegations(progress: PlanProgress, task: str, asked: Sequence[Delegation]) -> Plan:
    """Return the plan with delegated parts of a task as new tasks, named after it, that follow it.

    Its unstarted successors also follow the parts. Parts have no more rights than the task: its areas, checks and
    limits, and its reviewers unless their role has its own; they share its budget. Their agents and models are
    those of their role or of the whole. Raises `UsageError`: `delegation_refused` beyond the bounds,
    `plan_invalid` as for a file.
    """
    plan, whole = progress.plan, progress.plan.task(task)
    if whole is None:
        raise _refuse(f"task {task!r} is not part of the plan any more")
    count = len(asked) + sum(len(each.tasks) for each in progress.tasks[task].delegated)
    if count > MOST_DELEGATED:
        raise _refuse(f"task {task!r} hands on {count} parts, more than {MOST_DELEGATED}")
    # The task's delegation depth: 0 if a person or a planner wrote it. Counted only up to the limit, because a
    # file may name any task here, even itself.
    depth, above = 0, plan.task(whole.id)
    while above is not None and above.delegated_by and depth < DEEPEST_DELEGATION:
        depth, above = depth + 1, plan.task(above.delegated_by)
    if depth >= DEEPEST_DELEGATION:
        raise _refuse(f"task {task!r} was handed on {DEEPEST_DELEGATION} times already, and does not hand on more")
    nobody = next((each.id for each in asked if not each.role.strip() and not each.needs), None)
    if nobody is not None:
        raise _refuse(f"part {nobody!r} has neither a role nor needs")
    names = {each.id: f"{task}.{each.id}" for each in asked}
    # Earlier runs under its id would count as its own.
    dropped = next(
        (each for each in names.values() if plan.task(each) is None and _was_begun(progress, each)), None
    )
    if dropped is not None:
        raise _refuse(f"task {dropped!r} was started and dropped before")
    parts = [_make_task(plan, whole, each, names, share=len(asked)) for each in asked]
    problems = PlanProblems("delegation")
    draft = read_plan(load_plan(encode_json({"tasks": parts}), "delegation.json"), problems)
    following = [
        replace(each, after=tuple(dict.fromkeys((*each.after, *names.values()))))
        if task in each.after and each.delegated_by != task and not _was_begun(progress, each.id)
        else each
        for each in plan.tasks
    ]
    at = next(number for number, each in enumerate(following) if each.id == task) + 1
    made = replace(plan, tasks=(*following[:at], *draft.plan.tasks, *following[at:]))
    rest = [TaskDraft(table=PlanTable(), id=each.id, where="") for each in plan.tasks]
    check_plan(DraftPlan(plan=made, drafts=[*draft.drafts, *rest], groups={}), problems)
    problems.raise_first()
    if len(made.tasks) > MOST_TASKS or len(encode_json(made)) > LARGEST_PLAN:
        raise _refuse(f"a plan has at most {MOST_TASKS} tasks and {LARGEST_PLAN} bytes")
    return made


def _make_task(plan: Plan, whole: Task, asked: Delegation, names: dict[str, str], *, share: int) -> Task:
    made = Task(
        id=names[asked.id],
        text=asked.text,
        after=(whole.id, *(names.get(name, name) for name in asked.after)),
        role=asked.role,
        needs=asked.needs,
        areas=whole.areas,
        checks=whole.checks,
        attempts=whole.attempts,
        seconds=whole.seconds,
        deadline=asked.deadline,
        budget_usd=None if whole.budget_usd is None else whole.budget_usd / share,
        priority=whole.priority,
        risk=whole.risk,
        delegated_by=whole.id,
    )
    # Delegation must not bypass a review.
    made = fill_task(made, plan)
    return replace(made, reviewers=made.reviewers or whole.reviewers)


def _was_begun(progress: PlanProgress, task: str) -> bool:
    known = progress.tasks.get(task, TaskProgress())
    return bool(known.runs) or known.end is not None


def _refuse(problem: str) -> UsageError:
    hint = "`chargehand mission plan MISSION --set FILE` adds tasks as a person wants them"
    return UsageError(problem, code="delegation_refused", hint=hint)
