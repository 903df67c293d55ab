"""A plan and how far it is: as a document, as a tree for a terminal, as a graph that other programs draw."""

from __future__ import annotations

from msgspec.structs import replace

from chargehand.app.documents import Document
from chargehand.app.reading import StateReader
from chargehand.core.errors import RefusedError
from chargehand.core.plans import Plan
from chargehand.core.records import Reason
from chargehand.core.state import ENDED
from chargehand.core.text import printable

_LONGEST = 60
# Deeper than this the ids would leave no room for anything else in 80 columns.
_DEEPEST = 6


class TaskDocument(Document, frozen=True):
    """One task of a plan: `status` is `pending`, `held`, that of the mission that works on it, or how it ended;
    `rolled_back` where it was taken back.

    `missions` did it, the last one last; `reason` says why it is held, or how it ended.
    """

    id: str
    text: str
    status: str
    after: tuple[str, ...]
    missions: tuple[str, ...]
    reason: Reason | None


class PlanDocument(Document, frozen=True):
    """`mission plan`: the tasks of a coordinator in the order of its plan, and the plan itself.

    `planners` are the missions that were asked for the plan; while there is none, it has no tasks.
    """

    mission: str
    status: str
    planners: tuple[str, ...]
    tasks: list[TaskDocument]
    plan: Plan


def plan_tree(plan: PlanDocument) -> list[tuple[TaskDocument, str]]:
    """Return the tasks, its id indented below the last one that it waits for, and why it waits."""
    places = {task.id: number for number, task in enumerate(plan.tasks)}
    below: dict[str, list[TaskDocument]] = {}
    for task in plan.tasks:
        below.setdefault(max(task.after, key=places.__getitem__, default=""), []).append(task)
    rows = []
    # Without recursion: a plan may be one chain of hundreds.
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
        rows.append((replace(task, id="  " * min(depth, _DEEPEST) + task.id), why))
        open_ += [(depth + 1, each) for each in reversed(below.get(task.id, []))]
    return rows


def plan_graph(plan: PlanDocument, *, mermaid: bool) -> str:
    """Return the graph of a plan's tasks in Mermaid or DOT; no text of a task breaks out of its label."""
    numbers = {task.id: f"t{number}" for number, task in enumerate(plan.tasks, 1)}
    lines = ["flowchart TD"] if mermaid else ["digraph plan {", "  node [shape=box];"]
    for task in plan.tasks:
        words = " ".join(printable(task.text).split())[:_LONGEST]
        label = f"{task.id}: {words} ({task.status.replace('_', ' ')})"
        if mermaid:
            # By number, as Mermaid reads entities and has no other escape; letters of any language stay readable.
            safe = "".join(each if each.isalnum() or each in " .,:()-" else f"#{ord(each)};" for each in label)
            lines.append(f'  {numbers[task.id]}["{safe}"]')
        else:
            safe = label.replace("\\", "\\\\").replace('"', '\\"')
            lines.append(f'  {numbers[task.id]} [label="{safe}"];')
    arrow, end = ("-->", "") if mermaid else ("->", ";")
    for task in plan.tasks:
        lines += [f"  {numbers[before]} {arrow} {numbers[task.id]}{end}" for before in task.after]
    return "\n".join(lines if mermaid else [*lines, "}"])


def show_plan(reader: StateReader, name: str) -> PlanDocument:
    """Return how far the tasks of a coordinator are. Raises `NotFoundError`, `RefusedError` (`no_plan`)."""
    state = reader.mission_state(name)
    if state.plan is None:
        raise RefusedError(
            f"mission {state.id!r} has no plan", code="no_plan", hint=f"chargehand mission show {state.id}"
        )
    listed = reader.store.log.summaries(reader.workers.live, parent=state.id)
    statuses = {each.summary.id: each.summary.status for each in listed}
    tasks = []
    for task in state.plan.plan.tasks:
        known = state.plan.tasks[task.id]
        status = "held" if known.held is not None else "pending"
        if known.end is not None:
            status = "rolled_back" if known.rolled_back else known.end.outcome
        elif known.current:
            status = statuses.get(known.current[-1].mission, "planned")
            reviews = {each.mission for run in known.current for each in known.reviews_of(run.mission)}
            if any(statuses.get(each) not in ENDED for each in reviews):
                status = "in_review"
        tasks.append(
            TaskDocument(
                id=task.id,
                text=task.text,
                status=status,
                after=task.after,
                missions=tuple(run.mission for run in known.runs),
                reason=known.end.reason if known.end is not None else known.held,
            )
        )
    planners = tuple(each.mission for each in state.plan.planners)
    return PlanDocument(
        mission=state.id, status=state.status, planners=planners, tasks=tasks, plan=state.plan.plan
    )
