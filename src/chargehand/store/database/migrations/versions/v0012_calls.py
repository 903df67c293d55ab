"""Calls to models, found among all lines."""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Make the index."""
    op.execute("CREATE INDEX events_of_models ON events (position) WHERE type = 'model.called'")
