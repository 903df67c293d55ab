"""`chargehand checkpoint …`: show and restore the intermediate trees of a mission."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chargehand.cli.terminal.options import (
    CommandGroup,
    complete_missions,
    json_option,
    named_mission_argument,
    pager_option,
)

if TYPE_CHECKING:
    from chargehand.app.checkpoints import PlannedRestore
    from chargehand.app.composition import App
    from chargehand.cli.terminal.output import Output

_mission_option = click.option(
    "--mission",
    default="last",
    metavar="MISSION",
    shell_complete=complete_missions,
    help="The mission that the checkpoints belong to (default: the last).",
)
_dry_run_option = click.option("--dry-run", is_flag=True, help="Only show what would happen to each file.")


@click.group(cls=CommandGroup)
def checkpoint() -> None:
    """List, compare and restore the checkpoints of a mission.

    CHECKPOINT is the beginning of a commit id (at least four digits), 'last', or 'base' for the mission's base.
    """


@checkpoint.command("list")
@click.argument("mission", metavar="[MISSION]", default="last", shell_complete=complete_missions)
@json_option
def list_(mission: str, out: Output) -> None:
    """List a mission's checkpoints, the oldest first."""
    from chargehand.reports.documents import CheckpointsDocument
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        state = reader.mission_state(mission)
    out.document(CheckpointsDocument(mission=state.id, checkpoints=state.checkpoints))
    if state.checkpoints:
        rows = [(point.commit[:12], point.trigger, point.changed, point.tree[:12]) for point in state.checkpoints]
        out.table(("CHECKPOINT", "MADE AT", "CHANGED", "TREE"), rows)
    else:
        out.text(f"Mission {state.id} has no checkpoint: nothing was changed.")


@checkpoint.command()
@click.argument("checkpoint")
@_mission_option
@json_option
def show(checkpoint: str, mission: str, out: Output) -> None:
    """Show one checkpoint and its files that differ from the base."""
    from chargehand.app.checkpoints import show_checkpoint
    from chargehand.cli.terminal.differences import show_line_counts
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        found = show_checkpoint(reader, checkpoint, mission=mission)
    out.document(found)
    point = found.checkpoint
    out.text(f"checkpoint {point.commit}", bold=True)
    out.text(f"mission    {found.mission}")
    out.text(f"made at    {point.trigger}, files changed since the one before: {point.changed}")
    out.text(f"tree       {point.tree}")
    out.text(f"parent     {point.parent}")
    show_line_counts(out, found.files)


@checkpoint.command()
@click.argument("a")
@click.argument("b")
@_mission_option
@click.option("--stat", is_flag=True, help="Show only how many lines each file gained and lost.")
@click.option("--inverse", is_flag=True, help="Show the changes from B back to A.")
@pager_option
@json_option
def diff(a: str, b: str, mission: str, stat: bool, inverse: bool, out: Output) -> None:
    """Show what changed from checkpoint A to checkpoint B, as a patch for git apply.

    MISSION:CHECKPOINT names one of another mission of the same project.
    """
    from chargehand.app.checkpoints import checkpoint_difference
    from chargehand.cli.terminal.differences import show_difference
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        found = checkpoint_difference(reader, a, b, mission=mission, inverse=inverse)
        show_difference(out, found, stat=stat)


@checkpoint.command()
@named_mission_argument
@click.argument("checkpoint")
@click.option("--file", "files", multiple=True, metavar="PATH", help="Only this file or directory; repeatable.")
@click.option(
    "--hunk",
    "hunks",
    multiple=True,
    metavar="PATH:LINES",
    help="Only the changes in these lines of a file, such as app.py:7 or app.py:12-20; repeatable.",
)
@click.option("--smart", is_flag=True, help="Revert only the changes that break a rule.")
@_dry_run_option
@json_option
def restore(
    mission: str,
    checkpoint: str,
    files: tuple[str, ...],
    hunks: tuple[str, ...],
    smart: bool,
    dry_run: bool,
    out: Output,
) -> None:
    """Restore an earlier checkpoint, wholly or in part, as a new one; those after it stay in the list."""
    from chargehand.app.checkpoints import RestoreRequest, plan_restore
    from chargehand.app.composition import App
    from chargehand.cli.terminal.interrupt import run_async

    request = RestoreRequest(mission=mission, checkpoint=checkpoint, files=files, hunks=hunks, smart=smart)
    with App.open() as app:
        planned = run_async(lambda stop: plan_restore(app, request))
        _carry_out(app, out, planned, dry_run=dry_run)
        return


@checkpoint.command()
@named_mission_argument
@_dry_run_option
@json_option
def undo(mission: str, dry_run: bool, out: Output) -> None:
    """Restore the checkpoint before the last one, as a new one; a second undo reverts the first."""
    from chargehand.app.checkpoints import plan_undo
    from chargehand.app.composition import App

    with App.open() as app:
        _carry_out(app, out, plan_undo(app, mission), dry_run=dry_run)
        return


def _carry_out(app: App, out: Output, planned: PlannedRestore, *, dry_run: bool) -> None:
    """Carry out a planned restore, or only show it."""
    from chargehand.app.checkpoints import carry_out_restore
    from chargehand.cli.terminal.interrupt import run_async
    from chargehand.cli.terminal.rollback import show_rollback_plan

    document = planned.document(dry_run=dry_run)
    # Before the work: if it fails midway, the person has seen the intended effect.
    show_rollback_plan(out, document.plan)
    if dry_run:
        out.document(document)
        out.text("Nothing was done.")
        return
    restored = run_async(lambda stop: carry_out_restore(app, planned))
    out.document(planned.document(dry_run=dry_run, checkpoint=restored))
    if not document.plan.changes:
        out.text(f"Nothing changed. The last checkpoint is still {restored.commit[:12]}.")
        return
    out.text(f"The last checkpoint is now {restored.commit[:12]}.")
    out.text(f"next:     chargehand mission promote {planned.mission} --reason …")
    out.text(f"undo:     chargehand checkpoint undo {planned.mission}")
