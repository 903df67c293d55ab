"""A plan with its progress: as a document, as a tree for a terminal, and as a graph for other programs."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from chargehand.core.errors import RefusedError
from chargehand.core.plan_events import TASK_QUESTION, TaskProgress
from chargehand.core.plans import Plan
from chargehand.core.records import Reason
from chargehand.core.state import ENDED, MissionState
from chargehand.core.text import printable
from chargehand.missions.plan_documents import planned_collisions
from chargehand.reports.documents import Document
from chargehand.reports.reading import StateReader
from chargehand.store.rows import MissionFilter

_LONGEST = 60
# Deeper indentation would leave no room for other columns in 80.
_DEEPEST = 6


class ReviewDocument(Document, frozen=True):
    """A mission that reviews the result of mission `of`, in a `role`.

    `vote` is its outcome, once all reviews are done: `approves`, `objects` (to these `points`) or `abstained`.
    """

    mission: str
    of: str
    role: str
    status: str
    vote: str | None
    points: tuple[str, ...]


class NoteDocument(Document, frozen=True):
    """A note that a child mission left for others: `reader` is a task's id, a role or `everyone`."""

    mission: str
    reader: str
    text: str


class DelegationDocument(Document, frozen=True):
    """Parts that a child mission's agent delegated: now `tasks` of the plan, or `refused` as a whole."""

    mission: str
    tasks: tuple[str, ...]
    refused: Reason | None


class TaskDocument(Document, frozen=True):
    """One task of a plan, with its status.

    `status` is `pending`, `held`, that of the mission that works on it, or its outcome; `rolled_back` if it was
    reverted. `missions` did it, the latest last, `reviews` reviewed their results; `reason` says why it is held or
    waits, or how it ended; `returned` says each time why a result was returned; `notes` are those its missions
    left for others, `delegations` the parts that they delegated. The agent of the task `delegated_by` delegated
    this one.
    """

    id: str
    text: str
    status: str
    after: tuple[str, ...]
    missions: tuple[str, ...]
    reviews: tuple[ReviewDocument, ...]
    reason: Reason | None
    returned: tuple[Reason, ...] = ()
    notes: tuple[NoteDocument, ...] = ()
    delegated_by: str = ""
    delegations: tuple[DelegationDocument, ...] = ()


class CollisionDocument(Document, frozen=True):
    """Two `tasks` that the plan does not order and that would touch the same files: one waits for the other."""

    tasks: tuple[str, str]
    reason: Reason


class PlanDocument(Document, frozen=True):
    """`mission plan`: the tasks of a coordinator in the order of its plan, and the plan itself.

    `planners` are the missions asked for the plan; before it is made, there are no tasks. `collisions` are derived
    from the plan alone: the actual changes of tasks count too, once they are made.
    """

    mission: str
    status: str
    planners: tuple[str, ...]
    tasks: list[TaskDocument]
    plan: Plan
    collisions: tuple[CollisionDocument, ...] = ()


class PlanRow(Struct, frozen=True, kw_only=True):
    """A row of the tree: a task or, below it, a review or a note; `why` is the reason for waiting, or the text."""

    name: str
    status: str
    mission: str
    why: str


def plan_tree(plan: PlanDocument) -> list[PlanRow]:
    """Return the tasks, each id indented below the last task that it waits for, with the reviews of each."""
    places = {task.id: number for number, task in enumerate(plan.tasks)}
    below: dict[str, list[TaskDocument]] = {}
    for task in plan.tasks:
        below.setdefault(max(task.after, key=places.__getitem__, default=""), []).append(task)
    rows = []
    # Without recursion: a plan may be one chain of hundreds of tasks.
    open_ = [(0, task) for task in reversed(below.get("", []))]
    while open_:
        depth, task = open_.pop()
        last = max(task.after, key=places.__getitem__, default="")
        also = [name for name in task.after if name != last]
        why = f"also after {', '.join(also)}" if also else ""
        if depth > _DEEPEST:
            why = f"after {', '.join((last, *also))}"
        if task.reason is not None:
            why = task.reason.message
        elif task.returned:
            times = f", {len(task.returned)} times" if len(task.returned) > 1 else ""
            why = f"went back{times}: {task.returned[-1].message}"
        indent = "  " * min(depth, _DEEPEST)
        mission = task.missions[-1] if task.missions else ""
        rows.append(PlanRow(name=indent + task.id, status=task.status, mission=mission, why=why))
        for each in task.reviews:
            if each.of == mission:
                said = (each.vote or "") + (f": {'; '.join(each.points)}" if each.points else "")
                name = f"{indent}  review: {each.role}"
                rows.append(PlanRow(name=name, status=each.status, mission=each.mission, why=printable(said)))
        for note in task.notes:
            name = f"{indent}  note for {printable(note.reader)}"
            rows.append(PlanRow(name=name, status="", mission="", why=printable(note.text)))
        for handed in task.delegations:
            name = f"{indent}  handed on"
            status = "refused" if handed.refused is not None else ""
            why = handed.refused.message if handed.refused is not None else ", ".join(handed.tasks)
            rows.append(PlanRow(name=name, status=status, mission="", why=why))
        open_ += [(depth + 1, each) for each in reversed(below.get(task.id, []))]
    return rows


