"""Shows a mission that another process runs: line by line, or its crew as a full-screen picture."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

from chargehand.app.missions import follow_mission
from chargehand.cli.terminal.failures import wants_colour
from chargehand.cli.terminal.output import local_time
from chargehand.cli.terminal.progress import note_question
from chargehand.core.events import Event, read_payload
from chargehand.core.mission_events import QuestionAsked
from chargehand.core.records import Reason
from chargehand.reports.documents import event_document, event_step
from chargehand.reports.story import MissionStory, crew_rows, describe_event, follow_crew

if TYPE_CHECKING:
    from chargehand.cli.terminal.menu import WatchMenu
    from chargehand.cli.terminal.output import Output
    from chargehand.core.state import MissionState
    from chargehand.durable.actions import OutputLine
    from chargehand.reports.reading import StateReader
    from chargehand.reports.story import Crew

_HINT = "Ctrl-C: pause, send a message, cancel"
# Signals that end or stop a process and leave it time to restore the terminal.
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def follow(
    reader: StateReader, out: Output, mission: str, menu: WatchMenu | None, *, events: bool = True
) -> MissionState | None:
    """Show a mission until it is settled and return its state; `None` if stdout was closed.

    On a capable terminal a mission with a plan is drawn as a picture. Otherwise lines are written; with --json the
    mission's events, or nothing if `events` is false.
    """
    can_draw = out.on_terminal and out.detail == "story" and os.environ.get("TERM", "dumb") != "dumb"
    if can_draw and reader.mission_reader.state(mission).plan is not None:
        _watch_crew(reader, out, mission, menu)
        return reader.mission_reader.state(mission)
    story = MissionStory(reader.store)
    # Agents' output is not part of the log, and with --json each line is an event of the log.
    for seen in follow_mission(reader, mission, with_output=not out.as_json):
        if not out.as_json:
            _show(out, seen, story)
        elif events and isinstance(seen, Event):
            out.document(event_document(seen))
        if out.closed:  # as after `| head`: following without a reader would never end
            return None
    return reader.mission_reader.state(mission)


def _show(out: Output, seen: Event | Reason | OutputLine, story: MissionStory) -> None:
    """Write one item at the requested level of detail."""
    if out.detail == "result":
        return
    if isinstance(seen, Reason):
        out.text(f"  waits: {seen.message}")
    elif not isinstance(seen, Event):
        if seen.line.strip():  # dimmed, as `run` shows it
            out.note_seen(seen.line)
            out.text(f"    {seen.line.rstrip()}", dim=True)
    elif out.detail == "events":
        if text := describe_event(seen):
            out.text(f"{local_time(seen.time, seconds=True)}  {event_step(seen):<11}  {text}")
    else:
        lines = story.tell(seen)
        if isinstance(payload := read_payload(seen), QuestionAsked):
            note_question(out, payload, " ".join(line.text for line in lines))
        for line in lines:
            out.note_seen(line.text)
            out.text(line.text, fg=line.colour, bold=line.bold)


def _watch_crew(reader: StateReader, out: Output, mission: str, menu: WatchMenu | None) -> None:
    """Draw the tasks and their agents until the mission is settled; Ctrl-C opens the `menu`, or raises without
    one.
    """
    picture = _Picture(out)
    notice = ""
    if menu is not None:
        menu.deferred = True
        notice = _HINT
    with _signals_end(picture), picture.shown():
        for crew in follow_crew(reader, mission):
            if menu is not None and menu.asked:
                with picture.hidden():
                    notice = menu.open() or _HINT
            if picture.stopped:
                picture.stop_process()
            picture.draw(crew, reader, notice)


class _Killed(BaseException):
    """A fatal signal arrived; it is sent again once the terminal is restored."""

    def __init__(self, number: int) -> None:
        self.number = number


class _Picture:
    """The rows of a crew on the terminal's alternate screen, redrawn only after a change."""

    def __init__(self, out: Output) -> None:
        from rich.console import Console
        from rich.live import Live

        # No markup, highlighting or emoji codes: agents' words would control them.
        coloured = wants_colour(sys.stdout, refused=not out.colour)
        self._console = Console(
            highlight=False, markup=False, emoji=False, color_system="auto" if coloured else None
        )
        # Drawn by this thread alone: a signal could interrupt a separate drawing thread halfway.
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._drawn: object = None
        self.is_hidden = self.stopped = False

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show the picture while the block runs."""
        with self._live:
            yield

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Show the terminal as it was before the picture while the block runs."""
        self._live.stop()
        self.is_hidden = True
        yield
        self.is_hidden, self._drawn = False, None
        self._live.start()

    def stop_process(self) -> None:
        """Stop this process as Ctrl-Z asked, with the terminal restored; return once it resumes."""
        self.stopped = False
        with self.hidden():
            os.kill(os.getpid(), signal.SIGSTOP)

    def draw(self, crew: Crew, reader: StateReader, notice: str) -> None:
        """Draw the crew's state in the terminal's current rows and columns."""
        from rich.text import Text

        width, height = self._console.size
        rows = crew_rows(crew, now=reader.clock.now(), width=width, height=height, notice=notice)
        if (rows, width, height) == self._drawn:
            return
        self._drawn = (rows, width, height)
        encoding = self._console.encoding
        picture = Text(no_wrap=True, overflow="crop", end="")
        for number, row in enumerate(rows):
            style = " ".join((*["bold"] * row.bold, *["dim"] * row.dim, *([row.colour] if row.colour else [])))
            text = row.text.encode(encoding, "replace").decode(encoding)
            picture.append(f"\n{text}" if number else text, style=style)
        self._live.update(picture, refresh=True)


@contextlib.contextmanager
def _signals_end(picture: _Picture) -> Iterator[None]:
    """Leave the block by an exception if a signal ends the process, then let the signal end it."""

    def end(number: int, frame: FrameType | None) -> None:
        raise _Killed(number)

    def stop(number: int, frame: FrameType | None) -> None:
        picture.stopped = not picture.is_hidden
        if picture.is_hidden:
            os.kill(os.getpid(), signal.SIGSTOP)

    handlers = dict.fromkeys(_ENDING, end) | {signal.SIGTSTP: stop}
    # Ignored signals stay ignored, as under `nohup`; signals with a handler leave the block by themselves.
    taken = {number: each for number, each in handlers.items() if signal.getsignal(number) == signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in taken.items()}
    killed = 0
    try:
        yield
    except _Killed as error:
        killed = error.number
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if killed:
        os.kill(os.getpid(), killed)
