"""A mission's output for a remote terminal: followed line by line, or the stored part afterwards."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from datetime import datetime
from typing import Literal

from msgspec.structs import replace

from chargehand.core.attempt_events import AttemptStarted, CommandFinished
from chargehand.core.errors import ChargehandError
from chargehand.core.events import read_payload
from chargehand.core.mission_events import VerdictGiven
from chargehand.core.state import ENDED, SETTLED
from chargehand.durable.actions import OutputLine
from chargehand.missions.waiting import goes_on_by_itself
from chargehand.reports.documents import Document
from chargehand.reports.live_output import CHECK_STREAM, LONGEST_RECORD, OutputReader
from chargehand.reports.reading import StateReader

# Bytes of one look, and the most that a reader may lag: a reader further behind gets a `dropped` record.
_LOOK_BYTES = 2 * LONGEST_RECORD
_MOST_BEHIND = 1_500_000
_KEPT_BYTES = 1_000_000
_LONGEST_LINE = 10_000
_KEPT_TYPES = ("attempt.started", "command.finished", "verdict.given")


class TerminalRecord(Document, frozen=True):
    """One record for a terminal; `position` is where to continue.

    A `line` has its source, time (ISO 8601 in UTC, "" if `kept`) and attempt, 0 before the first attempt.
    `dropped` says that `count` lines are left out, 0 if they were not counted. `reset` invalidates earlier
    positions, `status` gives the statuses of mission and attempt, with `ended` once no more records follow.
    `alive` has no content: its absence shows that the connection is lost.
    """

    kind: Literal["line", "dropped", "reset", "status", "alive"]
    position: int = 0
    source: Literal["agent", "check", ""] = ""
    stream: str = ""
    time: str = ""
    attempt: int = 0
    text: str = ""
    count: int = 0
    kept: bool = False
    mission_status: str = ""
    attempt_status: str = ""
    ended: bool = False


class TerminalFollower:
    """Follows a mission's output: each look returns a bounded part of the new output; a context manager.

    It begins behind `after`, an earlier `position`; 0 is the beginning. Raises `NotFoundError`.
    """

    def __init__(self, reader: StateReader, name: str, *, after: int = 0) -> None:
        self._reader = reader
        self._mission = reader.find_mission(name)
        self._followed = reader.mission_reader.followed(self._mission)
        self._output = OutputReader(reader.home, self._mission, position=after)
        self._begun: list[tuple[datetime, int]] = []  # when each attempt began, and its number
        self._told: TerminalRecord | None = None
        self._tell_kept = after == 0
        self.ended = False
        """Whether no more records follow; the last record of a look says so too."""
        self.at_rest = False
        """Whether the mission waits for a person, so that it need not be read often."""

    def __enter__(self) -> TerminalFollower:
        return self

    def __exit__(self, *_: object) -> None:
        self._output.__exit__()

    def look(self) -> list[TerminalRecord]:
        """Return the records since the last look, [] without news. Raises `StoreError`."""
        found: list[TerminalRecord] = []
        lines: list[tuple[OutputLine, int]] = []
        # Read the log after the output: the attempt that printed these lines has its beginning in the log by then.
        size = self._output.size()
        if size is not None:
            self._tell_kept = False
            if self._output.position > size:  # it ended and was continued, and now writes to a new file
                self._output.position = 0
                found.append(TerminalRecord(kind="reset"))
            if size - self._output.position > _MOST_BEHIND:
                count = self._output.skip_to(size - _MOST_BEHIND // 2)
                found.append(TerminalRecord(kind="dropped", position=self._output.position, count=count))
            lines += ((line, self._output.position) for line in self._output.read(_LOOK_BYTES))
        state, events = self._followed.look()
        for event in events:
            if event.type == "attempt.started" and isinstance(payload := read_payload(event), AttemptStarted):
                self._begun.append((datetime.fromisoformat(event.time), payload.number))
        for line, position in lines:
            place = bisect_right(self._begun, datetime.fromisoformat(line.time), key=lambda begun: begun[0])
            of_check = line.stream == CHECK_STREAM
            found.append(
                TerminalRecord(
                    kind="line",
                    position=position,
                    source="check" if of_check else "agent",
                    stream="" if of_check else line.stream,
                    time=line.time,
                    attempt=self._begun[place - 1][1] if place else 0,
                    text=line.line,
                )
            )
        self.at_rest = state.status in SETTLED and not goes_on_by_itself(state)
        # Output written in between appears at the next look, since the file stays open: hence a second look.
        was_over = self._told is not None and self._told.mission_status in ENDED
        self.ended = was_over and not lines and state.status in ENDED
        if self._tell_kept and state.status in ENDED:
            found += kept_output(self._reader, self._mission)
            self._tell_kept = False
        last = state.attempts[-1] if state.attempts else None
        status = TerminalRecord(
            kind="status",
            attempt=last.number if last else 0,
            mission_status=state.status,
            attempt_status=last.status if last else "",
            ended=self.ended,
        )
        if not lines and status != self._told:
            self._told = status
            found.append(replace(status, position=self._output.position))
        return found


def kept_output(reader: StateReader, mission: str) -> list[TerminalRecord]:
    """Return the end of the output of a mission's programs and checks, at most 1 MB, as stored with the log."""
    attempt, kept = 0, list[tuple[int, Literal["agent", "check"], str, str]]()
    for event in reader.store.log.read(mission, types=_KEPT_TYPES):
        match read_payload(event):
            case AttemptStarted(number=number):
                attempt = number
            case CommandFinished(artifact=str(artifact)):
                kept.append((attempt, "agent", "", artifact))
            case VerdictGiven(reused=False, verdict=verdict):
                found = ((check.name, check.artifact) for check in verdict.checks)
                kept += ((attempt, "check", name, artifact) for name, artifact in found if artifact)
    parts, room, is_whole = list[list[TerminalRecord]](), _KEPT_BYTES, True
    for number, source, name, artifact in reversed(kept):
        if room <= 0:
            is_whole = False
            break
        content = b""
        with contextlib.suppress(ChargehandError):  # erased or damaged: the rest is still shown
            content = reader.store.artifacts.get(artifact)
        is_whole &= len(content) <= room
        content = content[-room:]
        room -= len(content)
        lines = ([f"$ {name}"] if name else []) + content.decode(errors="replace").removesuffix("\n").split("\n")
        texts = (line[at : at + _LONGEST_LINE] for line in lines for at in range(0, len(line) or 1, _LONGEST_LINE))
        record = TerminalRecord(kind="line", source=source, attempt=number, kept=True)
        parts.append([replace(record, text=text.removesuffix("\r")) for text in texts])
    left_out = [] if is_whole else [TerminalRecord(kind="dropped")]
    return left_out + [record for part in reversed(parts) for record in part]
