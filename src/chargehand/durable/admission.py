"""Admission to a machine-wide concurrency limit, in the order of arrival.

A place is a file that its holder has locked (flock(2)): that of a dead process is free at once. Whoever waits has
a locked file too, whose name says where it stands in line; the first in line alone tries the places, so they are
given in order without anybody who gives them.
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
# Whoever waits and has not polled for so long (a stopped process, say) is passed over until it polls again.
_SILENT_SECONDS = 5.0
# Nobody is woken: the first in line polls often, the others only have to notice that they have become first.
_FIRST_POLL_SECONDS = 0.1
_OTHERS_POLL_SECONDS = 0.5


class Gate(Protocol):
    """What may stop one who waits: it keeps its place in line, and lets the others pass."""

    @property
    def paused(self) -> bool:
        """Whether nothing may begin now."""
        ...

    async def may_go_on(self) -> None:
        """Wait while `paused`."""
        ...


class Ticket:
    """A place in the line, until `leave`: the urgent ones before the others, each in the order they came."""

    def __init__(self, directory: Path, *, urgent: bool) -> None:
        make_private(directory)
        # What a person waits for comes before detached work.
        # The kernel's clock since it started: nobody who waits outlives that, and nobody can set it.
        order = f"{0 if urgent else 1}-{time.monotonic_ns():020d}-{secrets.token_hex(4)}"
        self._directory = directory
        self._path = directory / f"{order}{_TICKET}"
        self._fd: int | None = create_locked(self._path)

    def before(self) -> int:
        """Return how many that still live and poll are in line before this one; the dead are removed."""
        before = 0
        for path in self._directory.iterdir():
            if path.name.endswith(_TICKET):
                before += path.name < self._path.name and _waits(path)
            elif path.name.startswith(FRESH):
                remove_abandoned(path)
        return before

    def take(self, places: int) -> int | None:
        """Return the locked file of a free place where this one is the first in line, else `None`."""
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
    """A place of a limit for one that may give it up and take it again, until `leave`; see `ConcurrencyLimit`."""

    def __init__(self, directory: Path, *, places: int, urgent: bool) -> None:
        self._directory = directory
        self._places = places
        self._urgent = urgent
        self._held: int | None = None
        self._left = False

    async def take(self, *, gate: Gate | None = None, on_wait: Callable[[int], None] | None = None) -> None:
        """Wait for one's turn and hold the place; each time at the end of the line.

        `on_wait` is told once, where there is none at once, how many are in line before; while `gate` is paused
        nothing is taken. Raises `OSError` where the directory cannot be written.
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
        """Hold the place where it is free and nobody waits for it; tell whether it is held."""
        ticket = Ticket(self._directory, urgent=self._urgent)
        try:
            self._held = ticket.take(self._places)
        finally:
            ticket.leave()
        return self._held is not None

    def give_up(self) -> None:
        """Let the next in line have the place; idempotent."""
        if self._held is not None:
            # Unlocked, not only closed: a process that is being started may hold a copy for a moment.
            fcntl.flock(self._held, fcntl.LOCK_UN)
            os.close(self._held)
            self._held = None

    def leave(self) -> None:
        """Give the place up for good: whoever still waits to take it again takes nothing."""
        self._left = True
        self.give_up()


class ConcurrencyLimit:
    """The places of one name; `places` is how many this process counts with, at least 1."""

    def __init__(self, directory: Path, *, places: int) -> None:
        self.places = max(1, places)
        self._directory = directory

    def new_place(self, *, urgent: bool = False) -> Place:
        """Return a place that is not taken yet; the urgent come before the others."""
        return Place(self._directory, places=self.places, urgent=urgent)

    @contextlib.asynccontextmanager
    async def place(
        self, *, urgent: bool = False, gate: Gate | None = None, on_wait: Callable[[int], None] | None = None
    ) -> AsyncIterator[None]:
        """Hold a place for the block, once it is this one's turn; as `Place.take` does."""
        place = self.new_place(urgent=urgent)
        await place.take(gate=gate, on_wait=on_wait)
        try:
            yield
        finally:
            place.leave()


def _waits(path: Path) -> bool:
    """Tell whether somebody alive waits with this ticket and polled lately."""
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
