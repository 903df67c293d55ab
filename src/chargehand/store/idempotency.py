"""Requests with an idempotency key, and their answers: a repeated request is not executed again."""

from __future__ import annotations

from datetime import timedelta

from msgspec import Struct

from chargehand.core.clock import Clock
from chargehand.store.database.connection import Database, Transaction

# A key is known for a day; per person the newest 10,000 are kept. Answers are shorter than this, and fewer.
_AGE = timedelta(days=1)
_KEYS, _ANSWERS = 10_000, 500
_LONGEST = 64 * 1024
# Once per this many requests the old answers are removed.
_SWEEP = 100


class KnownRequest(Struct, frozen=True, kw_only=True):
    """A request whose key is already known: `asked` is its content, `status` (of HTTP) 0 until it is answered.

    `answer` is `None` if it was not kept: it held a secret, was too long, or newer answers replaced it.
    """

    asked: str
    status: int
    exit_code: str
    answer: bytes | None


class IdempotencyKeys:
    """The keys of one state directory; safe between processes."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database, self._clock = database, clock
        self._begun = 0

    def begin(self, name: str, *, user: str, asked: str) -> KnownRequest | None:
        """Note that a request begins and return `None`, or return the earlier request with its key.

        Raises `StoreError`, and then nothing is noted.
        """
        now = self._clock.now()
        oldest = (now - _AGE).isoformat()
        with self._database.write() as connection:
            if self._begun % _SWEEP == 0:
                _forget(connection, oldest, user)
            self._begun += 1
            row = connection.execute(
                "SELECT asked, status, exit_code, answer FROM keyed_requests WHERE name = ? AND begun >= ?",
                (name, oldest),
            ).fetchone()
            if row is not None:
                return KnownRequest(asked=row[0], status=row[1], exit_code=row[2], answer=row[3])
            values = (name, user, asked, now.isoformat())
            connection.execute("INSERT OR REPLACE INTO keyed_requests VALUES (?, ?, ?, ?, 0, '', NULL)", values)
        return None

    def finish(self, name: str, *, status: int, exit_code: str, answer: bytes | None) -> None:
        """Note the answer to a request. Raises `StoreError`."""
        kept = None if answer is None or len(answer) > _LONGEST else answer
        with self._database.write() as connection:
            connection.execute(
                "UPDATE keyed_requests SET status = ?, exit_code = ?, answer = ? WHERE name = ?",
                (status, exit_code, kept, name),
            )

    def drop_answers(self) -> None:
        """Remove all answers and keep the keys: an answer may repeat erased content. Raises `StoreError`."""
        with self._database.write() as connection:
            connection.execute("UPDATE keyed_requests SET answer = NULL")


def _forget(connection: Transaction, oldest: str, user: str) -> None:
    connection.execute("DELETE FROM keyed_requests WHERE begun < ?", (oldest,))
    newest = "SELECT name FROM keyed_requests WHERE user = ? ORDER BY begun DESC LIMIT -1 OFFSET ?"
    connection.execute(f"DELETE FROM keyed_requests WHERE name IN ({newest})", (user, _KEYS))
    connection.execute(f"UPDATE keyed_requests SET answer = NULL WHERE name IN ({newest})", (user, _ANSWERS))
