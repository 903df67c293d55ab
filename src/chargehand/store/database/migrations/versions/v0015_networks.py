"""Versions of belief networks."""

from __future__ import annotations

from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Create the table; earlier stores have no networks of their own."""
    op.execute("""CREATE TABLE network_versions (
    name TEXT NOT NULL,
    number INTEGER NOT NULL,
    version TEXT NOT NULL,
    parent TEXT NOT NULL,
    content BLOB NOT NULL,
    author TEXT NOT NULL,
    created TEXT NOT NULL,
    PRIMARY KEY (name, number)
)""")
