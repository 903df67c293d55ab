"""`chargehand mission plan` and `rollback`: the tasks of a mission, and taking back what was promoted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chargehand.cli.terminal.options import (
    detail_options,
    json_option,
    mission_argument,
    named_mission_argument,
)

if TYPE_CHECKING:
    from chargehand.cli.terminal.output import Output


@click.command()
@mission_argument
@click.option("--dot", "form", flag_value="dot", help="As a graph in the language of Graphviz.")
@click.option("--mermaid", "form", flag_value="mermaid", help="As a graph in the language of Mermaid.")
@json_option
def plan(mission: str, form: str | None, out: Output) -> int:
    """Show the tasks of a mission, what each waits for, and who did it."""
    from chargehand.app.missions import show_plan
    from chargehand.app.reading import StateReader
    from chargehand.app.story import plan_graph

    with StateReader.open() as reader:
        found = show_plan(reader, mission)
    out.document(found)
    if form is not None:
        out.text(plan_graph(found, mermaid=form == "mermaid"))
        return 0
    rows = []
    for task in found.tasks:
        why = (
            task.reason.message
            if task.reason is not None
            else ", ".join(task.after) and f"after {', '.join(task.after)}"
        )
        rows.append((task.id, task.status.replace("_", " "), task.missions[-1] if task.missions else "-", why))
    out.table(("TASK", "STATUS", "MISSION", "WHY"), rows)
    return 0


@click.command()
@named_mission_argument
@click.option("--dry-run", is_flag=True, help="Only show what would happen to each file.")
@detail_options
@json_option
def rollback(mission: str, dry_run: bool, out: Output) -> int:
    """Undo a promotion by a new commit on the mission's branch; no branch of yours moves back.

    Exits 3 where the commit could not be exported.
    """
    if dry_run:
        # A preview only reads: `App` would load all that runs missions.
        from chargehand.app.checkpoints import preview_roll_back
        from chargehand.app.reading import StateReader
        from chargehand.cli.checkpoint import show_plan

        with StateReader.open() as reader:
            found = preview_roll_back(reader, mission)
        out.document(found)
        show_plan(out, found.plan)
        out.text(f"Nothing was done. A new commit on {found.ref} would do this.")
        return 0
    from chargehand.app.composition import App
    from chargehand.app.missions import roll_back_mission
    from chargehand.cli.terminal.progress import run_with_progress
    from chargehand.cli.terminal.rendering import print_result

    with App.open() as app:
        state = run_with_progress(out, app.store, lambda shown: roll_back_mission(app, mission, observer=shown))
        print_result(out, state, app.store)
    # The roll-back stands even where its branch could not be exported; a person has to look at that branch.
    return 0 if state.export is not None and state.export.state == "done" else 3
