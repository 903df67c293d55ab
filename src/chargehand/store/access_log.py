"""The log of actions on accounts, sessions and tokens; not part of the hash chain."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.clock import Clock
from chargehand.store.database.connection import Database, Transaction

AccessOutcome = Literal["done", "refused"]
# People without an account can cause refusals at will, and must not fill the disk; completed actions are kept for
# good. The bound applies per actor: refusals of an account push out no failed logins, whose actor is "".
_REFUSALS_KEPT = 10_000


class Actor(Struct, frozen=True, kw_only=True):
    """The user who acts, and the network address of the request ("" on this machine)."""

    user: str
    address: str = ""


class AccessRow(Struct, frozen=True, kw_only=True):
    """One line of the access log: actor, action (done or refused), subject, and address.

    `time` is ISO 8601 in UTC, `outcome` `done` or `refused`, `address` "" for this machine.
    """

    seq: int
    time: str
    actor: str
    action: str
    subject: str
    address: str
    outcome: str


class AccessLog:
    """The log of actions on accounts, sessions and tokens; not part of the hash chain."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def append(self, actor: Actor, action: str, subject: str, *, outcome: AccessOutcome = "done") -> None:
        """Add a line; of an actor's refusals the newest 10,000 are kept. Raises `StoreError`."""
        with self.change(actor) as change:
            change.note(action, subject, outcome=outcome)

    @contextmanager
    def change(self, actor: Actor) -> Iterator[AccessChange]:
        """Hold a transaction for a change and its lines; it is on disk at the end. Raises `StoreError`."""
        # Durable: a power cut must neither restore nor remove a right.
        with self._database.write(durable=True) as connection:
            yield AccessChange(connection, actor=actor, now=as_moment(self._clock.now()))

    def last(self) -> int:
        """Return the number of the newest completed action, 0 without one. Raises `StoreError`."""
        query = "SELECT seq FROM access_log WHERE outcome = 'done' ORDER BY seq DESC LIMIT 1"
        with self._database.read() as connection:
            row = connection.execute(query).fetchone()
        return 0 if row is None else int(row[0])

    def list(self, *, limit: int, before: int | None = None) -> tuple[AccessRow, ...]:
        """Return the newest lines, or those before a line, newest first. Raises `StoreError`."""
        query = """
            SELECT seq, time, actor, action, subject, address, outcome FROM access_log
            WHERE :before IS NULL OR seq < :before ORDER BY seq DESC LIMIT :limit
        """
        with self._database.read() as connection:
            rows = connection.execute(query, {"before": before, "limit": limit}).fetchall()
        return tuple(
            AccessRow(
                seq=seq, time=as_text(time), actor=as_text(actor), action=as_text(action),
                subject=as_text(subject), address=as_text(address), outcome=as_text(outcome),
            )
            for seq, time, actor, action, subject, address, outcome in rows
        )  # fmt: skip


class AccessChange:
    """One transaction: `execute` makes a change, `note` logs it."""

    def __init__(self, connection: Transaction, *, actor: Actor, now: str) -> None:
        self.execute = connection.execute
        self.now = now
        self._actor = actor

    def note(self, action: str, subject: str, *, outcome: AccessOutcome = "done") -> int:
        """Add a line to the access log and return its number."""
        actor = self._actor
        insert = (
            "INSERT INTO access_log (time, actor, action, subject, address, outcome) VALUES (?, ?, ?, ?, ?, ?)"
        )
        line = self.execute(insert, (self.now, actor.user, action, subject, actor.address, outcome)).lastrowid
        assert line is not None
        if outcome == "refused":
            which = "outcome = 'refused' AND actor = :actor"
            oldest = f"SELECT seq FROM access_log WHERE {which} ORDER BY seq DESC LIMIT 1 OFFSET :kept"
            remove = f"DELETE FROM access_log WHERE {which} AND seq <= ({oldest})"
            self.execute(remove, {"actor": actor.user, "kept": _REFUSALS_KEPT})
        return line

    def settle(self, line: int, action: str, subject: str) -> None:
        """Replace a refusal noted in advance by the actor's completed action, with the address of the refusal."""
        row = self.execute("DELETE FROM access_log WHERE seq = ? RETURNING address", (line,)).fetchone()
        if row is not None and not self._actor.address:
            self._actor = replace(self._actor, address=as_text(row[0]))
        # As a new line: whoever follows the log sees that an action was completed.
        self.note(action, subject)


def as_moment(time: datetime) -> str:
    """Format a time as all tables here store it: of one length and in UTC, so that text order is time order."""
    return time.isoformat(timespec="microseconds")


def as_text(kept: object) -> str:
    """Return a stored text, "" for anything else: a damaged file can hold values of any type."""
    return kept if isinstance(kept, str) else ""
