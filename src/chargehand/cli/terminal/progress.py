"""Progress of a running mission: live on a person's terminal, one line per step on stderr in a pipe."""

from __future__ import annotations

import codecs
import contextlib
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from chargehand.cli.terminal.failures import wants_colour
from chargehand.cli.terminal.interrupt import Stop, run_async
from chargehand.cli.terminal.lines import wrap_lines, write_aside
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
    QuestionAsked,
    VerdictGiven,
)
from chargehand.core.text import printable
from chargehand.reports.story import MissionStory, describe

if TYPE_CHECKING:
    from rich.console import RenderableType

    from chargehand.app.runs import RunObserver, RunStart
    from chargehand.sandbox.contract import Stream
    from chargehand.store.store import Store

_T = TypeVar("_T")
# Their facts are in the lines shown at the start of a run.
_IN_START_LINES = (AgentSelected, BaseResolved)
# Lines of one mission on stderr without a terminal, such as in the log of a build.
_MOST_LINES = 200
# The last line of a check's output is shown once the check has run for so many seconds.
_QUIET_SECONDS = 10
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

    def check_output(self, stream: Stream, piece: bytes, /) -> None:
        """Show nothing."""


class StepLines(SilentObserver):
    """Writes the assignment to stdout at once, and a bounded number of lines about its steps to stderr.

    With a `story` there is one line per step, otherwise one per event.
    """

    def __init__(self, out: Output, story: MissionStory | None) -> None:
        self._out = out
        self._story = story
        self._left = _MOST_LINES

    def begin(self, start: RunStart, /) -> None:
        """Write the assignment, with the mission's id first."""
        for line in start_lines(start):
            self._out.text(line)

    def watch(self, event: Event, payload: Payload, /) -> None:
        """Write a line for an event that ends or begins a step."""
        if isinstance(payload, _IN_START_LINES):
            return
        if self._story is not None:
            lines = [line.text for line in self._story.tell(event) if line.is_step]
        else:
            lines = [text] if (text := describe(payload)) else []
        for line in lines:
            self._write(line, event.mission)

    def _write(self, line: str, mission: str) -> None:
        if self._story is not None:
            self._left -= 1
        if self._left > 0:
            write_aside(line)
        elif self._left == 0:
            write_aside(f"  … further steps: chargehand mission log {mission}")


@contextlib.contextmanager
def progress(
    out: Output, first: str = "preparing", *, store: Store | None = None, in_pipe: bool = False, asks: bool = False
) -> Iterator[RunObserver]:
    """Show progress while the block runs; `store` is that of the running mission.

    Without a person who watches, only the steps of a run are written (`in_pipe`). With `asks` a question of the
    mission is put to the person afterwards, so it is not shown here.
    """
    story = None if store is None or out.detail == "events" else MissionStory(store)
    if not out.shows_progress:
        yield StepLines(out, story) if in_pipe and not out.as_json and out.detail != "result" else SilentObserver()
        return
    live = _Live(first, story, out, asks)
    with live.shown():
        yield live


def hold_progress(observer: RunObserver, held: bool) -> None:
    """Hide or restore the line that names the current step; completed steps are shown in either case."""
    if isinstance(observer, _Live):
        observer.hold(held)


class _Live:
    """One line with the current step and its duration, below one line per completed step."""

    # rich is imported only here: a pipe does not pay for it. Without a story every event has a line.
    def __init__(self, first: str, story: MissionStory | None, out: Output, asks: bool) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        # No markup, highlighting or emoji codes: agents' words and file names would control them.
        coloured = wants_colour(sys.stderr, refused=not out.colour)
        self._console = Console(
            stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True,
            color_system="auto" if coloured else None,
        )  # fmt: skip
        self._out = out
        self._asks = asks
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
        self._check_line = ""

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
        # The prompt that follows has the whole question.
        is_put = isinstance(payload, QuestionAsked) and self._asks and not payload.until
        if self._story is not None:
            lines = self._story.tell(event)
            if isinstance(payload, QuestionAsked):
                text = " ".join(line.text for line in lines)
                note_question(self._out, payload, payload.text if is_put else text)
            for line in () if is_put else lines:
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

    def check_output(self, stream: Stream, piece: bytes, /) -> None:
        """Name the check that runs, and remember the last line that it wrote."""
        text = piece.decode(errors="replace")
        if text.startswith("$ ") and text.endswith("\n"):
            self._begin(text[2:].strip())
        elif lines := [line for line in text.replace("\r", "\n").split("\n") if line.strip()]:
            self._check_line = lines[-1]

    def _flush(self) -> None:
        for stream, rest in self._rest.items():
            self._rest[stream] = ""
            self._print_output(rest)

    def _begin(self, step: str) -> None:
        self._step, self._since, self._check_line = step, time.monotonic(), ""

    def _print_line(self, text: str, *, colour: str | None = None, bold: bool = False) -> None:
        self._out.note_seen(text)
        style = " ".join((*(["bold"] if bold else []), *([colour] if colour else [])))
        self._console.print(wrap_lines(printable(text), self._console.width), style=style or None)

    def _print_output(self, line: str) -> None:
        from rich.text import Text

        shown = printable(line).rstrip()
        if shown:
            self._out.note_seen(shown)
            self._console.print(Text(wrap_lines(f"    {shown}", self._console.width), style="dim"))

    def _draw_spinner(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        elapsed = time.monotonic() - self._since
        room = self._console.width - 12
        step = printable(self._step).replace("\n", " ")
        step = step if len(step) <= room else step[: room - 1] + "…"
        self._spinner.update(text=Text(f"{step}  {elapsed:.0f} s"))
        if elapsed < _QUIET_SECONDS or not self._check_line:
            return self._spinner
        last = Text(f"    {printable(self._check_line).strip()}", style="dim", no_wrap=True, overflow="ellipsis")
        return Group(self._spinner, last)


def note_question(out: Output, asked: QuestionAsked, shown: str) -> None:
    """Note the reasons of a question that were `shown` to a person."""
    for reason in asked.reasons:
        if reason.message in shown:
            out.note_seen(reason.message)


class ObserverWithEvents:
    """An observer that passes every event on to a second receiver."""

    def __init__(self, observer: RunObserver, on_event: Callable[[Event, Payload], None]) -> None:
        self._observer = observer
        self._on_event = on_event
        self.begin = observer.begin
        self.output = observer.output
        self.check_output = observer.check_output

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
