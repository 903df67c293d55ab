"""Requests with idempotency keys and their answers, and people's notes from reviews of changes."""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"

_STATEMENTS = (
    """CREATE TABLE keyed_requests (
    name TEXT NOT NULL,
    user TEXT NOT NULL,
    asked TEXT NOT NULL,
    begun TEXT NOT NULL,
    status INTEGER NOT NULL,
    exit_code TEXT NOT NULL,
    answer BLOB,
    PRIMARY KEY (name)
)""",
    "CREATE INDEX keyed_requests_by_user ON keyed_requests (user, begun)",
    """CREATE TABLE reviews (
    mission TEXT NOT NULL,
    user TEXT NOT NULL,
    revision INTEGER NOT NULL,
    changed TEXT NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (mission, user)
)""",
)


def upgrade() -> None:
    """Create the tables."""
    for statement in _STATEMENTS:
        op.execute(statement)
