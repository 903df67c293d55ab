"""Shows what goes on in a mission that another process runs, as it happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chargehand.app.documents import event_document, event_step
from chargehand.app.missions import follow_mission
from chargehand.app.story import MissionStory, describe_event
from chargehand.cli.terminal.crew import can_draw, watch_crew
from chargehand.cli.terminal.output import local_time
from chargehand.core.events import Event
from chargehand.core.records import Reason

if TYPE_CHECKING:
    from chargehand.app.reading import StateReader
    from chargehand.cli.terminal.menu import WatchMenu
    from chargehand.cli.terminal.output import Output
    from chargehand.core.state import MissionState
    from chargehand.durable.actions import OutputLine


def follow(
    reader: StateReader, out: Output, mission: str, menu: WatchMenu | None, *, events: bool = True
) -> MissionState | None:
    """Show a mission until it is settled, and return how it stands; `None` where nobody reads any more.

    One with a plan is a picture on a terminal that can show one, else there are lines: with --json its `events`,
    or nothing where only the end is wanted.
    """
    if can_draw(out) and reader.mission_reader.state(mission).plan is not None:
        watch_crew(reader, out, mission, menu)
        return reader.mission_reader.state(mission)
    story = MissionStory(reader.store)
    # What agents print is no part of the log, and with --json each line is an event of the log.
    for seen in follow_mission(reader, mission, with_output=not out.as_json):
        if not out.as_json:
            _show(out, seen, story)
        elif events and isinstance(seen, Event):
            out.document(event_document(seen))
        if out.closed:  # as after `| head`: following for nobody would never end
            return None
    return reader.mission_reader.state(mission)


def _show(out: Output, seen: Event | Reason | OutputLine, story: MissionStory) -> None:
    """Write what was seen, in as much detail as was asked for."""
    if out.detail == "result":
        return
    if isinstance(seen, Reason):
        out.text(f"  waits: {seen.message}")
    elif not isinstance(seen, Event):
        if seen.line.strip():  # dimmed, as `run` shows it
            out.text(f"    {seen.line.rstrip()}", dim=True)
    elif out.detail == "events":
        if text := describe_event(seen):
            out.text(f"{local_time(seen.time, seconds=True)}  {event_step(seen):<11}  {text}")
    else:
        for line in story.tell(seen):
            out.text(line.text, fg=line.colour, bold=line.bold)
