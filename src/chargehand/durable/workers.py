"""Liveness of workers on one machine: a worker holds a locked file for its lifetime.

A lock without a holder belongs to a dead process, at once and without time-outs; see flock(2).
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
# A `command` works on what a person named and ends with it; a `worker` takes any available work.
Role = Literal["command", "worker"]


class Member(Struct, frozen=True, kw_only=True):
    """One living worker; `id` is unique per start of a process."""

    id: str
    role: Role
    pid: int
    version: str


class Membership(Protocol):
    """A process's membership among the workers; `lost` means that the others consider it dead, for good."""

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
    """The living workers; the contract of every kind of liveness.

    A worker that `live` calls dead can do no more harm: it is gone, or `on_lost` informs it that it was given up.
    """

    def join(self, role: Role, *, on_lost: Callable[[], None]) -> Membership:
        """Be alive under a new id; `on_lost`, from any thread, reports that the others consider this one dead."""
        ...

    def live(self, worker: str) -> bool:
        """Return whether a worker is alive right now."""
        ...

    def gone(self, worker: str) -> bool:
        """Return whether it is certain that no process of a dead worker can still do anything."""
        ...

    def members(self) -> tuple[Member, ...]:
        """Return the living workers."""
        ...

    def sweep(self) -> tuple[str, ...]:
        """Remove the remains of dead workers, and return their ids."""
        ...


class Roster(Protocol):
    """The living workers, for read-only use."""

    def live(self, worker: str) -> bool:
        """Return whether a worker is alive right now."""
        ...

    def members(self) -> tuple[Member, ...]:
        """Return the living workers."""
        ...


class WatchedWorkers:
    """The living workers, for read-only use; by this directory's locks while the shared database is away.

    Nothing may be taken over based on it: workers on other machines then count as dead.
    """

    def __init__(self, workers: Workers, local: LocalWorkers) -> None:
        self._workers = workers
        self._local = local
        self._away_until = 0.0

    def live(self, worker: str) -> bool:
        """Return whether a worker is alive right now."""
        return self._ask(lambda workers: workers.live(worker))

    def members(self) -> tuple[Member, ...]:
        """Return the living workers."""
        return self._ask(lambda workers: workers.members())

    def _ask(self, question: Callable[[Workers], T]) -> T:
        if time.monotonic() >= self._away_until:
            try:
                return question(self._workers)
            except InfrastructureError as error:
                # Otherwise each query would wait for a new connection.
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
        """Remove the scratch directory, then the file, and release its lock."""
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
        """Lock a new file of ours; a lock cannot be lost, so `on_lost` is never called."""
        make_private(self.directory)
        member = Member(id=new_id("worker"), role=role, pid=os.getpid(), version=self._version)
        fd = create_locked(self._lock(member.id), msgspec.json.encode(member))
        return LocalMembership(member.id, self._lock(member.id), fd)

    def live(self, worker: str) -> bool:
        """Return whether the process that locked the worker's file still lives."""
        return is_locked(self._lock(worker))

    def gone(self, worker: str) -> bool:
        """Return whether the worker's file is unlocked, by the worker and by the launcher of its sandboxes."""
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
            self._lock(worker).unlink(missing_ok=True)  # last: after a crash of ours the rest is found again
        for fresh in self.directory.glob(f"{FRESH}*"):
            remove_abandoned(fresh)
        return dead

    def last_worked(self) -> datetime | None:
        """Return when a worker of this directory last worked, `None` if no worker ever did."""
        try:
            return datetime.fromtimestamp(self._worked.stat().st_mtime, UTC)
        except FileNotFoundError:
            return None

    def note_work(self, now: datetime) -> None:
        """Record that a worker of this directory, which must exist, works now."""
        self._worked.touch(mode=0o600)
        os.utime(self._worked, (now.timestamp(), now.timestamp()))

    def socket(self, worker: str) -> Path:
        """Return the path at which a worker takes orders."""
        return self.directory / f"{worker}.sock"

    def scratch(self, worker: str) -> Path:
        """Return a directory, to be made when needed, for files that are useless after the worker is gone."""
        return _scratch(self._lock(worker))

    def _lock(self, worker: str) -> Path:
        return self.directory / f"{worker}.lock"

    def _locks(self) -> list[Path]:
        return sorted(self.directory.glob("k-*.lock"))


def begin_start(log: int) -> bool:
    """Mark, by the log file that a worker will inherit, that it is being started; `False` if one already is."""
    return try_lock(log)


def end_start(path: Path) -> None:
    """Mark the start of a worker as over after it joined, if its stderr is the log file at `path`.

    Sandboxes inherit the file as well: they must not prolong the start until they end.
    """
    with contextlib.suppress(OSError):  # the log is missing, or stderr is closed: it was started otherwise
        if os.path.samestat(os.stat(path), os.fstat(_STDERR)):
            fcntl.flock(_STDERR, fcntl.LOCK_UN)


def _scratch(lock: Path) -> Path:
    return lock.with_suffix(".tmp")
