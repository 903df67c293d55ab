"""One row per mission for lists and counts, and one order over the events of all missions.

Triggers maintain both for the previous program version, which may still run while this one changes the store: its
lines get their positions, and the rows of the missions it wrote are marked (`form` 0) to be rebuilt.
"""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"

_STATEMENTS = (
    "ALTER TABLE events ADD COLUMN position INTEGER",
    # A clock may have gone backwards: within a mission the order is that of the lines, regardless of their times.
    """
    UPDATE events SET position = numbered.position
    FROM (
        SELECT mission, seq, row_number() OVER (ORDER BY moment, mission, seq) AS position
        FROM (SELECT mission, seq, max(time) OVER (PARTITION BY mission ORDER BY seq) AS moment FROM events)
    ) AS numbered
    WHERE events.mission = numbered.mission AND events.seq = numbered.seq
    """,
    "CREATE UNIQUE INDEX events_by_position ON events (position)",
    """CREATE TABLE mission_summaries (
    mission TEXT NOT NULL,
    project TEXT NOT NULL,
    user TEXT NOT NULL,
    created TEXT NOT NULL,
    status TEXT NOT NULL,
    status_unheld TEXT NOT NULL,
    form INTEGER NOT NULL,
    summary BLOB NOT NULL,
    measures BLOB NOT NULL,
    PRIMARY KEY (mission)
)""",
    "CREATE INDEX summaries_by_project ON mission_summaries (project, created, mission)",
    "CREATE INDEX summaries_by_form ON mission_summaries (form)",
    """CREATE TABLE mission_calls (
    mission TEXT NOT NULL,
    call TEXT NOT NULL,
    PRIMARY KEY (mission, call)
) WITHOUT ROWID""",
    """CREATE TRIGGER event_appended AFTER INSERT ON events WHEN NEW.position IS NULL BEGIN
    UPDATE events SET position = (SELECT coalesce(max(position), 0) + 1 FROM events)
        WHERE mission = NEW.mission AND seq = NEW.seq;
    INSERT INTO mission_summaries VALUES (NEW.mission, '', '', '', '', '', 0, x'', x'')
        ON CONFLICT (mission) DO UPDATE SET form = 0;
END""",
    """CREATE TRIGGER event_changed AFTER UPDATE OF mission, seq, time, type, payload ON events BEGIN
    UPDATE mission_summaries SET form = 0, summary = x'', measures = x''
        WHERE mission IN (OLD.mission, NEW.mission);
END""",
    """CREATE TRIGGER event_removed AFTER DELETE ON events BEGIN
    UPDATE mission_summaries SET form = 0, summary = x'', measures = x'' WHERE mission = OLD.mission;
END""",
    """INSERT INTO mission_summaries
    SELECT id, project, '', created, '', '', 0, x'', x'' FROM missions WHERE id <> project""",
)


def upgrade() -> None:
    """Number the events and mark every mission's row to be built; the migrating program builds them."""
    for statement in _STATEMENTS:
        op.execute(statement)
