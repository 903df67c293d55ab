"""Missions that do the tasks of a coordinator, and which of them have news for it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the two columns; no existing mission is a task."""
    op.add_column("missions", sa.Column("parent", sa.Text))
    op.add_column("missions", sa.Column("news", sa.Integer, nullable=False, server_default="0"))
    tasks, news = sa.text("parent IS NOT NULL"), sa.text("news = 1")
    op.create_index("missions_by_parent", "missions", ["parent", "created"], sqlite_where=tasks)
    op.create_index("missions_with_news", "missions", ["created"], sqlite_where=news)
