"""The plan of a mission as text, and taking back what was promoted; the commands themselves are `mission`'s."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chargehand.app.story import PlanDocument
    from chargehand.cli.terminal.output import Output

_MOST_COLLISIONS = 10


def print_plan(out: Output, mission: str, form: str | None) -> None:
    """Write the tasks of a mission as a table, or as a graph of a `form`."""
    from chargehand.app.reading import StateReader
    from chargehand.app.story import show_plan

    with StateReader.open() as reader:
        found = show_plan(reader, mission)
    out.document(found)
    show_plan_document(out, found, form)


def show_plan_document(out: Output, found: PlanDocument, form: str | None) -> None:
    """Write tasks for a person: as a table, or as a graph of a `form`."""
    from chargehand.app.story import plan_graph, plan_tree

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
    """Let a mission go on with the plan in a file, and write what is another one in it."""
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
    """Let a held task begin, and write beside which others."""
    from chargehand.app.composition import App
    from chargehand.app.requests import start_held_task

    with App.open() as app:
        allowed = start_held_task(app, mission, task)
    if allowed.worker_started:
        out.notice("Started a worker for it.")
    out.document(allowed)
    beside = f" beside {', '.join(allowed.beside)}" if allowed.beside else ""
    out.text(
        f"Task {allowed.task} of {allowed.mission} begins{beside}; they are judged together when they are merged."
    )


def preview_rollback(out: Output, mission: str, task: str | None, *, with_dependents: bool) -> int:
    """Write what a roll-back would do."""
    # A preview only reads: `App` would load all that runs missions.
    from chargehand.app.checkpoints import preview_roll_back
    from chargehand.app.reading import StateReader
    from chargehand.cli.checkpoint import show_plan

    with StateReader.open() as reader:
        found = preview_roll_back(reader, mission, task=task, with_dependents=with_dependents)
    out.document(found)
    show_plan(out, found.plan)
    what = f" It takes back {', '.join(found.tasks)}." if found.tasks else ""
    out.text(f"Nothing was done. A new commit on {found.ref} would do this.{what}")
    return 0


def roll_back(out: Output, mission: str, task: str | None, *, with_dependents: bool) -> int:
    """Roll back a mission, or a task of it, and write how it stands then."""
    from chargehand.app.checkpoints import roll_back_task
    from chargehand.app.composition import App
    from chargehand.app.missions import roll_back_mission
    from chargehand.cli.terminal.progress import run_with_progress
    from chargehand.cli.terminal.rendering import print_result

    with App.open() as app:
        state = run_with_progress(
            out,
            app.store,
            lambda shown: (
                roll_back_mission(app, mission, watch=shown.watch)
                if task is None
                else roll_back_task(app, mission, task, with_dependents=with_dependents, watch=shown.watch)
            ),
        )
        print_result(out, state, app.store)
    # The roll-back stands even where its branch could not be exported; a person has to look at that branch.
    return 0 if state.export is not None and state.export.state == "done" else 3
