"""`chargehand artifact`, `gc`, `store` and `branch`: show, check, back up and clean up what missions left."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chargehand.cli.terminal.options import (
    CommandGroup,
    complete_artifacts,
    json_option,
    mission_argument,
    repo_option,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chargehand.app.storage import GcOptions
    from chargehand.cli.terminal.output import Output
    from chargehand.store.chain import AuditProblem
    from chargehand.workspace.branches import MergedBranch

_KINDS = ("workspaces", "bases", "layers", "litter")


@click.group(cls=CommandGroup)
def branch() -> None:
    """Remove branches of missions from your repository."""


@branch.command()
@repo_option
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def clean(repo: Path | None, dry_run: bool, yes: bool, out: Output) -> None:
    """Remove branches of missions that are merged into your current branch.

    They are shown first, and you are asked. Branches that are checked out stay, and so do all missions.
    """
    from chargehand.app.composition import App
    from chargehand.app.projects import clean_branches
    from chargehand.core.errors import UsageError
    from chargehand.core.text import shown_path

    if not (yes or dry_run or out.can_ask):
        raise UsageError(
            "this is not a terminal, so you cannot be asked", hint="add --yes to agree, or --dry-run to look"
        )

    def confirm(merged: tuple[MergedBranch, ...]) -> bool:
        for each in merged:
            out.text(f"{shown_path(each.name)} @ {each.commit[:12]}")
        if dry_run or yes:
            return yes and not dry_run
        return click.confirm(
            f"Remove {'it' if len(merged) == 1 else f'all {len(merged)}'}?", default=False, err=True
        )

    with App.open() as app:
        done = clean_branches(app, repo, confirm=confirm)
    out.document(done)
    if not done.merged:
        out.text("No branch of a mission is merged into your current branch.")
    elif not dry_run:
        out.text(f"removed {len(done.removed)} of {len(done.merged)}")


@click.command()
@repo_option
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@click.option("--max-age", metavar="AGE", help="Remove items not used for this long, such as 30m, 24h or 7d.")
@click.option("--max-bytes", metavar="SIZE", help="Remove until no more than this is used, such as 500MB or 2GiB.")
@click.option("--checkpoints", is_flag=True, help="Also erase old checkpoints for good; asks first.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def gc(yes: bool, out: Output, **options: Any) -> None:
    """Free disk space: remove old bases, layers and workspaces that no mission needs.

    Works on all projects, or on one with --repo. Removes the least recently used data until the total is under
    limits.state_mb. Checkpoints are kept unless --checkpoints is given.
    """
    from chargehand.app.storage import GcOptions

    collect(out, GcOptions(**options), yes=yes)


def collect(out: Output, options: GcOptions, *, yes: bool = False) -> None:
    """Remove unneeded data and list it; ask before erasing checkpoints unless `yes`.

    Raises `UsageError` if there is no terminal to ask on.
    """
    from chargehand.app.storage import collect_garbage
    from chargehand.cli.terminal.output import count_text
    from chargehand.core.errors import UsageError
    from chargehand.core.text import printable, shown_path
    from chargehand.reports.reading import StateReader

    def confirm(commits: int, workspaces: int) -> None:
        if yes:
            return
        what = f"{count_text(commits, 'checkpoint')} of {count_text(workspaces, 'workspace')}"
        what = f"{what} can never be restored, shown or forked again"
        if not out.can_ask:
            hint = "add --yes to agree; chargehand gc --checkpoints --dry-run lists them"
            # Never treated as a yes: erased checkpoints can only be restored from a backup.
            raise UsageError(f"this is not a terminal, so you cannot be asked: {what}", hint=hint)
        click.confirm(f"{what}. Continue?", abort=True, err=True)

    with StateReader.open() as reader:
        report = collect_garbage(reader, options, confirm=confirm)
    out.document(report)
    verb = "would be freed" if report.dry_run else "freed"
    fate = "would be erased" if report.dry_run else "erased"
    for each in report.projects:
        # A dry run names litter (remains of a crash) but does not count it.
        counts = ", ".join(count_text(len(getattr(each, kind)), kind.removesuffix("s")) for kind in _KINDS[:3])
        out.text(f"{shown_path(each.path)}: {counts}, {_megabytes(each.bytes)} {verb}")
        if report.dry_run:
            for kind in _KINDS:
                for name in getattr(each, kind):
                    out.text(f"  {kind.removesuffix('s')} {printable(name)}")
            for ref in each.checkpoints.refs:
                out.text(f"  checkpoints {ref}")
    erased = sum(each.checkpoints.commits for each in report.projects)
    kept = f"{count_text(erased, 'checkpoint')} {fate}" if erased else "all checkpoints are kept"
    out.text(f"{_megabytes(report.bytes)} {verb} of {_megabytes(report.taken)}; {kept}")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


@click.group(cls=CommandGroup)
def store() -> None:
    """Maintain the state directory: check it, back it up, restore it."""


@store.command()
@click.argument("mission", required=False)
@json_option
def check(mission: str | None, out: Output) -> int:
    """Check the state directory for damage: the log, artifacts, and the commits in the depots.

    Exits 1 and names each mission, line and object that is damaged. With MISSION, checks only that mission.
    """
    from chargehand.app.upkeep import check_store
    from chargehand.cli.terminal.output import count_text
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        report = check_store(reader, mission)
    out.document(report)
    show_problems(out, report.problems)
    counts = {"event": report.events, "artifact": report.artifacts, "commit": report.commits}
    what = ", ".join(count_text(count, noun) for noun, count in counts.items())
    what = f"{what} of {count_text(report.missions, 'mission')}"
    problems = count_text(len(report.problems), "problem")
    out.text(f"All intact: {what}." if report.ok else f"{problems} in {what}.")
    if report.problems:
        out.text("`chargehand store restore DIRECTORY` restores a copy that `chargehand store backup` made.")
    return 0 if report.ok else 1


def show_problems(out: Output, problems: Sequence[AuditProblem]) -> None:
    """Write each damaged place of a log or its accompanying data."""
    for problem in problems:
        line = f" line {problem.seq}" if problem.seq is not None else ""
        out.text(f"{problem.mission or 'the store'}{line}: {problem.kind}: {problem.message}", fg="red")


@store.command()
@click.argument("directory", type=click.Path(path_type=Path))
@json_option
def backup(directory: Path, out: Output) -> None:
    """Copy the state directory to a new DIRECTORY, while missions continue.

    The copy holds the log, keys, artifacts, replies of models and depots. It is as secret as the state directory.
    """
    from chargehand.app.upkeep import back_up
    from chargehand.cli.terminal.output import count_text
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        made = back_up(reader, directory)
    out.document(made)
    out.text(f"Copied {count_text(made.missions, 'mission')} to {made.path} ({_megabytes(made.bytes)}).")


@store.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def restore(directory: Path, yes: bool, out: Output) -> None:
    """Restore a copy that `store backup` made; asks first.

    The current state directory is kept next to it, under another name. Missions that were running when the copy
    was made are paused: resume those that should continue.
    """
    from chargehand.app import upkeep
    from chargehand.cli.terminal.output import count_text
    from chargehand.core.errors import UsageError
    from chargehand.reports.reading import StateReader

    def confirm(what: str) -> None:
        if yes:
            return
        if not out.can_ask:
            raise UsageError(f"this is not a terminal, so you cannot be asked: {what}", hint="add --yes to agree")
        click.confirm(f"{what[0].upper()}{what[1:]}. Continue?", abort=True, err=True)

    with StateReader.open() as reader:
        done = upkeep.restore(reader, directory, confirm=confirm)
    out.document(done)
    out.text(f"Restored {count_text(done.missions, 'mission')} to {done.path}.")
    if done.before is not None:
        out.text(f"The previous content is in {done.before}.")
    for mission in done.paused:
        out.text(f"paused  {mission}   chargehand mission resume {mission}")


@store.command()
@json_option
def rebuild(out: Output) -> None:
    """Rebuild the rows behind lists and counts from the log, and name the missions whose row was wrong.

    The log itself is only read. Exits 0 whether or not anything differed.
    """
    from chargehand.app.storage import rebuild_projections
    from chargehand.cli.terminal.output import count_text
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        report = rebuild_projections(reader)
    out.document(report)
    for mission in report.differing:
        out.text(f"differed  {mission}")
    if report.renumbered:
        out.text("Events were renumbered: readers that follow by position must start again.")
    found = f"{len(report.differing)} differed" if report.differing else "none differed"
    out.text(f"Rebuilt the rows of {count_text(report.missions, 'mission')}: {found}.")


@click.group(cls=CommandGroup)
def artifact() -> None:
    """Show the artifacts of missions: reports, outputs, snapshots of failed attempts."""


@artifact.command("list")
@mission_argument
@json_option
def list_(mission: str, out: Output) -> None:
    """List the artifacts of a mission, the oldest first."""
    from chargehand.app.storage import list_artifacts
    from chargehand.cli.terminal.output import local_time
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        listed = list_artifacts(reader, mission)
    out.document(listed)
    if not listed.artifacts:
        out.text(f"Mission {listed.mission} has no artifacts.")
        return
    rows = [(each.id[:12], each.kind, each.size, local_time(each.time)) for each in listed.artifacts]
    out.table(("ARTIFACT", "KIND", "BYTES", "WHEN"), rows)


@artifact.command()
@click.argument("artifact", shell_complete=complete_artifacts)
@json_option
def show(artifact: str, out: Output) -> None:
    """Print an artifact, given by its id or the start of it.

    In a pipe every byte is written as it is; on a terminal control characters are removed. With --json, `content`
    is text if the artifact is UTF-8, else base64; `encoding` says which.
    """
    from chargehand.app.storage import read_artifact
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        content, view = read_artifact(reader, artifact)
    out.document(view)
    if not out.as_json:
        out.raw(content)
