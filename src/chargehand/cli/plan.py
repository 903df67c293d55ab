"""`chargehand mission plan`: shows the plan of a mission, replaces it, or starts a held task."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chargehand.cli.terminal.output import Output
    from chargehand.reports.story import PlanDocument

_MOST_COLLISIONS = 10


def print_plan(out: Output, mission: str, form: str | None) -> None:
    """Write the tasks of a mission as a table, or as a graph of a `form`."""
    from chargehand.reports.reading import StateReader
    from chargehand.reports.story import show_plan

    with StateReader.open() as reader:
        found = show_plan(reader, mission)
    out.document(found)
    show_plan_document(out, found, form)


def show_plan_document(out: Output, found: PlanDocument, form: str | None) -> None:
    """Write tasks for a person: as a table, or as a graph of a `form`."""
    from chargehand.reports.story import plan_graph, plan_tree

    if form is not None:
        out.text(plan_graph(found, mermaid=form == "mermaid"))
        return
    rows = [(row.name, row.status.replace("_", " "), row.mission or "-", row.why) for row in plan_tree(found)]
    out.table(("TASK", "STATUS", "MISSION", "WHY"), rows)
    held = next((task.id for task in found.tasks if task.status == "held"), None)
    if held is not None:
        out.text(f"  begin a held task now: chargehand mission plan {found.mission} --start {held}")
    for each in found.collisions[:_MOST_COLLISIONS]:
        out.text(f"  not side by side: {each.reason.message}")
    if len(found.collisions) > _MOST_COLLISIONS:
        out.text(f"  and {len(found.collisions) - _MOST_COLLISIONS} more: --json has them all")


def set_plan(out: Output, mission: str, file: str) -> None:
    """Continue a mission with the plan in a file, and write the differences."""
    from chargehand.app.composition import App
    from chargehand.app.requests import change_plan

    with App.open() as app:
        change = change_plan(app, mission, file)
    if change.worker_started:
        out.notice("Started a worker for it.")
    out.document(change)
    out.text(f"Plan of {change.mission} replaced; the one before was by {change.replaced}.")
    for verb, tasks in (("added", change.added), ("dropped", change.dropped), ("changed", change.changed)):
        if tasks:
            out.text(f"  {verb:<9} {', '.join(tasks)}")


def start_task(out: Output, mission: str, task: str) -> None:
    """Start a held task, and name the tasks that run at the same time."""
    from chargehand.app.composition import App
    from chargehand.app.requests import start_held_task

    with App.open() as app:
        allowed = start_held_task(app, mission, task)
    if allowed.worker_started:
        out.notice("Started a worker for it.")
    out.document(allowed)
    beside = f" alongside {', '.join(allowed.beside)}" if allowed.beside else ""
    out.text(f"Task {allowed.task} of {allowed.mission} starts{beside}; they are judged together on merging.")
