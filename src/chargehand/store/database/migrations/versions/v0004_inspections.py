"""Results of inspections of changes, stored so that the same content is not read again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "inspections",
        sa.Column("project", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("entry", sa.LargeBinary, nullable=False),
        sa.Column("time", sa.Text, nullable=False),
    )
    op.create_index("inspections_by_time", "inspections", ["project", "time"])
