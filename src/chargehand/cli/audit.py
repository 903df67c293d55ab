"""`chargehand audit`: proof that the log was not changed."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from chargehand.cli.storage import show_problems
from chargehand.cli.terminal.options import CommandGroup, complete_missions, json_option

if TYPE_CHECKING:
    from chargehand.cli.terminal.output import Output


@click.group(cls=CommandGroup)
def audit() -> None:
    """Prove that the log has not been changed."""


@audit.command()
@click.argument("mission", required=False, shell_complete=complete_missions)
@click.option(
    "--head",
    type=click.File("rb"),
    metavar="FILE",
    help="Also compare with this signed head, such as from a git note (- for stdin).",
)
@click.option(
    "--export", type=click.File("rb"), metavar="FILE", help="Verify an exported file instead of the log here."
)
@click.option("--deep", is_flag=True, help="Also read artifacts and the depots' commits, as store check does.")
@json_option
def verify(mission: str | None, head: IO[bytes] | None, export: IO[bytes] | None, deep: bool, out: Output) -> int:
    """Verify the hash chain of one mission, or of all. Exits 1 and names each broken place.

    \b
    Example, with the note of a promoted commit:
      git notes --ref chargehand show COMMIT | chargehand audit verify --head -
    """
    from chargehand.app.storage import verify_file, verify_log
    from chargehand.cli.terminal.output import count_text
    from chargehand.core.errors import UsageError
    from chargehand.reports.reading import StateReader

    if mission is not None and export is not None:
        raise UsageError(
            f"an export is verified as a whole, not mission {mission!r} alone",
            hint="leave out MISSION, or leave out --export to verify the log here",
        )
    if deep and export is not None:
        raise UsageError("an export has no artifacts and no commits", hint="leave out --deep, or --export")
    # Without a state directory: a third party verifies an export with nothing else at hand.
    if export is not None:
        report = verify_file(export, head=head)
    else:
        with StateReader.open() as reader:
            report = verify_log(reader, mission, head=head, deep=deep)
    out.document(report)
    show_problems(out, report.problems)
    counted = f"{count_text(report.events, 'event')} in {count_text(report.missions, 'mission')}"
    problems = count_text(len(report.problems), "problem")
    out.text(f"Log intact: {counted}." if report.ok else f"Log broken: {problems} in {counted}.")
    for key in report.keys:
        out.text(f"Verified {count_text(report.signed_heads, 'signed head')}, by key {key}.")
    return 0 if report.ok else 1


@audit.command()
@click.argument("mission", required=False, shell_complete=complete_missions)
@click.option("--all", "every", is_flag=True, help="Export all missions.")
@click.option("--output", type=click.Path(path_type=Path), help="Write to this new file (default: stdout).")
@json_option
def export(mission: str | None, every: bool, output: Path | None, out: Output) -> int:
    """Write events, signed heads and the public key as JSON lines that can be verified on their own."""
    from chargehand.app.storage import export_to_file, exported_lines
    from chargehand.cli.terminal.output import count_text
    from chargehand.core.errors import UsageError
    from chargehand.reports.reading import StateReader

    if every == (mission is not None):
        given = f"{mission!r} and --all were both given" if every else "neither a mission nor --all was given"
        raise UsageError(given, hint="give either MISSION or --all")
    with StateReader.open() as reader:
        if output is None:
            # Raw, without a document around it: the file's last line is the digest of all bytes before it.
            for line in exported_lines(reader, mission):
                out.raw(line)
            return 0
        written = export_to_file(reader, mission, output)
    out.document(written)
    out.text(
        f"Exported {count_text(len(written.missions), 'mission')} to {written.output} ({written.bytes} bytes)."
    )
    return 0


@audit.command()
@click.argument("mission", required=False, shell_complete=complete_missions)
@click.option("--commit", metavar="COMMIT", help="Verify this commit of the repository you are in.")
@json_option
def provenance(mission: str | None, commit: str | None, out: Output) -> int:
    """Show and verify the signed provenance of a mission's promotions. Exits 1 if it is invalid.

    It is a note on each promoted commit: the request, the agent, the base, and the checks that judged it.

    \b
    The signed statement itself (an in-toto statement in a DSSE envelope):
      git notes --ref chargehand-provenance show COMMIT
    """
    from chargehand.app.storage import verify_provenance
    from chargehand.cli.terminal.output import count_text
    from chargehand.core.errors import UsageError
    from chargehand.reports.reading import StateReader

    if mission is not None and commit is not None:
        raise UsageError(f"{mission!r} and --commit were both given", hint="give either MISSION or --commit")
    with StateReader.open() as reader:
        found = verify_provenance(reader, mission, commit=commit)
    out.document(found)
    for each in found.commits:
        out.text(f"commit    {each.commit}", bold=True)
        # Unsigned facts are not shown as if they were signed.
        if each.statement is not None and each.key is not None:
            definition = each.statement["predicate"]["buildDefinition"]
            run = each.statement["predicate"]["runDetails"]
            asked = definition["externalParameters"]
            metadata = run["metadata"]
            who = f"{asked['agent']}" + (f" ({asked['model']})" if asked["model"] else "")
            out.text(f"mission   {metadata['invocationId']}, {definition['buildType']}")
            out.text(f"tree      {each.statement['subject'][0]['digest']['gitTree']}")
            out.text(f"base      {asked['base']}")
            out.text(f"role      {asked['role'] or 'none'}, by {who}")
            out.text(f"time      {metadata['startedOn']} to {metadata['finishedOn']}")
            for part in run["byproducts"]:
                told = part.get("annotations", {})
                if part["name"].startswith("check:"):
                    out.text(f"check     {told['status']}  {part['name'].removeprefix('check:')}")
                elif part["name"] == "approval":
                    out.text(f"approval  {told['identity']}, {told['time']}")
            for name, why in definition["internalParameters"]["absent"].items():
                out.text(f"absent    {name}: {why}")
            out.text(f"signed    by key {each.key}")
    show_problems(out, found.problems)
    problems = count_text(len(found.problems), "problem")
    out.text("Provenance holds." if found.ok else f"Provenance is invalid: {problems}.")
    return 0 if found.ok else 1
