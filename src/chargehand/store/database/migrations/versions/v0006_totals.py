"""Amounts counted by limits, stored as sums: a call costs the same however many preceded it.

Triggers maintain them, so that calls of the previous program version, which may still run while this one changes
the store, are counted as well.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_BOOKED = "CASE WHEN {0}.known = 1 THEN {0}.settled ELSE {0}.reserved END"
# Rows without a user have a separate scope: an empty name could be a user.
_ADD = """
    INSERT INTO spending_totals (scope, subject, day, booked)
    SELECT 'attempt', {0}.attempt, '', {1}
    UNION ALL SELECT 'day', {0}.day, '', {1}
    UNION ALL SELECT 'user', {0}.user, {0}.day, {1} WHERE {0}.user IS NOT NULL
    UNION ALL SELECT 'nobody', '', {0}.day, {1} WHERE {0}.user IS NULL
    UNION ALL SELECT 'mission', {0}.mission, '', {1} WHERE {0}.mission IS NOT NULL
    UNION ALL SELECT 'task', {0}.task, '', {1} WHERE {0}.task IS NOT NULL
    ON CONFLICT (scope, subject, day) DO UPDATE SET booked = booked + excluded.booked;
"""


def upgrade() -> None:
    """Create the sums and their triggers; no query uses the other indexes any more."""
    op.create_table(
        "spending_totals",
        sa.Column("scope", sa.Text, primary_key=True),
        sa.Column("subject", sa.Text, primary_key=True),
        sa.Column("day", sa.Text, primary_key=True),
        sa.Column("booked", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    old, new = _BOOKED.format("OLD"), _BOOKED.format("NEW")
    op.execute(f"CREATE TRIGGER spending_added AFTER INSERT ON spending BEGIN {_ADD.format('NEW', new)} END")
    op.execute(
        f"CREATE TRIGGER spending_settled AFTER UPDATE OF known, settled, reserved ON spending WHEN {old} <> {new}"
        f" BEGIN {_ADD.format('NEW', f'{new} - {old}')} END"
    )
    op.execute(
        f"CREATE TRIGGER spending_removed AFTER DELETE ON spending BEGIN {_ADD.format('OLD', f'-({old})')} END"
    )
    _count_what_is_there()
    for column in ("mission", "task", "user", "day"):
        op.drop_index(f"spending_by_{column}", "spending")


def _count_what_is_there() -> None:
    booked = f"sum({_BOOKED.format('spending')})"
    rows = {
        "attempt": "attempt, ''",
        "day": "day, ''",
        "user": "user, day",
        "nobody": "'', day",
        "mission": "mission, ''",
        "task": "task, ''",
    }
    where = {"user": "user IS NOT NULL", "nobody": "user IS NULL"}
    where |= {scope: f"{scope} IS NOT NULL" for scope in ("mission", "task")}
    for scope, keys in rows.items():
        op.execute(
            f"INSERT INTO spending_totals (scope, subject, day, booked) SELECT '{scope}', {keys}, {booked}"
            f" FROM spending WHERE {where.get(scope, '1 = 1')} GROUP BY 2, 3"
        )
