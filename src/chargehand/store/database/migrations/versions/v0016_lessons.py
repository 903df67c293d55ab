"""Lessons from earlier missions."""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"

_STATEMENTS = (
    """CREATE TABLE lessons (
    id TEXT NOT NULL,
    project TEXT NOT NULL,
    user TEXT NOT NULL,
    shared INTEGER NOT NULL,
    created TEXT NOT NULL,
    mission TEXT NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (id)
)""",
    "CREATE INDEX lessons_by_project ON lessons (project, user)",
    """CREATE TABLE lesson_uses (
    lesson TEXT NOT NULL,
    mission TEXT NOT NULL,
    shown INTEGER NOT NULL,
    green INTEGER,
    attempts INTEGER,
    cost_usd REAL,
    PRIMARY KEY (lesson, mission)
)""",
    "CREATE INDEX lesson_uses_by_mission ON lesson_uses (mission)",
)


def upgrade() -> None:
    """Create the tables; earlier missions left no lessons."""
    for statement in _STATEMENTS:
        op.execute(statement)
