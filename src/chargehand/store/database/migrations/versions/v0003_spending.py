"""Reserves and costs of model calls, and the limits that were reported to a person."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "spending",
        sa.Column("call", sa.Text, primary_key=True),
        sa.Column("mission", sa.Text),
        sa.Column("attempt", sa.Text, nullable=False),
        sa.Column("day", sa.Text, nullable=False),
        sa.Column("reserved", sa.BigInteger, nullable=False),
        sa.Column("settled", sa.BigInteger),
        sa.Column("known", sa.Integer, nullable=False),
        sa.Column("time", sa.Text, nullable=False),
    )
    for column in ("mission", "attempt", "day"):
        op.create_index(f"spending_by_{column}", "spending", [column])
    op.create_table(
        "spending_alerts",
        sa.Column("scope", sa.Text, primary_key=True),
        sa.Column("subject", sa.Text, primary_key=True),
        sa.Column("limit_micro", sa.BigInteger, primary_key=True),
        sa.Column("time", sa.Text, nullable=False),
    )
