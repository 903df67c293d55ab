"""The tables as of the newest migration; SQL that both SQLite and PostgreSQL speak."""

from __future__ import annotations

import sqlalchemy as sa

VERSION = "0006"
"""The schema this program reads and writes: the newest file in `_migrations/versions`."""

metadata = sa.MetaData()

TAKEABLE = sa.text("runnable = 1 OR owner IS NOT NULL")
"""Missions that a worker may have to take: they should go on, or somebody held them and may have died."""

SLEEPING = sa.text("wakes IS NOT NULL AND runnable = 0")
"""Missions that wait for a moment and then go on by themselves."""

missions = sa.Table(
    "missions",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("project", sa.Text, nullable=False),
    sa.Column("created", sa.Text, nullable=False),
    sa.Column("last_seq", sa.Integer, nullable=False),
    sa.Column("last_hash", sa.Text, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False, server_default="0"),
    sa.Column("owner", sa.Text),
    sa.Column("runnable", sa.Integer, nullable=False, server_default="0"),
    sa.Column("wakes", sa.Text),  # ISO 8601 in UTC
    sa.Index("missions_by_project", "project", "created"),
    # Another dialect's condition would import that dialect, 0.1 s, in every command.
    sa.Index("missions_to_take", "created", sqlite_where=TAKEABLE),
    sa.Index("missions_to_wake", "wakes", sqlite_where=SLEEPING),
)

# Clustered by mission, so that reading one mission's log touches neighbouring pages only.
events = sa.Table(
    "events",
    metadata,
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

erasures = sa.Table(
    "erasures",
    metadata,
    sa.Column("mission", sa.Text, primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("time", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.ForeignKeyConstraint(["mission", "seq"], ["events.mission", "events.seq"]),
)

# A path is bytes on Linux: as text one that is not UTF-8 could not be kept.
projects = sa.Table(
    "projects",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("path", sa.LargeBinary, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("registered", sa.Text, nullable=False),
)

trust = sa.Table(
    "trust",
    metadata,
    sa.Column("project", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("identity", sa.Text, nullable=False),
    sa.Column("granted", sa.Text, nullable=False),
)

verdicts = sa.Table(
    "verdicts",
    metadata,
    sa.Column("project", sa.Text, primary_key=True),
    sa.Column("tree", sa.Text, primary_key=True),
    sa.Column("plan_digest", sa.Text, primary_key=True),
    sa.Column("verdict", sa.LargeBinary, nullable=False),
    sa.Column("time", sa.Text, nullable=False),
)

# A cache: entries are sealed by whoever made them, and none of them is missed.
inspections = sa.Table(
    "inspections",
    metadata,
    sa.Column("project", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("entry", sa.LargeBinary, nullable=False),
    sa.Column("time", sa.Text, nullable=False),
    sa.Index("inspections_by_time", "project", "time"),
)

artifacts = sa.Table(
    "artifacts",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("mission", sa.Text, primary_key=True),  # "" where no mission is meant
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("time", sa.Text, nullable=False),
    sa.Index("artifacts_by_mission", "mission", "time"),
)

# Money is whole millionths of a USD: sums of them are exact, and a limit is never passed by a rounding.
spending = sa.Table(
    "spending",
    metadata,
    sa.Column("call", sa.Text, primary_key=True),
    sa.Column("mission", sa.Text),  # none for a call that a person made by hand
    sa.Column("attempt", sa.Text, nullable=False),
    sa.Column("day", sa.Text, nullable=False),
    sa.Column("reserved", sa.BigInteger, nullable=False),
    sa.Column("settled", sa.BigInteger),
    sa.Column("known", sa.Integer, nullable=False),
    sa.Column("time", sa.Text, nullable=False),
    sa.Column("task", sa.Text),  # none where the mission has but one
    sa.Column("user", sa.Text),  # none in rows from before users were known
    sa.Index("spending_by_attempt", "attempt"),
)

# What is booked in `spending` by what limits count it for, kept by triggers; see its migration for the scopes.
spending_totals = sa.Table(
    "spending_totals",
    metadata,
    sa.Column("scope", sa.Text, primary_key=True),
    sa.Column("subject", sa.Text, primary_key=True),
    sa.Column("day", sa.Text, primary_key=True),  # "" where all days count
    sa.Column("booked", sa.BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

_BOOKED = "CASE WHEN {0}.known = 1 THEN {0}.settled ELSE {0}.reserved END"
# A user's row that names nobody has a scope of its own: an empty name is somebody.
_ADD = """
    INSERT INTO spending_totals (scope, subject, day, booked)
    SELECT 'attempt', {0}.attempt, '', {1}
    UNION ALL SELECT 'day', {0}.day, '', {1}
    UNION ALL SELECT 'user', {0}.user, {0}.day, {1} WHERE {0}.user IS NOT NULL
    UNION ALL SELECT 'nobody', '', {0}.day, {1} WHERE {0}.user IS NULL
    UNION ALL SELECT 'mission', {0}.mission, '', {1} WHERE {0}.mission IS NOT NULL
    UNION ALL SELECT 'task', {0}.task, '', {1} WHERE {0}.task IS NOT NULL
    ON CONFLICT (scope, subject, day) DO UPDATE SET booked = booked + excluded.booked;
"""


def _keep_totals(_: object, connection: sa.Connection, **_more: object) -> None:
    """Make the triggers that keep `spending_totals`, whatever program writes calls."""
    old, new = _BOOKED.format("OLD"), _BOOKED.format("NEW")
    changed = f"AFTER UPDATE OF known, settled, reserved ON spending WHEN {old} <> {new}"
    for name, when, added in (
        ("spending_added", "AFTER INSERT ON spending", _ADD.format("NEW", new)),
        ("spending_settled", changed, _ADD.format("NEW", f"{new} - {old}")),
        ("spending_removed", "AFTER DELETE ON spending", _ADD.format("OLD", f"-({old})")),
    ):
        connection.exec_driver_sql(f"CREATE TRIGGER {name} {when} BEGIN {added} END")


sa.event.listen(metadata, "after_create", _keep_totals)

spending_alerts = sa.Table(
    "spending_alerts",
    metadata,
    sa.Column("scope", sa.Text, primary_key=True),
    sa.Column("subject", sa.Text, primary_key=True),
    sa.Column("limit_micro", sa.BigInteger, primary_key=True),
    sa.Column("time", sa.Text, nullable=False),
)
