"""The person at a terminal picks a mission."""

from __future__ import annotations

import click

_OFFERED = 9


def pick_mission() -> str:
    """Let the person pick one of the newest missions here that ended. Raises `NotFoundError` if there is none."""
    from chargehand.app.missions import ListRequest, list_missions, listed_status
    from chargehand.cli.terminal.lines import write_aside
    from chargehand.core.errors import NotFoundError
    from chargehand.core.state import ENDED
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        found = [each for each in list_missions(reader, ListRequest(limit=0)).missions if each.status in ENDED]
    if not found:
        raise NotFoundError("no mission has ended here yet", hint='chargehand run "TEXT" starts one')
    for number, each in enumerate(found[:_OFFERED], start=1):
        title = (each.request or "").strip().partition("\n")[0]
        write_aside(f"  {number}  {each.mission}  {listed_status(each)}  {title}")
    largest = min(len(found), _OFFERED)
    return found[
        click.prompt("Continue which one?", type=click.IntRange(1, largest), default=1, err=True) - 1
    ].mission
