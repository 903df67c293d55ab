"""`chargehand artifact`, `gc` and `store`: what the state directory keeps, and space back from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chargehand.cli.terminal.options import json_option, mission_argument, repo_option

if TYPE_CHECKING:
    from chargehand.app.storage import GcOptions
    from chargehand.cli.terminal.output import Output

_KINDS = ("workspaces", "bases", "layers", "litter")


@click.command()
@repo_option
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@click.option("--max-age", metavar="AGE", help="Remove what was last used longer ago, such as 30m, 24h or 7d.")
@click.option("--max-bytes", metavar="SIZE", help="Remove until no more than this is used, such as 500MB or 2GiB.")
@click.option("--checkpoints", is_flag=True, help="Also erase old checkpoints for good; asks first.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def gc(yes: bool, out: Output, **options: Any) -> int:
    """Free disk space: remove old bases, layers and workspaces that no mission needs any more.

    Works on all projects, or on one with --repo. Removes what was used least recently until the total is under
    limits.state_mb. Checkpoints are kept unless --checkpoints is given.
    """
    from chargehand.app.storage import GcOptions

    return collect(out, GcOptions(**options), yes=yes)


def collect(out: Output, options: GcOptions, *, yes: bool = False) -> int:
    """Remove what is not needed and show what was; asks before checkpoints are erased unless `yes`.

    Raises `UsageError` where there is nobody to ask.
    """
    from chargehand.app.reading import StateReader
    from chargehand.app.storage import collect_garbage
    from chargehand.core.errors import UsageError
    from chargehand.core.text import printable, shown_path

    def confirm(commits: int, workspaces: int) -> None:
        if yes:
            return
        what = f"{commits} checkpoints of {workspaces} workspaces can never be restored, shown or forked again"
        if not out.can_ask:
            hint = "add --yes to agree; chargehand gc --checkpoints --dry-run lists them"
            # Never taken for a yes: what is erased here comes back from a backup alone.
            raise UsageError(f"there is no terminal to ask you at: {what}", hint=hint)
        click.confirm(f"{what}. Continue?", abort=True, err=True)

    with StateReader.open() as reader:
        report = collect_garbage(reader, options, confirm=confirm)
    out.document(report)
    verb, fate = ("would be freed", "would be erased") if report.dry_run else ("freed", "erased")
    for each in report.projects:
        # Litter, what a crash left half made, is named in a dry run and is nothing to count.
        counts = ", ".join(f"{len(getattr(each, kind))} {kind}" for kind in _KINDS[:3])
        out.text(f"{shown_path(each.path)}: {counts}, {_megabytes(each.bytes)} {verb}")
        if report.dry_run:
            for kind in _KINDS:
                for name in getattr(each, kind):
                    out.text(f"  {kind.removesuffix('s')} {printable(name)}")
            for ref in each.checkpoints.refs:
                out.text(f"  checkpoints {ref}")
    erased = sum(each.checkpoints.commits for each in report.projects)
    kept = f"{erased} checkpoints {fate}" if erased else "all checkpoints are kept"
    out.text(f"{_megabytes(report.bytes)} {verb} of {_megabytes(report.taken)}; {kept}")
    return 0


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


@click.group()
def store() -> None:
    """Maintain the database of the state directory."""


@store.command()
@json_option
def rebuild(out: Output) -> int:
    """Rebuild the rows behind lists and counts from the log, and name the missions whose row was wrong.

    The log itself is only read. Exits 0 whether or not anything differed.
    """
    from chargehand.app.reading import StateReader
    from chargehand.app.storage import rebuild_projections

    with StateReader.open() as reader:
        report = rebuild_projections(reader)
    out.document(report)
    for mission in report.differing:
        out.text(f"differed  {mission}")
    if report.renumbered:
        out.text("Events were renumbered: readers that follow by position start again.")
    found = f"{len(report.differing)} differed" if report.differing else "none differed"
    out.text(f"Rebuilt the rows of {report.missions} mission{'' if report.missions == 1 else 's'}: {found}.")
    return 0


@click.group()
def artifact() -> None:
    """Show what missions kept: reports, outputs, snapshots of failed attempts."""


@artifact.command("list")
@mission_argument
@json_option
def list_(mission: str, out: Output) -> int:
    """List what a mission kept, the oldest first."""
    from chargehand.app.reading import StateReader
    from chargehand.app.storage import list_artifacts

    with StateReader.open() as reader:
        listed = list_artifacts(reader, mission)
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
def show(artifact: str, out: Output) -> int:
    """Print an artifact, given by its id or the start of it.

    In a pipe every byte is written as it is; on a terminal control characters are removed. With --json, `content`
    is text if the artifact is UTF-8, else base64; `encoding` says which.
    """
    from chargehand.app.reading import StateReader
    from chargehand.app.storage import read_artifact

    with StateReader.open() as reader:
        content, view = read_artifact(reader, artifact)
    out.document(view)
    if not out.as_json:
        out.raw(content)
    return 0
