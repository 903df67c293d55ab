"""What the agents and checks of a running mission print, kept so that another process can follow it.

One file for each mission that has not ended, in `output/` of the state directory: whoever runs the mission appends
to it, `mission watch` reads on. It is not part of the log: nothing is decided by it, and it goes once the mission
ends.
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
    from chargehand.app.reading import StateReader
    from chargehand.app.wiring.session import Session
    from chargehand.sandbox.contract import OnOutput, Stream

# Between two readings of the log of a mission that is followed: queries of a millisecond each.
LOOK_SECONDS = 0.2
# By then a worker that was just started has claimed a mission, even on a busy machine.
_PATIENCE_SECONDS = 10.0
_DIRECTORY = "output"
_ENDED = SETTLED - {"waiting", "paused"}
# Bytes of one mission's file, as of an action's: beyond it only the log tells on.
_LIMIT_BYTES = 10_000_000
# The stream of what checks print, both of theirs in the order of time; agents have `stdout` and `stderr`.
CHECK_STREAM = "check"
# Bytes of one line as it is kept: 10,000 characters of which each may be escaped, and its time.
LONGEST_RECORD = 100_000
_CUT_OFF = "(the output is longer than 10 MB; what follows is not kept)"


class OutputWriter:
    """Appends what a mission prints, line by line and without secrets; closing it keeps the file."""

    def __init__(self, home: Path, mission: str, *, clock: Clock) -> None:
        from chargehand.models.redaction import Redactor

        path = _path(home, mission)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        # A mission that another worker takes up goes on in the same file, and the limit is for all of it.
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
        """Keep a piece of an agent's output; its whole lines can be read by others when this returns."""
        self._cutters[stream].feed(piece)

    def write_check(self, stream: Stream, piece: bytes, /) -> None:
        """Keep a piece of a check's output, as `write`."""
        self._check_cutters[stream].feed(piece)

    def close(self) -> None:
        """Keep what is left of a last line, and close the file."""
        for cutter in (*self._cutters.values(), *self._check_cutters.values()):
            cutter.end()
        self._file.close()

    def _write(self, stream: str, text: str) -> None:
        if self._full:
            return
        self._full = self._file.tell() >= _LIMIT_BYTES
        text = _CUT_OFF if self._full else self._redactor.text(text)
        line = OutputLine(time=self._clock.now().isoformat(), stream=stream, line=text)
        # A full disk costs these lines, never the mission: its log is what counts, and says so itself.
        with contextlib.suppress(OSError):
            self._file.write(msgspec.json.encode(line) + b"\n")
            self._file.flush()


class OutputReader:
    """Reads what a mission prints, from a `position` in its file in bytes, the beginning by default.

    A context manager. The file stays open, so that what was written before the mission ended is read although it
    is removed then.
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
        """Return how many bytes there are by now, `None` where there is no file (yet, or any more)."""
        if self._file is None:
            try:
                self._file = self._path.open("rb")
            except FileNotFoundError:
                return None
        return os.fstat(self._file.fileno()).st_size

    def read(self, most: int = -1) -> Iterator[OutputLine]:
        """Yield the whole lines of the next `most` bytes, of all by default; `position` is behind each then."""
        if self.size() is None:
            return
        for line in self._read_lines(most):
            self.position += len(line) + 1
            # A kill or a full disk may have cut a line short, and the next one then follows it directly.
            with contextlib.suppress(msgspec.MsgspecError):
                yield decode_as(line, OutputLine)

    def skip_to(self, position: int) -> int:
        """Go on behind the line that `position` stands in, and return how many lines are left out."""
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
            self.position += most  # no record is so long: the file is damaged here
        return whole.split(b"\n") if newline else []


class OutputWrites(NamedTuple):
    """What keeps the output of a mission's agents, and that of its checks."""

    agent: OnOutput
    checks: OnOutput


@contextlib.contextmanager
def writing_output(
    home: Path, mission: str, *, clock: Clock, also: OnOutput | None = None
) -> Iterator[OutputWrites]:
    """Keep a mission's output while the block runs; `also` is given each piece of its agents' first."""
    writer = OutputWriter(home, mission, clock=clock)

    def write(stream: Stream, piece: bytes) -> None:
        if also is not None:
            also(stream, piece)
        writer.write(stream, piece)

    try:
        yield OutputWrites(write, writer.write_check)
    finally:
        writer.close()


async def run_with_output(
    reader: StateReader, session: Session, mission: str, *, also: OnOutput | None = None
) -> MissionState:
    """Run a mission while others can follow what its agents and checks print, as `Missions.run` does."""
    with writing_output(reader.home, mission, clock=reader.clock, also=also) as writes:
        state = await session.missions.run(mission, on_output=writes.agent, on_check_output=writes.checks)
    remove_settled_output(reader.home, state)
    return state


class Patience:
    """Passes on why something waits once it has waited for a while; asked again at each look."""

    def __init__(self) -> None:
        self._since: float | None = None

    def lasting(self, reason: Reason | None) -> Reason | None:
        """Return the reason where there has been one for long enough, `None` otherwise."""
        if reason is None:
            self._since = None
            return None
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        return reason if now - self._since >= _PATIENCE_SECONDS else None


def remove_settled_output(home: Path, state: MissionState) -> None:
    """Remove what the agents of a mission printed, once it has ended; a waiting or paused one goes on."""
    if state.status in _ENDED:
        _path(home, state.id).unlink(missing_ok=True)


def remove_unneeded_output(reader: StateReader) -> int:
    """Remove the output of missions that ended while nobody ran them; return how many files went. For `gc`."""
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
