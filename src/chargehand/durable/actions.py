"""State directories of manual actions: a lock that the owner holds, the output, and a cancel flag.

The log records what happened to an action; these directories hold the rest.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from chargehand.core.codec import decode_as
from chargehand.core.errors import InfrastructureError, NotFoundError, UsageError, nearest
from chargehand.core.ids import new_id
from chargehand.durable._lock_files import is_locked, try_lock
from chargehand.durable.directories import make_private

_RECORD, _LOCK, _OUTPUT, _CANCEL = "action.json", "lock", "output.jsonl", "cancel"
_KEPT = 500
# A directory without a record may belong to an action that is being made just now.
_FRESH_SECONDS = 60.0
_MOST_BYTES = 10_000_000


class ActionLocation(Struct, frozen=True, kw_only=True):
    """The position of an action's lines: the log, and the line after which they begin."""

    action: str
    log: str
    after: int


class OutputLine(Struct, frozen=True, kw_only=True):
    """One line that an action printed; `time` is ISO 8601 in UTC."""

    time: str
    stream: str
    line: str


class ActionLock:
    """The lock of one action: the process that has it open owns the action, for its lifetime.

    flock(2) belongs to the open file, not to the process: the descriptor can be passed to a child, and the lock
    stays with it after the parent closed its copy.
    """

    def __init__(self, action: str, fd: int) -> None:
        self.action = action
        self._fd: int | None = fd

    def fileno(self) -> int:
        """Return the locked descriptor, to be passed to the process that is to own the action."""
        if self._fd is None:
            raise ValueError(f"action {self.action!r} was already released")
        return self._fd

    def let_go(self, *, handed_on: bool = False) -> None:
        """Release the action; `handed_on` leaves the lock to the process that got the descriptor. Idempotent."""
        if self._fd is not None:
            if not handed_on:
                # Closing is not enough: a child that is being started may hold a copy for a moment.
                fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = None


class ActionOutput:
    """Writes an action's output; drops it beyond 10 MB and sets `truncated`."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")
        self._left = _MOST_BYTES - self._file.tell()
        self.lines = 0
        self.truncated = False

    def write(self, line: OutputLine) -> None:
        """Write one line; other processes can read it when this returns."""
        content = msgspec.json.encode(line) + b"\n"
        if self.truncated or len(content) > self._left:
            self.truncated = True
            return
        self._left -= len(content)
        self.lines += 1
        self._file.write(content)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class ActionRegistry:
    """All actions of one state directory; safe to use from several processes."""

    def __init__(self, home: Path) -> None:
        self.directory = home / "actions"

    def make(self) -> ActionLock:
        """Make the directory of a new action, owned by the caller; `put` makes it visible to others."""
        action = new_id("action")
        place = self.directory / action
        make_private(self.directory)
        place.mkdir(mode=0o700)
        held = self.hold(action)
        if held is None:
            raise InfrastructureError(f"the lock of action {action!r} is taken", code="action_lock")
        return held

    def put(self, place: ActionLocation) -> None:
        """Record the position of the action's lines; from now on it is listed. Sweeps old directories."""
        target = self.directory / place.action / _RECORD
        part = target.with_suffix(".part")  # renamed, so that a reader never sees half of it
        part.write_bytes(msgspec.json.encode(place))
        part.rename(target)
        # Remove the oldest beyond the limit, and incomplete ones; their lines stay in the log.
        known = self.ids()
        old = []
        for path in self.directory.iterdir():
            with contextlib.suppress(OSError):  # another process has swept it
                if time.time() - path.stat().st_mtime > _FRESH_SECONDS:
                    old.append(path.name)
        for action in (*known[:-_KEPT], *(set(old) - set(known))):
            if not self.live(action):
                shutil.rmtree(self.directory / action, ignore_errors=True)

    def get(self, action: str) -> ActionLocation:
        """Return the position of an action's lines, by its complete id. Raises `NotFoundError`."""
        try:
            return decode_as((self.directory / action / _RECORD).read_bytes(), ActionLocation)
        except (OSError, msgspec.MsgspecError) as problem:
            raise self._unknown(action) from problem

    def find(self, name: str) -> str:
        """Return the id that equals `name`, or begins or ends with it, or the newest for `last`.

        Raises `NotFoundError`, `UsageError` (`ambiguous`).
        """
        known = self.ids()
        wanted = name.strip().lower()
        if wanted == "last" and known:
            return known[-1]
        found = [each for each in known if each.startswith((wanted, f"x-{wanted}")) or each.endswith(wanted)]
        if wanted in known:
            return wanted
        if not wanted or not found:
            raise self._unknown(name)
        if len(found) > 1:
            raise UsageError(
                f"{name!r} matches {len(found)} actions",
                code="ambiguous",
                hint=f"type more of the id: {', '.join(found[-8:])}",
            )
        return found[0]

    def ids(self) -> list[str]:
        """Return all actions, the oldest first."""
        if not self.directory.is_dir():
            return []
        return sorted(path.parent.name for path in self.directory.glob(f"x-*/{_RECORD}"))

    def hold(self, action: str) -> ActionLock | None:
        """Own an action; return `None` if another process owns it."""
        fd = os.open(self.directory / action / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if try_lock(fd):
            return ActionLock(action, fd)
        os.close(fd)
        return None

    def take_over(self, action: str, fd: int) -> ActionLock:
        """Own an action by the locked descriptor passed from another process."""
        os.set_inheritable(fd, False)
        return ActionLock(action, fd)

    def live(self, action: str) -> bool:
        """Return whether the process that owns an action lives."""
        return is_locked(self.directory / action / _LOCK)

    def ask_cancel(self, action: str) -> None:
        """Ask the owner to end the action."""
        (self.directory / action / _CANCEL).touch()

    def cancel_asked(self, action: str) -> bool:
        """Return whether the action was asked to end."""
        return (self.directory / action / _CANCEL).exists()

    def output(self, action: str) -> ActionOutput:
        """Open the output of an action for writing."""
        return ActionOutput(self.directory / action / _OUTPUT)

    def read(self, action: str, offset: int = 0) -> tuple[list[OutputLine], int]:
        """Return the complete lines from a byte offset, and the offset to continue at."""
        try:
            with (self.directory / action / _OUTPUT).open("rb") as file:
                file.seek(offset)
                content = file.read()
        except FileNotFoundError:
            return [], offset
        # The last line may be half written: it is read the next time.
        whole = content[: content.rfind(b"\n") + 1]
        found = []
        for line in whole.splitlines():
            with contextlib.suppress(msgspec.MsgspecError):
                found.append(decode_as(line, OutputLine))
        return found, offset + len(whole)

    def _unknown(self, name: str) -> NotFoundError:
        return NotFoundError(f"there is no action {name!r}", hint=nearest(name, self.ids()[-8:]))
