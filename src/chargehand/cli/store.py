"""`chargehand store`: the rows that are derived from the log."""

from __future__ import annotations

import click

from chargehand.cli.options import json_option


@click.group()
def store() -> None:
    """Look after the database of the state directory."""


@store.command()
@json_option
def rebuild(as_json: bool) -> int:
    """Make the rows that lists and counts read anew from the log, and name the missions whose row was wrong.

    The log itself is only read. Exits 0 whether or not anything differed.
    """
    from chargehand.app.reading import StateReader
    from chargehand.app.storage import rebuild_projections
    from chargehand.cli.output import Output

    out = Output(as_json=as_json)
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
