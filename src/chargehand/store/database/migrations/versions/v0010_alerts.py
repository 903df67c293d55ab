"""Alerts, and the reading positions of followers of all lines."""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"

_STATEMENTS = (
    """CREATE TABLE alerts (
    seq INTEGER NOT NULL,
    rule TEXT NOT NULL,
    subject TEXT NOT NULL,
    raised TEXT NOT NULL,
    last TEXT NOT NULL,
    value REAL NOT NULL,
    "limit" REAL NOT NULL,
    count INTEGER NOT NULL,
    told TEXT NOT NULL,
    told_count INTEGER NOT NULL,
    ended TEXT NOT NULL,
    PRIMARY KEY (seq)
)""",
    "CREATE UNIQUE INDEX alerts_raised ON alerts (rule, subject) WHERE ended = ''",
    """CREATE TABLE followers (
    name TEXT NOT NULL,
    revision INTEGER NOT NULL,
    memo BLOB NOT NULL,
    PRIMARY KEY (name)
)""",
)


def upgrade() -> None:
    """Create the tables; followers begin with the next line."""
    for statement in _STATEMENTS:
        op.execute(statement)
