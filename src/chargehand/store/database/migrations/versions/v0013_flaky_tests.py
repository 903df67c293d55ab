"""Known flaky tests."""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Create the table."""
    op.execute(
        """CREATE TABLE flaky_tests (
    project TEXT NOT NULL,
    check_name TEXT NOT NULL,
    test TEXT NOT NULL,
    runs INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    time TEXT NOT NULL,
    PRIMARY KEY (project, check_name, test)
)"""
    )
