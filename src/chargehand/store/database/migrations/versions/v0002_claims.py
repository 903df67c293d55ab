"""The holder of a mission, its number of claims, and whether a worker may take it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the columns of a claim; missions that never finished may be taken."""
    op.add_column("missions", sa.Column("epoch", sa.Integer, nullable=False, server_default="0"))
    op.add_column("missions", sa.Column("owner", sa.Text))
    op.add_column("missions", sa.Column("runnable", sa.Integer, nullable=False, server_default="0"))
    taken = sa.text("runnable = 1 OR owner IS NOT NULL")
    op.create_index("missions_to_take", "missions", ["created"], sqlite_where=taken, postgresql_where=taken)
    op.execute(
        "UPDATE missions SET runnable = 1 WHERE NOT EXISTS"
        " (SELECT 1 FROM events WHERE events.mission = missions.id AND events.type = 'mission.finished')"
    )
