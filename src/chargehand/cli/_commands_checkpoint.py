"""`chargehand checkpoint …`, as it is declared."""

from __future__ import annotations

import click

from chargehand.cli._options import json_option, named_mission_argument

_mission_option = click.option(
    "--mission", default="last", metavar="MISSION", help="The mission the checkpoints are of (default: the last)."
)


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
    from chargehand.cli._output import Output

    return list_checkpoints(Output(as_json=as_json), mission)


@checkpoint.command()
@click.argument("checkpoint")
@_mission_option
@json_option
def show(checkpoint: str, mission: str, as_json: bool) -> int:
    """Show one checkpoint and the files it holds that differ from the base."""
    from chargehand.cli._checkpoint import show_checkpoint
    from chargehand.cli._output import Output

    return show_checkpoint(Output(as_json=as_json), checkpoint, mission=mission)


@checkpoint.command()
@click.argument("a")
@click.argument("b")
@_mission_option
@click.option("--stat", is_flag=True, help="Only how many lines each file gained and lost.")
@json_option
def diff(a: str, b: str, mission: str, stat: bool, as_json: bool) -> int:
    """Show what changed from checkpoint A to checkpoint B."""
    from chargehand.cli._diff import checkpoint_diff
    from chargehand.cli._output import Output

    return checkpoint_diff(Output(as_json=as_json), a, b, mission=mission, stat=stat)


@checkpoint.command()
@named_mission_argument
@click.argument("checkpoint")
@json_option
def restore(mission: str, checkpoint: str, as_json: bool) -> int:
    """Make an earlier checkpoint a mission's last one; what came between stays in the list."""
    from chargehand.cli._checkpoint import restore_checkpoint
    from chargehand.cli._output import Output

    return restore_checkpoint(Output(as_json=as_json), mission, checkpoint)
