"""Current and past alerts, and the memos of followers of all logs."""

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
    """A follower's note for its next run: bytes in its own format, and their revision."""

    revision: int
    content: bytes


class Followers:
    """Memos of the followers of all lines, by name; of two concurrent writers, the second is refused."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def load(self, name: str) -> FollowerMemo:
        """Return a memo, or an empty one of revision 0 if it is missing. Raises `StoreError`."""
        with self._database.read() as connection:
            row = connection.execute("SELECT revision, memo FROM followers WHERE name = ?", (name,)).fetchone()
        if row is None:
            return FollowerMemo(0, b"")
        # In a damaged file: an unreadable memo counts as empty.
        return FollowerMemo(row[0], row[1] if isinstance(row[1], bytes) else b"")

    def save(self, name: str, memo: FollowerMemo) -> bool:
        """Replace the memo of that revision; return `False` if another one was written since."""
        with self._database.write() as connection:
            return _put_memo(connection, name, memo)


class Alerts:
    """The alerts that one follower raises and ends, each change together with its memo."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def raised(self) -> tuple[Alert, ...]:
        """Return the active alerts, oldest first. Raises `StoreError`."""
        return self._select("WHERE ended = '' ORDER BY raised, rule, subject", ())

    def ended(self, limit: int) -> tuple[Alert, ...]:
        """Return ended alerts, newest first, at most `limit`. Raises `StoreError`."""
        return self._select("WHERE ended <> '' ORDER BY ended DESC, seq DESC LIMIT ?", (limit,))

    def save(self, follower: str, memo: FollowerMemo, alerts: Sequence[Alert]) -> bool:
        """Write changed alerts and the follower's memo, or nothing (returning `False`) as in `Followers.save`."""
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
    """Return a row as an alert, or `None` if no program of ours wrote it."""
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
