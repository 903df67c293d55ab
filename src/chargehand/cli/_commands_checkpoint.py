"""`chargehand checkpoint …`, as it is declared."""

from __future__ import annotations

from typing import Any

import click

from chargehand.cli.options import json_option, named_mission_argument

_mission_option = click.option(
    "--mission", default="last", metavar="MISSION", help="The mission the checkpoints are of (default: the last)."
)

_dry_run_option = click.option("--dry-run", is_flag=True, help="Only show what would become of each file.")


@click.group()
def checkpoint() -> None:
    """Look at the trees that were kept on the way, and go back to one.

    A checkpoint is the beginning of its commit, at least four digits, or 'last'; 'base' is where it began.
    """


@checkpoint.command("list")
@click.argument("mission", metavar="[MISSION]", default="last")
@json_option
def list_(mission: str, as_json: bool) -> int:
    """List a mission's checkpoints, the oldest first."""
    from chargehand.cli._checkpoint import list_checkpoints
    from chargehand.cli.output import Output

    return list_checkpoints(Output(as_json=as_json), mission)


@checkpoint.command()
@click.argument("checkpoint")
@_mission_option
@json_option
def show(checkpoint: str, mission: str, as_json: bool) -> int:
    """Show one checkpoint and the files it holds that differ from the base."""
    from chargehand.cli._checkpoint import show_checkpoint
    from chargehand.cli.output import Output

    return show_checkpoint(Output(as_json=as_json), checkpoint, mission=mission)


@checkpoint.command()
@click.argument("a")
@click.argument("b")
@_mission_option
@click.option("--stat", is_flag=True, help="Only how many lines each file gained and lost.")
@click.option("--inverse", is_flag=True, help="What leads from B back to A.")
@json_option
def diff(a: str, b: str, mission: str, stat: bool, inverse: bool, as_json: bool) -> int:
    """Show what changed from checkpoint A to checkpoint B, as a patch that git apply takes.

    MISSION:CHECKPOINT names one of another mission of the same project.
    """
    from chargehand.cli._diff import checkpoint_diff
    from chargehand.cli.output import Output

    return checkpoint_diff(Output(as_json=as_json), a, b, mission=mission, stat=stat, inverse=inverse)


@checkpoint.command()
@named_mission_argument
@click.argument("checkpoint")
@click.option("--file", "files", multiple=True, metavar="PATH", help="Only this file or directory; repeatable.")
@click.option(
    "--hunk",
    "hunks",
    multiple=True,
    metavar="PATH:LINES",
    help="Only the changes of a file in these lines of it, such as app.py:7 or app.py:12-20; repeatable.",
)
@click.option("--smart", is_flag=True, help="Only the changes that break a rule.")
@_dry_run_option
@json_option
def restore(mission: str, checkpoint: str, as_json: bool, **options: Any) -> int:
    """Go back to an earlier checkpoint, wholly or in part, by a new one; what came between stays in the list."""
    from chargehand.cli._checkpoint_restore import restore_checkpoint
    from chargehand.cli.output import Output

    return restore_checkpoint(Output(as_json=as_json), mission, checkpoint, **options)


@checkpoint.command()
@named_mission_argument
@_dry_run_option
@json_option
def undo(mission: str, dry_run: bool, as_json: bool) -> int:
    """Go back to the checkpoint before the last one, by a new one; a second undo takes that back."""
    from chargehand.cli._checkpoint_restore import undo_checkpoint
    from chargehand.cli.output import Output

    return undo_checkpoint(Output(as_json=as_json), mission, dry_run=dry_run)
