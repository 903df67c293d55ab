"""Liveness of workers on one machine: a worker holds a locked file as long as it lives.

A lock that nobody holds belongs to a dead process, at once and without time-outs; see flock(2).
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import msgspec
from msgspec import Struct

from chargehand.core.codec import decode_as
from chargehand.core.errors import InfrastructureError
from chargehand.core.ids import new_id
from chargehand.durable._lock_files import FRESH, create_locked, is_locked, remove_abandoned, try_lock
from chargehand.durable.directories import make_private

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_AWAY_SECONDS = 10.0
_STDERR = 2
# A `command` works on what a person named and ends with it; a `worker` takes whatever can be worked on.
Role = Literal["command", "worker"]


class Member(Struct, frozen=True, kw_only=True):
    """One living worker; `id` is unique per start of a process."""

    id: str
    role: Role
    pid: int
    version: str


class Membership(Protocol):
    """A process' own place among the workers; `lost` says that the others take it for dead, for good."""

    id: str

    @property
    def lost(self) -> bool:
        """Whether this worker was given up."""
        ...

    def fileno(self) -> int:
        """Return a descriptor that keeps this worker alive to the others as long as any process has it open."""
        ...

    def leave(self) -> None:
        """Stop being alive to the others; idempotent."""
        ...


class Workers(Protocol):
    """Who is alive; the contract of every kind of liveness.

    A worker that `live` calls dead does no more harm: it is gone, or it learns by `on_lost` that it was given up.
    """

    def join(self, role: Role, *, on_lost: Callable[[], None]) -> Membership:
        """Be alive under a new id; `on_lost`, from any thread, says that the others take this one for dead."""
        ...

    def live(self, worker: str) -> bool:
        """Tell whether a worker is alive right now."""
        ...

    def gone(self, worker: str) -> bool:
        """Tell whether it is known that no process of a dead worker can still do anything."""
        ...

    def members(self) -> tuple[Member, ...]:
        """Return the living workers."""
        ...

    def sweep(self) -> tuple[str, ...]:
        """Remove what dead workers left, and return their ids."""
        ...


class Roster(Protocol):
    """Who is alive, for those who only read."""

    def live(self, worker: str) -> bool:
        """Tell whether a worker is alive right now."""
        ...

    def members(self) -> tuple[Member, ...]:
        """Return the living workers."""
        ...


class WatchedWorkers:
    """Who is alive, for those who only read: while the shared database is away, by this directory's locks.

    Nothing may be taken over by what it says: workers on other machines then count as dead.
    """

    def __init__(self, workers: Workers, local: LocalWorkers) -> None:
        self._workers = workers
        self._local = local
        self._away_until = 0.0

    def live(self, worker: str) -> bool:
        """Tell whether a worker is alive right now."""
        return self._ask(lambda workers: workers.live(worker))

    def members(self) -> tuple[Member, ...]:
        """Return the living workers."""
        return self._ask(lambda workers: workers.members())

    def _ask(self, question: Callable[[Workers], T]) -> T:
        if time.monotonic() >= self._away_until:
            try:
                return question(self._workers)
            except InfrastructureError as error:
                # One connection after the other would wait for each worker that is asked about.
                if self._away_until == 0.0:
                    _LOG.warning("%s; workers on other machines cannot be seen", error.message)
                self._away_until = time.monotonic() + _AWAY_SECONDS
        return question(self._local)


class LocalMembership:
    """A locked file of this process."""

    lost = False

    def __init__(self, id: str, path: Path, fd: int) -> None:
        self.id = id
        self._path = path
        self._fd: int | None = fd

    def fileno(self) -> int:
        """Return the descriptor of the locked file; raises `ValueError` after `leave`."""
        if self._fd is None:
            raise ValueError(f"worker {self.id!r} has left")
        return self._fd

    def leave(self) -> None:
        """Remove what is of no use any more, then the file, and let go of its lock."""
        if self._fd is not None:
            shutil.rmtree(_scratch(self._path), ignore_errors=True)
            self._path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = None


class LocalWorkers:
    """The workers of one state directory on one machine."""

    def __init__(self, home: Path, *, version: str) -> None:
        self.directory = home / "workers"
        self._worked = home / "last-worked"
        self._version = version

    def join(self, role: Role, *, on_lost: Callable[[], None] | None = None) -> LocalMembership:
        """Lock a file of our own; a lock cannot be lost, so `on_lost` is never called."""
        make_private(self.directory)
        member = Member(id=new_id("worker"), role=role, pid=os.getpid(), version=self._version)
        fd = create_locked(self._lock(member.id), msgspec.json.encode(member))
        return LocalMembership(member.id, self._lock(member.id), fd)

    def live(self, worker: str) -> bool:
        """Tell whether the process that locked the worker's file still lives."""
        return is_locked(self._lock(worker))

    def gone(self, worker: str) -> bool:
        """Tell whether nobody has the worker's file locked: neither it nor a launcher of its sandboxes."""
        # The launcher of its sandboxes inherits the descriptor, so the next holder of its missions never shares a
        # workspace with a survivor.
        return not self.live(worker)

    def members(self) -> tuple[Member, ...]:
        """Return the living workers, the longest living first."""
        found = []
        for path in self._locks():
            if is_locked(path):
                with contextlib.suppress(OSError, msgspec.MsgspecError):  # it leaves just now
                    found.append(decode_as(path.read_bytes(), Member))
        return tuple(found)

    def sweep(self) -> tuple[str, ...]:
        """Remove the files and sockets of dead workers, and return their ids."""
        if not self.directory.is_dir():
            return ()
        dead = tuple(path.stem for path in self._locks() if not is_locked(path))
        for worker in dead:
            self.socket(worker).unlink(missing_ok=True)
            shutil.rmtree(self.scratch(worker), ignore_errors=True)
            self._lock(worker).unlink(missing_ok=True)  # last: what is left by a crash of ours is found again
        for fresh in self.directory.glob(f"{FRESH}*"):
            remove_abandoned(fresh)
        return dead

    def last_worked(self) -> datetime | None:
        """Return when a worker of this directory was last at work, `None` where none ever was."""
        try:
            return datetime.fromtimestamp(self._worked.stat().st_mtime, UTC)
        except FileNotFoundError:
            return None

    def note_work(self, now: datetime) -> None:
        """Note that a worker of this directory, which is there, is at work now."""
        self._worked.touch(mode=0o600)
        os.utime(self._worked, (now.timestamp(), now.timestamp()))

    def socket(self, worker: str) -> Path:
        """Return where a worker takes orders."""
        return self.directory / f"{worker}.sock"

    def scratch(self, worker: str) -> Path:
        """Return a directory, to be made when needed, for what is of no use once the worker is gone."""
        return _scratch(self._lock(worker))

    def _lock(self, worker: str) -> Path:
        return self.directory / f"{worker}.lock"

    def _locks(self) -> list[Path]:
        return sorted(self.directory.glob("k-*.lock"))


def begin_start(log: int) -> bool:
    """Say by the open log file that a worker will inherit that it is being started; `False` if one is already."""
    return try_lock(log)


def end_start(path: Path) -> None:
    """Say for a worker that has joined that its start is over, if its stderr is the log file at `path`.

    Sandboxes inherit the file as well: they must not make the start last until they end.
    """
    with contextlib.suppress(OSError):  # there is no log, or stderr is closed: it was started otherwise
        if os.path.samestat(os.stat(path), os.fstat(_STDERR)):
            fcntl.flock(_STDERR, fcntl.LOCK_UN)


def _scratch(lock: Path) -> Path:
    return lock.with_suffix(".tmp")
