"""`chargehand artifact`: what missions kept."""

from __future__ import annotations

import click

from chargehand.cli.options import json_option, mission_argument


@click.group()
def artifact() -> None:
    """Show what missions kept: reports, outputs, snapshots of failed attempts."""


@artifact.command("list")
@mission_argument
@json_option
def list_(mission: str, as_json: bool) -> int:
    """List what a mission kept, the oldest first."""
    from chargehand.app.reading import StateReader
    from chargehand.app.storage import list_artifacts
    from chargehand.cli.output import Output

    with StateReader.open() as reader:
        listed = list_artifacts(reader, mission)
    out = Output(as_json=as_json)
    out.document(listed)
    if not listed.artifacts:
        out.text(f"Mission {listed.mission} kept nothing.")
        return 0
    rows = [(each.id[:12], each.kind, each.size, each.time[:19].replace("T", " ")) for each in listed.artifacts]
    out.table(("ARTIFACT", "KIND", "BYTES", "WHEN"), rows)
    return 0


@artifact.command()
@click.argument("artifact")
@json_option
def show(artifact: str, as_json: bool) -> int:
    """Print an artifact, given by its id or the start of it.

    In a pipe every byte is written as it is; on a terminal control characters are removed. With --json, `content`
    is text if the artifact is UTF-8, else base64; `encoding` says which.
    """
    from chargehand.app.reading import StateReader
    from chargehand.app.storage import read_artifact
    from chargehand.cli.output import Output

    with StateReader.open() as reader:
        content, view = read_artifact(reader, artifact)
    out = Output(as_json=as_json)
    out.document(view)
    if not as_json:
        out.raw(content)
    return 0
