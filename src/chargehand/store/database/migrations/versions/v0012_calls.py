"""Model calls, indexed among all lines."""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Create the index."""
    op.execute("CREATE INDEX events_of_models ON events (position) WHERE type = 'model.called'")