def plan_graph(plan: PlanDocument, *, mermaid: bool) -> str:
    """Return the graph of a plan's tasks in Mermaid or DOT; no text of a task can break out of its label."""
    numbers = {task.id: f"t{number}" for number, task in enumerate(plan.tasks, 1)}
    lines = ["flowchart TD"] if mermaid else ["digraph plan {", "  node [shape=box];"]
    for task in plan.tasks:
        words = " ".join(printable(task.text).split())[:_LONGEST]
        label = f"{task.id}: {words} ({task.status.replace('_', ' ')})"
        if mermaid:
            # By number, since Mermaid reads entities and has no other escape; letters of any language stay
            # readable.
            safe = "".join(each if each.isalnum() or each in " .,:()-" else f"#{ord(each)};" for each in label)
            lines.append(f'  {numbers[task.id]}["{safe}"]')
        else:
            safe = label.replace("\\", "\\\\").replace('"', '\\"')
            lines.append(f'  {numbers[task.id]} [label="{safe}"];')
    arrow, end = ("-->", "") if mermaid else ("->", ";")
    for task in plan.tasks:
        lines += [f"  {numbers[before]} {arrow} {numbers[task.id]}{end}" for before in task.after]
    return "\n".join(lines if mermaid else [*lines, "}"])


def _reviews(known: TaskProgress, statuses: Mapping[str, str]) -> tuple[ReviewDocument, ...]:
    votes = {vote.mission: vote for decided in known.reviewed for vote in decided.votes}
    return tuple(
        ReviewDocument(
            mission=each.mission,
            of=each.of,
            role=each.role,
            status=statuses.get(each.mission, "planned"),
            vote=votes[each.mission].vote if each.mission in votes else None,
            points=votes[each.mission].points if each.mission in votes else (),
        )
        for each in known.reviews
    )


def _open_question(state: MissionState, task: str) -> str | None:
    """Return the open question about a task, `None` if there is no such question."""
    about = f"{TASK_QUESTION}{task}/"
    open_ones = (each for name, each in state.questions.items() if name.startswith(about) and each.open)
    return None if state.status in ENDED else next((each.text for each in open_ones), None)


def show_plan(reader: StateReader, name: str) -> PlanDocument:
    """Return the progress of a coordinator's tasks. Raises `NotFoundError`, `RefusedError` (`no_plan`)."""
    state = reader.mission_state(name)
    if state.plan is None:
        raise RefusedError(
            f"mission {state.id!r} has no plan", code="no_plan", hint=f"chargehand mission show {state.id}"
        )
    listed = reader.store.log.summaries(reader.workers.live, MissionFilter(parent=state.id))
    statuses = {each.summary.id: each.summary.status for each in listed}
    rests = {each.summary.id: each.summary.reasons[0] for each in listed if each.summary.reasons}
    tasks = []
    for task in state.plan.plan.tasks:
        known = state.plan.tasks[task.id]
        status, reason = ("held", known.held) if known.held is not None else ("pending", None)
        if known.end is not None:
            reason = known.end.reason
            status = "rolled_back" if known.rolled_back else known.end.outcome
        elif known.current:
            status = statuses.get(known.current[-1].mission, "planned")
            reason = rests.get(known.current[-1].mission)
            reviews = {each.mission for run in known.current for each in known.reviews_of(run.mission)}
            if any(statuses.get(each) not in ENDED for each in reviews):
                status = "in_review"
        asked = _open_question(state, task.id)
        if asked is not None and known.end is None:
            status, reason = "waiting", Reason(code="question", message=asked)
        tasks.append(
            TaskDocument(
                id=task.id,
                text=task.text,
                status=status,
                after=task.after,
                missions=tuple(run.mission for run in known.runs),
                reviews=_reviews(known, statuses),
                reason=reason,
                returned=tuple(each.reason for each in known.returned),
                notes=tuple(
                    NoteDocument(mission=each.mission, reader=reader, text=text)
                    for each in known.noted
                    for reader, text in each.notes.items()
                ),
                delegated_by=task.delegated_by,
                delegations=tuple(
                    DelegationDocument(mission=each.mission, tasks=each.tasks, refused=each.refused)
                    for each in known.delegated
                ),
            )
        )
    planners = tuple(each.mission for each in state.plan.planners)
    plan = state.plan.plan
    collisions = tuple(
        CollisionDocument(tasks=(one, other), reason=reason) for one, other, reason in planned_collisions(plan)
    )
    return PlanDocument(
        mission=state.id, status=state.status, planners=planners, tasks=tasks, plan=plan, collisions=collisions
    )
