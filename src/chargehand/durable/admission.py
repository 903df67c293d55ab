"""Admission to a machine-wide concurrency limit, in the order of arrival.

A place is a file that its holder has locked (flock(2)): that of a dead process is free at once. A waiter has a
locked file too, and its name gives the position in the queue. Only the first waiter tries the places, so they are
assigned in order without a central process.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

from chargehand.durable._lock_files import FRESH, create_locked, remove_abandoned, try_lock
from chargehand.durable.directories import make_private

_TICKET = ".wait"
# A waiter that has not polled for this long (a stopped process, say) is skipped until it polls again.
_SILENT_SECONDS = 5.0
# There is no wake-up: the first in the queue polls often, the others only need to notice that they are first.
_FIRST_POLL_SECONDS = 0.1
_OTHERS_POLL_SECONDS = 0.5


class Gate(Protocol):
    """May pause a waiter: it keeps its position in the queue, and lets the others pass."""

    @property
    def paused(self) -> bool:
        """Whether nothing may begin now."""
        ...

    async def may_go_on(self) -> None:
        """Wait while `paused`."""
        ...


class Ticket:
    """A position in the queue, until `leave`: urgent ones before the others, each in order of arrival."""

    def __init__(self, directory: Path, *, urgent: bool) -> None:
        make_private(directory)
        # Work that a person waits for comes before detached work. Uses the kernel's clock since boot: no waiter
        # outlives it, and no process can set it.
        order = f"{0 if urgent else 1}-{time.monotonic_ns():020d}-{secrets.token_hex(4)}"
        self._directory = directory
        self._path = directory / f"{order}{_TICKET}"
        self._fd: int | None = create_locked(self._path)

    def before(self) -> int:
        """Return the number of living, polling waiters before this one; remove dead ones."""
        before = 0
        for path in self._directory.iterdir():
            if path.name.endswith(_TICKET):
                before += path.name < self._path.name and _waits(path)
            elif path.name.startswith(FRESH):
                remove_abandoned(path)
        return before

    def take(self, places: int) -> int | None:
        """Return the locked file of a free place if this one is the first in the queue, else `None`."""
        if self._fd is None:
            raise ValueError("a ticket that was handed in takes no place")
        os.utime(self._fd)
        if self.before():
            return None
        for number in range(places):
            path = self._directory / f"place-{number}"
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if try_lock(fd):
                return fd
            os.close(fd)
        return None

    def stand_aside(self) -> None:
        """Let the others pass until the next `take`."""
        if self._fd is not None:
            os.utime(self._fd, (0, 0))

    def leave(self) -> None:
        """Stop waiting; idempotent."""
        if self._fd is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = None


class Place:
    """A place of a limit that its holder may give up and take again, until `leave`; see `ConcurrencyLimit`."""

    def __init__(self, directory: Path, *, places: int, urgent: bool) -> None:
        self._directory = directory
        self._places = places
        self._urgent = urgent
        self._held: int | None = None
        self._left = False

    async def take(self, *, gate: Gate | None = None, on_wait: Callable[[int], None] | None = None) -> None:
        """Wait for a turn and hold the place; each time at the end of the queue.

        If no place is free at once, `on_wait` is called once with the number of waiters before this one; while
        `gate` is paused nothing is taken. Raises `OSError` if the directory cannot be written.
        """
        if self._left or self._held is not None:
            return
        ticket = Ticket(self._directory, urgent=self._urgent)
        try:
            while not self._left:
                if gate is not None and gate.paused:
                    ticket.stand_aside()
                    await gate.may_go_on()
                self._held = ticket.take(self._places)
                if self._held is not None:
                    return
                before = ticket.before()
                if on_wait is not None:
                    on_wait(before)
                    on_wait = None
                await asyncio.sleep(_OTHERS_POLL_SECONDS if before else _FIRST_POLL_SECONDS)
        finally:
            ticket.leave()

    def take_now(self) -> bool:
        """Hold the place if it is free and no one waits for it; return whether it is held."""
        ticket = Ticket(self._directory, urgent=self._urgent)
        try:
            self._held = ticket.take(self._places)
        finally:
            ticket.leave()
        return self._held is not None

    def give_up(self) -> None:
        """Release the place to the next in the queue; idempotent."""
        if self._held is not None:
            # Unlocked, not only closed: a process that is being started may hold a copy for a moment.
            fcntl.flock(self._held, fcntl.LOCK_UN)
            os.close(self._held)
            self._held = None

    def leave(self) -> None:
        """Release the place for good: a pending `take` takes nothing."""
        self._left = True
        self.give_up()


class ConcurrencyLimit:
    """The places of one name; `places` is the number that this process assumes, at least 1."""

    def __init__(self, directory: Path, *, places: int) -> None:
        self.places = max(1, places)
        self._directory = directory

    def new_place(self, *, urgent: bool = False) -> Place:
        """Return a place that is not taken yet; urgent ones come before the others."""
        return Place(self._directory, places=self.places, urgent=urgent)

    @contextlib.asynccontextmanager
    async def place(
        self, *, urgent: bool = False, gate: Gate | None = None, on_wait: Callable[[int], None] | None = None
    ) -> AsyncIterator[None]:
        """Hold a place for the block, waiting for a turn as `Place.take` does."""
        place = self.new_place(urgent=urgent)
        await place.take(gate=gate, on_wait=on_wait)
        try:
            yield
        finally:
            place.leave()


def _waits(path: Path) -> bool:
    """Return whether a living process waits with this ticket and polled recently."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        if try_lock(fd, fcntl.LOCK_SH):
            path.unlink(missing_ok=True)  # its name is never used again
            return False
        return time.time() - os.fstat(fd).st_mtime < _SILENT_SECONDS
    finally:
        os.close(fd)
