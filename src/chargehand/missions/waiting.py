"""Tasks of coordinators that wait for a person, their needs, and which of them a command addresses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct

from chargehand.core.errors import NotFoundError, RefusedError, nearest
from chargehand.core.plan_events import TASK_QUESTION
from chargehand.core.records import Reason
from chargehand.core.state import ENDED, MissionState, MissionSummary, Question

Need = Literal["answer", "approval", "resume"]
_WORDS: dict[Need, str] = {"answer": "an answer", "approval": "an approval", "resume": "being resumed"}
# A command for a task, as its error names it.
Deed = Literal["answer", "promote", "discard", "send"]
_DEEDS: dict[Deed, Need] = {"answer": "answer", "promote": "approval", "discard": "approval"}


class WaitingTask(Struct, frozen=True, kw_only=True):
    """A task whose `mission` waits for a person; `message` is the question, or the reason for the wait."""

    task: str
    mission: str
    needs: Need
    message: str


class Addressee(Struct, frozen=True, kw_only=True):
    """The addressed mission, its `task` if another mission was named, and the question to answer."""

    mission: str
    task: str = ""
    question: Question | None = None


def goes_on_by_itself(state: MissionSummary) -> bool:
    """Return whether a settled mission continues by itself: by another worker, or when its quota returns."""
    if state.waits_for_quota is not None:
        return True
    return any(reason.code == "worker_lost" for reason in state.reasons) and state.status == "paused"


def waiting_task(child: MissionSummary) -> WaitingTask | None:
    """Return a task's mission that waits for a person, `None` if there is nothing for a person to do."""
    by_itself = child.waits_for_quota or any(reason.code == "worker_lost" for reason in child.reasons)
    if child.status not in ("waiting", "paused") or by_itself:
        return None
    asked = child.open_question
    needs: Need = "answer" if asked else "approval" if child.status == "waiting" else "resume"
    message = asked.text if asked else child.reasons[0].message if child.reasons else f"it is {child.status}"
    return WaitingTask(task=child.task, mission=child.id, needs=needs, message=message)


def waiting_tasks(missions: Iterable[MissionSummary]) -> dict[str, tuple[WaitingTask, ...]]:
    """Return, by coordinator, the tasks that wait for a person; those of ended coordinators are excluded."""
    listed = tuple(missions)
    open_ones = {each.id for each in listed if each.status not in ENDED}
    found: dict[str, tuple[WaitingTask, ...]] = {}
    for each in listed:
        if each.parent in open_ones and (waits := waiting_task(each)) is not None:
            found[each.parent] = (*found.get(each.parent, ()), waits)
    return found


def tasks_reason(waiting: Sequence[WaitingTask]) -> Reason | None:
    """Describe which tasks wait for what; return `None` for an empty list."""
    if not waiting:
        return None
    told = (
        f"task {each.task} ({each.mission}) waits for {_WORDS[each.needs]}: {each.message}" for each in waiting
    )
    return Reason(code="task_waits", message="; ".join(told))


def find_addressee(
    state: MissionState, children: Sequence[MissionSummary], deed: Deed, task: str | None
) -> Addressee:
    """Return the mission that a command addresses, given a mission and optionally a task.

    That is the mission itself, or, if a coordinator has nothing to do itself, the one task that waits for this.
    Raises `RefusedError` (`several_tasks_wait`, `no_plan`, `no_question`, `not_sendable`, `not_promotable`),
    `NotFoundError` for a task that the plan does not have.
    """
    itself = Addressee(mission=state.id, question=state.open_question)
    if task is not None:
        return _find_of_task(state, children, deed, task)
    if state.plan is None or deed == "send" or (deed == "answer" and itself.question is not None):
        return itself
    waiting = waiting_tasks((state, *children)).get(state.id, ())
    return _only(state, children, deed, [each.mission for each in waiting if each.needs == _DEEDS[deed]]) or itself


def _find_of_task(state: MissionState, children: Sequence[MissionSummary], deed: Deed, task: str) -> Addressee:
    known = state.plan.tasks.get(task) if state.plan is not None else None
    if state.plan is None or known is None:
        if state.plan is None:
            hint = f"chargehand mission show {state.id}"
            raise RefusedError(f"mission {state.id!r} has no plan", code="no_plan", hint=hint)
        hint = nearest(task, state.plan.tasks)
        raise NotFoundError(f"mission {state.id!r} has no task {task!r}", hint=hint)
    own = [each for name, each in state.questions.items() if name.startswith(f"{TASK_QUESTION}{task}/")]
    if deed == "answer" and state.status not in ENDED and (asked := [each for each in own if not each.answer]):
        return Addressee(mission=state.id, question=asked[-1])
    runs = {run.mission for run in known.current}
    if deed == "answer":  # its reviewers may ask too
        runs |= {each.mission for run in known.current for each in known.reviews_of(run.mission)}
    mine = [each for each in children if each.id in runs]
    if deed == "send":
        fitting = [each.id for each in mine if each.status not in ENDED]
    else:
        waits = [each for each in map(waiting_task, mine) if each is not None]
        fitting = [each.mission for each in waits if each.needs == _DEEDS[deed]]
        # A person may also promote or discard an ended one.
        fitting = fitting or ([each.id for each in mine[-1:]] if deed in ("promote", "discard") else [])
    found = _only(state, mine, deed, fitting)
    if found is not None:
        return found
    hint, about = (
        f"chargehand mission plan {state.id} shows how far it is",
        f"task {task!r} of mission {state.id!r}",
    )
    if deed == "answer":
        raise RefusedError(f"{about} has no open question", code="no_question", hint=hint)
    if deed == "send":
        raise RefusedError(f"{about} has no mission that works on it", code="not_sendable", hint=hint)
    raise RefusedError(f"{about} has no mission yet", code="not_promotable", hint=hint)


def _only(
    state: MissionState, children: Sequence[MissionSummary], deed: Deed, fitting: Sequence[str]
) -> Addressee | None:
    """Return the one mission that fits, or `None`."""
    if len(fitting) > 1:
        words = " TEXT" if deed in ("answer", "send") else ""
        raise RefusedError(
            f"{len(fitting)} tasks of mission {state.id!r} wait for that",
            code="several_tasks_wait",
            hint="; ".join(f"chargehand mission {deed} {each}{words}" for each in fitting),
        )
    chosen = next((each for each in children if each.id in fitting), None)
    if chosen is None:
        return None
    return Addressee(mission=chosen.id, task=chosen.task, question=chosen.open_question)
