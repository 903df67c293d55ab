"""The user who pays for a call, and the time to wake a mission that waits for quota."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the columns; they are empty in existing rows."""
    op.add_column("missions", sa.Column("wakes", sa.Text))
    asleep = sa.text("wakes IS NOT NULL AND runnable = 0")
    op.create_index("missions_to_wake", "missions", ["wakes"], sqlite_where=asleep)
    op.add_column("spending", sa.Column("task", sa.Text))
    op.add_column("spending", sa.Column("user", sa.Text))
    op.create_index("spending_by_task", "spending", ["task"], sqlite_where=sa.text("task IS NOT NULL"))
    op.create_index("spending_by_user", "spending", ["user", "day"])
