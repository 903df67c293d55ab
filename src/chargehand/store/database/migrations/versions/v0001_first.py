"""The first tables: missions and their events, projects, trust, verdicts, artifacts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create all tables of version 0001."""
    _log()
    _projects()
    _kept()


def _log() -> None:
    op.create_table(
        "missions",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("created", sa.Text, nullable=False),
        sa.Column("last_seq", sa.Integer, nullable=False),
        sa.Column("last_hash", sa.Text, nullable=False),
    )
    op.create_index("missions_by_project", "missions", ["project", "created"])
    op.create_table(
        "events",
        sa.Column("mission", sa.Text, sa.ForeignKey("missions.id"), primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("time", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("payload", sa.LargeBinary),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("prev", sa.Text, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "erasures",
        sa.Column("mission", sa.Text, primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("time", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["mission", "seq"], ["events.mission", "events.seq"]),
    )


def _projects() -> None:
    op.create_table(
        "projects",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("path", sa.LargeBinary, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("registered", sa.Text, nullable=False),
    )
    op.create_table(
        "trust",
        sa.Column("project", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, primary_key=True),
        sa.Column("identity", sa.Text, nullable=False),
        sa.Column("granted", sa.Text, nullable=False),
    )


def _kept() -> None:
    op.create_table(
        "verdicts",
        sa.Column("project", sa.Text, primary_key=True),
        sa.Column("tree", sa.Text, primary_key=True),
        sa.Column("plan_digest", sa.Text, primary_key=True),
        sa.Column("verdict", sa.LargeBinary, nullable=False),
        sa.Column("time", sa.Text, nullable=False),
    )
    op.create_table(
        "artifacts",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("mission", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("size", sa.Integer, nullable=False),
        sa.Column("time", sa.Text, nullable=False),
    )
    op.create_index("artifacts_by_mission", "artifacts", ["mission", "time"])
