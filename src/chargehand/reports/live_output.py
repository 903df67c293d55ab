"""Live output of the agents and checks of a running mission, stored so that another process can follow it.

One file for each mission that has not ended, in `output/` of the state directory: the process that runs the
mission appends to it, `mission watch` reads it. It is not part of the log: no decision depends on it, and it is
removed once the mission ends.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import msgspec

from chargehand.core.clock import Clock
from chargehand.core.codec import decode_as
from chargehand.core.errors import NotFoundError
from chargehand.core.records import Reason
from chargehand.core.state import SETTLED, MissionState
from chargehand.durable.actions import OutputLine
from chargehand.durable.supervisor import LineSplitter

if TYPE_CHECKING:
    from chargehand.missions.missions import Missions
    from chargehand.reports.reading import StateReader
    from chargehand.sandbox.contract import OnOutput, Stream

# Interval of reading the log of a followed mission: queries of a millisecond each.
LOOK_SECONDS = 0.2
# A worker that was just started has claimed a mission by then, even on a busy machine.
_PATIENCE_SECONDS = 10.0
_DIRECTORY = "output"
_ENDED = SETTLED - {"waiting", "paused"}
# Limit of one mission's file in bytes, as for actions: beyond it only the log continues.
_LIMIT_BYTES = 10_000_000
# The stream of checks' output, their stdout and stderr in order of time; agents have `stdout` and `stderr`.
CHECK_STREAM = "check"
# Bytes of one stored line: 10,000 characters, each possibly escaped, and its time.
LONGEST_RECORD = 100_000
_CUT_OFF = "(the output exceeds 10 MB; the rest is not kept)"


class OutputWriter:
    """Appends a mission's output, line by line and without secrets; closing it keeps the file."""

    def __init__(self, home: Path, mission: str, *, clock: Clock) -> None:
        from chargehand.core.redaction import Redactor

        path = _path(home, mission)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        # A mission that another worker takes up continues in the same file, and the limit applies to the whole
        # file.
        self._file = path.open("ab")
        self._clock = clock
        self._redactor = Redactor()
        self._cutters = {name: LineSplitter(name, self._write) for name in ("stdout", "stderr")}
        self._check_cutters = {
            name: LineSplitter(name, lambda stream, text: self._write(CHECK_STREAM, text))
            for name in ("stdout", "stderr")
        }
        self._full = self._file.tell() >= _LIMIT_BYTES

    def write(self, stream: Stream, piece: bytes, /) -> None:
        """Write a piece of an agent's output; its complete lines are readable by others when this returns."""
        self._cutters[stream].feed(piece)

    def write_check(self, stream: Stream, piece: bytes, /) -> None:
        """Write a piece of a check's output, as `write`."""
        self._check_cutters[stream].feed(piece)

    def close(self) -> None:
        """Write the rest of an incomplete line, and close the file."""
        for cutter in (*self._cutters.values(), *self._check_cutters.values()):
            cutter.end()
        self._file.close()

    def _write(self, stream: str, text: str) -> None:
        if self._full:
            return
        self._full = self._file.tell() >= _LIMIT_BYTES
        text = _CUT_OFF if self._full else self._redactor.text(text)
        line = OutputLine(time=self._clock.now().isoformat(), stream=stream, line=text)
        # A full disk loses these lines, never the mission: its log matters, and reports the disk itself.
        with contextlib.suppress(OSError):
            self._file.write(msgspec.json.encode(line) + b"\n")
            self._file.flush()


