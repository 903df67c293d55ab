"""A plan and how far it is, as a document and as a graph that other programs draw."""

from __future__ import annotations

from chargehand.app.documents import PlanDocument, TaskDocument
from chargehand.app.reading import StateReader
from chargehand.core.errors import RefusedError
from chargehand.core.state import ENDED
from chargehand.core.text import printable

_LONGEST = 60


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
