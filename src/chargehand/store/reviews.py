"""Notes that people take while they review the changes of missions."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from chargehand.core.clock import Clock
from chargehand.store.database.connection import Database


class ReviewRow(Struct, frozen=True, kw_only=True):
    """One person's notes on one mission: bytes in the writer's own format, and their revision, from 1 on."""

    user: str
    revision: int
    changed: str
    content: bytes


class Reviews:
    """The notes of all people; of two concurrent writers, the second is refused."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database, self._clock = database, clock

    def list(self, mission: str) -> tuple[ReviewRow, ...]:
        """Return the notes on a mission, newest first. Raises `StoreError`."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT user, revision, changed, content FROM reviews WHERE mission = ?"
                " ORDER BY changed DESC, user",
                (mission,),
            ).fetchall()
        return tuple(_read_review(row) for row in rows)

    def save(self, mission: str, user: str, *, revision: int, content: bytes) -> ReviewRow | None:
        """Replace the notes of `revision` (0 if there are no notes yet); `None` if others were written since.

        Raises `StoreError`.
        """
        changed = self._clock.now().isoformat(timespec="milliseconds")
        with self._database.write() as connection:
            if revision == 0:
                connection.execute("INSERT OR IGNORE INTO reviews VALUES (?, ?, 0, '', x'')", (mission, user))
            written = connection.execute(
                "UPDATE reviews SET revision = revision + 1, changed = ?, content = ?"
                " WHERE mission = ? AND user = ? AND revision = ? RETURNING user, revision, changed, content",
                (changed, content, mission, user, revision),
            ).fetchall()
        return _read_review(written[0]) if written else None


def _read_review(row: Any) -> ReviewRow:
    user, revision, changed, content = row
    # In a damaged file: unreadable notes count as empty.
    known = content if isinstance(content, bytes) else b""
    return ReviewRow(user=str(user), revision=int(revision), changed=str(changed), content=known)
