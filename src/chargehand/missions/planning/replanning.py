"""A new plan for a running coordinator: the permitted changes, and the events that record it."""

from __future__ import annotations

from chargehand.core.errors import NotFoundError, RefusedError, nearest
from chargehand.core.events import Payload
from chargehand.core.mission_events import QuestionAnswered
from chargehand.core.plan_events import (
    PLAN_QUESTION,
    TASK_QUESTION,
    CoordinatorWoken,
    PlanMade,
    PlanProgress,
    TaskAllowed,
    TaskProgress,
)
from chargehand.core.plans import Plan, task_digest
from chargehand.core.state import ENDED, MissionState

_DROPPED = "it was dropped from the plan"


def events_of_new_plan(state: MissionState, made: PlanMade, *, in_hand: str = "") -> tuple[Payload, ...]:
    """Return the events that replace a mission's plan.

    `in_hand` is the task that its coordinator is starting or merging. Raises `RefusedError` (`no_plan`,
    `not_plannable`, and the errors of `check_new_plan`).
    """
    # A merge that a dead worker did not record is in hand too: the next worker records it first.
    in_hand = state.half_merged.task if state.half_merged is not None else in_hand
    check_new_plan(_open_plan(state), made.plan, in_hand=in_hand)
    open_points, answers = {each.id for each in made.plan.ambiguities}, list[Payload]()
    for name, asked in state.questions.items():
        # An open question about a task or point that the new plan lacks needs no answer any more.
        about = name.removeprefix(TASK_QUESTION).rpartition("/")[0]
        no_task = name.startswith(TASK_QUESTION) and made.plan.task(about) is None
        no_point = name.startswith(PLAN_QUESTION) and name.removeprefix(PLAN_QUESTION) not in open_points
        if not asked.answer and (no_task or no_point):
            answers.append(QuestionAnswered(question=name, text=_DROPPED, identity=made.identity))
    return (made, *answers, *_waking(state))


def _open_plan(state: MissionState) -> PlanProgress:
    hint = f"chargehand mission show {state.id}"
    if state.plan is None:
        raise RefusedError(f"mission {state.id!r} has no plan", code="no_plan", hint=hint)
    if state.status in ENDED:
        message = f"mission {state.id!r} is {state.status}: its plan changes no more"
        raise RefusedError(message, code="not_plannable", hint=hint)
    return state.plan


def _waking(state: MissionState) -> tuple[Payload, ...]:
    """Return the events that make a coordinator look again; a running one does so by itself."""
    rests = state.asleep or state.status == "waiting" or state.held is not None
    return (CoordinatorWoken(mission=state.id),) if rests else ()


def check_new_plan(progress: PlanProgress, plan: Plan, *, in_hand: str = "") -> None:
    """Return if a plan may replace the current one.

    The past of a started task stays true: its mission has its text, and its successors started from its result.
    Raises `RefusedError`: `plan_fixed` with the first task that may not change, `task_busy` if that is the one in
    hand, which is over soon.
    """
    for name, known in progress.tasks.items():
        before, now = progress.plan.task(name), plan.task(name)
        if before == now:
            continue
        if name == in_hand:
            raise RefusedError(
                f"task {name!r} is being started or merged at this moment",
                code="task_busy",
                hint="try again in a moment",
            )
        if (why := _why_fixed(known, was_dropped=before is None, is_dropped=now is None)) is not None:
            raise RefusedError(f"task {name!r} {why[0]}", code="plan_fixed", hint=why[1])


def events_of_permission(state: MissionState, task: str, *, identity: str) -> tuple[Payload, ...]:
    """Return the events by which a person starts a held task despite the running tasks that it collides with.

    Raises `RefusedError` (`no_plan`, `not_plannable`, `not_held`), `NotFoundError` for an unknown task.
    """
    progress = _open_plan(state)
    known, wanted = progress.tasks.get(task), progress.plan.task(task)
    if known is None or wanted is None:
        raise NotFoundError(f"mission {state.id!r} has no task {task!r}", hint=nearest(task, progress.tasks))
    if known.runs or known.end is not None or known.held is None:
        what = "has ended" if known.end is not None else "was begun" if known.runs else "waits for no collision"
        hint = f"chargehand mission plan {state.id} shows why it waits"
        raise RefusedError(f"task {task!r} {what}", code="not_held", hint=hint)
    others = ((each, progress.tasks[each.id]) for each in progress.plan.tasks)
    beside = {other.id: task_digest(other) for other, now in others if now.runs and now.end is None}
    allowed = TaskAllowed(task=task, identity=identity, digest=task_digest(wanted), beside=beside)
    return (allowed, *_waking(state))


def _why_fixed(known: TaskProgress, *, was_dropped: bool, is_dropped: bool) -> tuple[str, str] | None:
    """Return why a task cannot be changed or dropped, and the way out; `None` if it can."""
    if was_dropped:
        begun = bool(known.runs) and not is_dropped
        return ("was started and dropped before", "give the new task another id") if begun else None
    if known.end is not None or known.merged:
        how = known.end.outcome.replace("_", " ") if known.end is not None else "merged in part"
        return f"is {how} already", "leave it in the plan as it was; add a task for the remaining work"
    if known.runs and not is_dropped:
        return "was begun", "leave it as it was, or drop it and add a task with another id"
    return None
