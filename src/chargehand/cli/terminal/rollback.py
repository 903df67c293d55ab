"""Shows the effect of a restore or roll-back on each file, and rolls missions back."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chargehand.app.checkpoints import RollbackPlanDocument
    from chargehand.cli.terminal.output import Output
    from chargehand.workspace.rollback import HunkPlan


def preview_rollback(out: Output, mission: str, task: str | None, *, with_dependents: bool) -> int:
    """Write the effect of a roll-back without doing it."""
    # A preview only reads: `App` would load everything that runs missions.
    from chargehand.app.checkpoints import preview_roll_back
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        found = preview_roll_back(reader, mission, task=task, with_dependents=with_dependents)
    out.document(found)
    show_rollback_plan(out, found.plan)
    what = f" It undoes {', '.join(found.tasks)}." if found.tasks else ""
    out.text(f"Nothing was done. A new commit on {found.ref} would do this.{what}")
    return 0


def roll_back(out: Output, mission: str, task: str | None, *, with_dependents: bool) -> int:
    """Roll back a mission, or one of its tasks, and write the resulting state."""
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
    # The roll-back is valid even if its branch could not be exported; a person has to look at that branch.
    return 0 if state.export is not None and state.export.state == "done" else 3


def show_rollback_plan(out: Output, plan: RollbackPlanDocument) -> None:
    """Write the effect of a restore or roll-back on each file."""
    from chargehand.core.text import shown_path

    rows = []
    for path in plan.paths:
        notes = []
        if path.hunks:
            gone = [_lines_text(hunk) for hunk in path.hunks if not hunk.kept]
            notes.append(f"{len(gone)} of {len(path.hunks)} hunks: {', '.join(gone)}")
        if path.why:
            notes.append(f"reverted as a whole, because it {path.why}")
        if path.renamed_from is not None:
            notes.append(f"renamed from {shown_path(path.renamed_from)}")
        rows.append((path.action, shown_path(path.path), "; ".join(notes)))
    if rows:
        out.table(("ACTION", "FILE", ""), rows)
    for name in plan.unchanged:
        out.text(f"{shown_path(name)} is unchanged already")


def _lines_text(hunk: HunkPlan) -> str:
    if not hunk.new_lines:
        return f"deletion after line {hunk.new_start}"
    last = hunk.new_start + hunk.new_lines - 1
    return f"line {last}" if hunk.new_lines == 1 else f"lines {hunk.new_start}-{last}"
