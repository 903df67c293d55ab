"""Alerts that are raised and that were, and the memos of those who follow the lines of all logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from chargehand.core.codec import convert_to
from chargehand.core.records import Alert
from chargehand.store.chain import is_moment
from chargehand.store.database.connection import Database, Transaction

_COLUMNS = 'rule, subject, raised, last, value, "limit", count, told, told_count, ended'
# Of alerts that ended the newest are kept.
_KEPT = 1000


class FollowerMemo(Struct, frozen=True):
    """What a follower noted for the next time: bytes of its own, and which writing that was."""

    revision: int
    content: bytes


class Followers:
    """Memos of those who follow all lines, by name; of two that write at once, the second one is refused."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def load(self, name: str) -> FollowerMemo:
        """Return a memo; an empty one of revision 0 where there is none. Raises `StoreError`."""
        with self._database.read() as connection:
            row = connection.execute("SELECT revision, memo FROM followers WHERE name = ?", (name,)).fetchone()
        if row is None:
            return FollowerMemo(0, b"")
        # Of a damaged file: a memo that cannot be read is one that says nothing.
        return FollowerMemo(row[0], row[1] if isinstance(row[1], bytes) else b"")

    def save(self, name: str, memo: FollowerMemo) -> bool:
        """Put a memo in the place of the one of its revision; `False` where another one was written since."""
        with self._database.write() as connection:
            return _put_memo(connection, name, memo)


class Alerts:
    """The alerts that one follower raises and ends, each change together with its memo."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def raised(self) -> tuple[Alert, ...]:
        """Return the alerts that are raised, the oldest first. Raises `StoreError`."""
        return self._select("WHERE ended = '' ORDER BY raised, rule, subject", ())

    def ended(self, limit: int) -> tuple[Alert, ...]:
        """Return the alerts that ended, the newest first, at most `limit`. Raises `StoreError`."""
        return self._select("WHERE ended <> '' ORDER BY ended DESC, seq DESC LIMIT ?", (limit,))

    def save(self, follower: str, memo: FollowerMemo, alerts: Sequence[Alert]) -> bool:
        """Write alerts that changed, and the follower's memo, or nothing (`False`) as `Followers.save`."""
        with self._database.write() as connection:
            if not _put_memo(connection, follower, memo):
                return False
            for alert in alerts:
                key = (alert.rule, alert.subject)
                connection.execute("DELETE FROM alerts WHERE rule = ? AND subject = ? AND ended = ''", key)
                connection.execute(
                    f"INSERT INTO alerts (seq, {_COLUMNS}) VALUES"
                    " ((SELECT coalesce(max(seq), 0) + 1 FROM alerts), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    astuple(alert),
                )
            old = "SELECT seq FROM alerts WHERE ended <> '' ORDER BY ended DESC, seq DESC LIMIT -1 OFFSET ?"
            connection.execute(f"DELETE FROM alerts WHERE seq IN ({old})", (_KEPT,))
        return True

    def _select(self, where: str, values: tuple[Any, ...]) -> tuple[Alert, ...]:
        with self._database.read() as connection:
            rows = connection.execute(f"SELECT {_COLUMNS} FROM alerts {where}", values).fetchall()
        return tuple(alert for row in rows if (alert := _read_alert(row)) is not None)


def _read_alert(row: Sequence[Any]) -> Alert | None:
    """Return a row as an alert, `None` where no program of ours wrote it."""
    try:
        alert = convert_to(dict(zip(Alert.__struct_fields__, row, strict=True)), Alert)
    except msgspec.ValidationError:
        return None
    return alert if all(map(is_moment, (alert.raised, alert.last, alert.told))) else None


def _put_memo(connection: Transaction, name: str, memo: FollowerMemo) -> bool:
    if memo.revision == 0:
        connection.execute("INSERT OR IGNORE INTO followers VALUES (?, 0, x'')", (name,))
    written = connection.execute(
        "UPDATE followers SET revision = revision + 1, memo = ? WHERE name = ? AND revision = ?",
        (memo.content, name, memo.revision),
    )
    return written.rowcount == 1