class OutputReader:
    """Reads a mission's output, from a byte `position` in its file, the beginning by default.

    A context manager. The file stays open, so that output written before the mission's end is read even after the
    file is removed.
    """

    def __init__(self, home: Path, mission: str, *, position: int = 0) -> None:
        self._path = _path(home, mission)
        self._file: IO[bytes] | None = None
        self.position = position

    def __enter__(self) -> OutputReader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def size(self) -> int | None:
        """Return the file's current size in bytes, `None` if there is no file (yet, or any more)."""
        if self._file is None:
            try:
                self._file = self._path.open("rb")
            except FileNotFoundError:
                return None
        return os.fstat(self._file.fileno()).st_size

    def read(self, most: int = -1) -> Iterator[OutputLine]:
        """Yield the complete lines of the next `most` bytes, by default all; `position` follows along."""
        if self.size() is None:
            return
        for line in self._read_lines(most):
            self.position += len(line) + 1
            # A kill or a full disk may have cut a line short, and the next line then follows it directly.
            with contextlib.suppress(msgspec.MsgspecError):
                yield decode_as(line, OutputLine)

    def skip_to(self, position: int) -> int:
        """Continue behind the line that contains `position`, and return the number of skipped lines."""
        skipped = 0
        while self.position < position and (lines := self._read_lines(position - self.position + LONGEST_RECORD)):
            for line in lines:
                if self.position >= position:
                    break
                self.position += len(line) + 1
                skipped += 1
        return skipped

    def _read_lines(self, most: int) -> list[bytes]:
        assert self._file is not None
        self._file.seek(self.position)
        content = self._file.read(most)
        whole, newline, _ = content.rpartition(b"\n")
        if not newline and len(content) == most:
            self.position += most  # no record is this long: the file is damaged here
        return whole.split(b"\n") if newline else []


class OutputWrites(NamedTuple):
    """Writers for the output of a mission's agents, and of its checks."""

    agent: OnOutput
    checks: OnOutput


@contextlib.contextmanager
def writing_output(
    home: Path,
    mission: str,
    *,
    clock: Clock,
    also: OnOutput | None = None,
    also_checks: OnOutput | None = None,
) -> Iterator[OutputWrites]:
    """Store a mission's output while the block runs.

    `also` gets each piece of its agents' output first, `also_checks` each piece of its checks' output.
    """
    writer = OutputWriter(home, mission, clock=clock)
    try:
        yield OutputWrites(_call_both(also, writer.write), _call_both(also_checks, writer.write_check))
    finally:
        writer.close()


async def run_with_output(
    reader: StateReader,
    missions: Missions,
    mission: str,
    *,
    also: OnOutput | None = None,
    also_checks: OnOutput | None = None,
) -> MissionState:
    """Run a mission, as `Missions.run` does, while others can follow the output of its agents and checks."""
    with writing_output(reader.home, mission, clock=reader.clock, also=also, also_checks=also_checks) as writes:
        state = await missions.run(mission, on_output=writes.agent, on_check_output=writes.checks)
    remove_settled_output(reader.home, state)
    return state


def _call_both(first: OnOutput | None, second: OnOutput) -> OnOutput:
    def write(stream: Stream, piece: bytes) -> None:
        if first is not None:
            first(stream, piece)
        second(stream, piece)

    return write


class Patience:
    """Reports the reason for a wait only once it has lasted for a while; called again at each look."""

    def __init__(self) -> None:
        self._since: float | None = None

    def lasting(self, reason: Reason | None) -> Reason | None:
        """Return the reason if there has been one for long enough, `None` otherwise."""
        if reason is None:
            self._since = None
            return None
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        return reason if now - self._since >= _PATIENCE_SECONDS else None


def remove_settled_output(home: Path, state: MissionState) -> None:
    """Remove the output of a mission's agents if the mission has ended; a waiting or paused one continues."""
    if state.status in _ENDED:
        _path(home, state.id).unlink(missing_ok=True)


def remove_unneeded_output(reader: StateReader) -> int:
    """Remove the output of missions that ended without a worker; return the number of removed files. For `gc`."""
    removed = 0
    for path in (reader.home / _DIRECTORY).glob("*.jsonl"):
        try:
            ended = reader.mission_reader.state(path.stem).status in _ENDED
        except NotFoundError:
            ended = True
        if ended:
            path.unlink(missing_ok=True)
            removed += 1
    return removed


def _path(home: Path, mission: str) -> Path:
    return home / _DIRECTORY / f"{mission}.jsonl"
