"""Progress of a running mission on a person's terminal; a pipe shows nothing."""

from __future__ import annotations

import codecs
import contextlib
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from chargehand.cli.terminal.failures import wants_colour
from chargehand.cli.terminal.interrupt import Stop, run_async
from chargehand.cli.terminal.output import Output
from chargehand.cli.terminal.rendering import start_lines
from chargehand.core.attempt_events import SandboxOpened
from chargehand.core.events import Event, Payload
from chargehand.core.mission_events import (
    AgentSelected,
    BaseResolved,
    MissionAdmitted,
    MissionPaused,
    MissionQueued,
    MissionResumed,
    VerdictGiven,
)
from chargehand.core.text import printable
from chargehand.reports.story import MissionStory, describe

if TYPE_CHECKING:
    from rich.spinner import Spinner

    from chargehand.app.runs import RunObserver, RunStart
    from chargehand.sandbox.contract import Stream
    from chargehand.store.store import Store

_T = TypeVar("_T")
# Their facts are in the lines shown at the start of a run.
_IN_START_LINES = (AgentSelected, BaseResolved)
_STEPS = {
    "agent": "agent working",
    "checks": "running checks",
    "setup": "running setup",
    "exec": "running the command",
}


class SilentObserver:
    """Shows nothing: no person watches."""

    def begin(self, start: RunStart, /) -> None:
        """Show nothing."""

    def watch(self, event: Event, payload: Payload, /) -> None:
        """Show nothing."""

    def output(self, stream: Stream, piece: bytes, /) -> None:
        """Show nothing."""


@contextlib.contextmanager
def progress(out: Output, first: str = "preparing", *, store: Store | None = None) -> Iterator[RunObserver]:
    """Show progress while the block runs, if a person watches; `store` is that of the running mission."""
    if not out.shows_progress:
        yield SilentObserver()
        return
    live = _Live(first, None if store is None or out.detail == "events" else MissionStory(store), out.colour)
    with live.shown():
        yield live


def hold_progress(observer: RunObserver, held: bool) -> None:
    """Hide or restore the line that names the current step; completed steps are shown in either case."""
    if isinstance(observer, _Live):
        observer.hold(held)


class _Live:
    """One line with the current step and its duration, below one line per completed step."""

    # rich is imported only here: a pipe does not pay for it. Without a story every event has a line.
    def __init__(self, first: str, story: MissionStory | None, colour: bool) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        # No markup, highlighting or emoji codes: agents' words and file names would control them.
        coloured = wants_colour(sys.stderr, refused=not colour)
        self._console = Console(
            stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True,
            color_system="auto" if coloured else None,
        )  # fmt: skip
        self._story = story
        self._step = first
        self._since = time.monotonic()
        self._paused: tuple[str, float] | None = None
        self._spinner = Spinner("dots")
        self._live = Live(
            console=self._console, get_renderable=self._draw_spinner, refresh_per_second=8, transient=True
        )
        # Pieces may end inside a line or character: each stream keeps its own remainder.
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        self._rest = {"stdout": "", "stderr": ""}

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Keep the line on the terminal while the block runs."""
        with self._live:
            try:
                yield
            finally:
                self._flush()

    def hold(self, held: bool) -> None:
        """Draw no line at the bottom, or draw it again."""
        (self._live.stop if held else self._live.start)()

    def begin(self, start: RunStart, /) -> None:
        """Show the mission's assignment above the line with the current step."""
        for line in start_lines(start):
            self._print_line(line)

    def watch(self, event: Event, payload: Payload, /) -> None:
        """Show a line for an event, and the step that it starts."""
        # Output without a line end is shown before the event: later it would seem to follow it.
        self._flush()
        if isinstance(payload, _IN_START_LINES):
            return
        if self._story is not None:
            for line in self._story.tell(event):
                self._print_line(line.text, colour=line.colour, bold=line.bold)
        elif text := describe(payload):
            self._print_line(text)
        self._note_step(payload)

    def _note_step(self, payload: Payload) -> None:
        """Record the step that starts with this event."""
        match payload:
            case SandboxOpened():
                self._begin(_STEPS.get(payload.purpose, payload.purpose))
            case MissionPaused():
                # Paused time counts towards no limit, so it does not count here either.
                self._paused = (self._step, time.monotonic() - self._since)
                self._begin("paused")
            case MissionResumed() if self._paused is not None:
                self._step, self._since = self._paused[0], time.monotonic() - self._paused[1]
                self._paused = None
            case MissionQueued():
                self._begin("waiting in the queue")
            case MissionAdmitted():
                self._begin("preparing")
            case VerdictGiven() if payload.verdict.scope != "base":
                self._begin("deciding")

    def output(self, stream: Stream, piece: bytes, /) -> None:
        """Show complete lines of the agent's output, dimmed and without control characters."""
        # A progress bar that redraws itself with carriage returns becomes lines: ours must stay the last one.
        text = self._rest[stream] + self._decoders[stream].decode(piece).replace("\r", "\n")
        *lines, self._rest[stream] = text.split("\n")
        for line in lines:
            self._print_output(line)

    def _flush(self) -> None:
        for stream, rest in self._rest.items():
            self._rest[stream] = ""
            self._print_output(rest)

    def _begin(self, step: str) -> None:
        self._step, self._since = step, time.monotonic()

    def _print_line(self, text: str, *, colour: str | None = None, bold: bool = False) -> None:
        style = " ".join((*(["bold"] if bold else []), *([colour] if colour else [])))
        self._console.print(printable(text), style=style or None)

    def _print_output(self, line: str) -> None:
        from rich.text import Text

        shown = printable(line).rstrip()
        if shown:
            self._console.print(Text(f"    {shown}", style="dim"))

    def _draw_spinner(self) -> Spinner:
        from rich.text import Text

        elapsed = time.monotonic() - self._since
        self._spinner.update(text=Text(f"{self._step}  {elapsed:.0f} s"))
        return self._spinner


class ObserverWithEvents:
    """An observer that passes every event on to a second receiver."""

    def __init__(self, observer: RunObserver, on_event: Callable[[Event, Payload], None]) -> None:
        self._observer = observer
        self._on_event = on_event
        self.begin = observer.begin
        self.output = observer.output

    def watch(self, event: Event, payload: Payload, /) -> None:
        """Pass an event on to both."""
        self._observer.watch(event, payload)
        self._on_event(event, payload)


def run_with_progress(out: Output, store: Store, work: Callable[[RunObserver], Awaitable[_T]]) -> _T:
    """Run the work on a mission with its progress shown; raises `KeyboardInterrupt` if a signal ended it."""

    async def shown(stop: Stop) -> _T:
        with progress(out, store=store) as observer:
            return await work(observer)

    return run_async(shown)
