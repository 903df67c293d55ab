"""`chargehand artifact …`, as it is declared."""

from __future__ import annotations

import click

from chargehand.cli.options import json_option, mission_argument


@click.group()
def artifact() -> None:
    """Look at what missions kept: reports, outputs, states of attempts that ended badly."""


@artifact.command("list")
@mission_argument
@json_option
def list_(mission: str, as_json: bool) -> int:
    """List what a mission kept, the oldest first."""
    from chargehand.cli._artifact import list_artifacts
    from chargehand.cli.output import Output

    return list_artifacts(Output(as_json=as_json), mission)


@artifact.command()
@click.argument("artifact")
@json_option
def show(artifact: str, as_json: bool) -> int:
    """Print an artifact, given by its id or how that begins: to the byte in a pipe, stripped on a terminal.

    With --json `content` is text where the artifact is UTF-8, else base64; `encoding` says which.
    """
    from chargehand.cli._artifact import show_artifact
    from chargehand.cli.output import Output

    return show_artifact(Output(as_json=as_json), artifact)
