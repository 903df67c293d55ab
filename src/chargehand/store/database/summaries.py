"""The projected rows of missions: written together with their lines, read by all lists and counts.

A row equals the result of `fold` over the log. A row whose `form` is not `FORM` is stale: lines were erased,
changed or written by an older program; it is rebuilt from the log before it is used.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from chargehand.core.attempt_events import ModelCalled
from chargehand.core.codec import decode_as
from chargehand.core.events import Event, read_payload
from chargehand.core.fold import MEASURED, apply, measure, unheld_status
from chargehand.core.state import MissionMeasures, MissionSummary
from chargehand.store.chain import ChainLine, as_event
from chargehand.store.database.connection import Transaction, raw_columns

# The format of this program's rows: a higher number makes all earlier rows stale.
FORM = 4
# The same as `mentions`, in SQL; a stale or damaged row is checked after it is rebuilt.
_REQUEST = "CAST(json_extract(CAST(summary AS TEXT), '$.request.text') AS BLOB)"
_MENTIONS = (
    "(form <> :form OR instr(mission, :text) OR NOT json_valid(CAST(summary AS TEXT))"
    f" OR instr(casefold({_REQUEST}), :text))"
)
_PLACE = "(mission_summaries.created, mission)"
_CONDITIONS = {
    "project": "mission_summaries.project = :project",
    # A stale row may name no user, or another one: it is checked after it is rebuilt.
    "user": "(mission_summaries.user = :user OR form <> :form)",
    "since": "mission_summaries.created >= :since",
    "parent": "missions.parent = :parent",
    "text": _MENTIONS,
    "before": f"{_PLACE} < (SELECT created, id FROM missions WHERE id = :before)",
    "after": f"{_PLACE} > (SELECT created, id FROM missions WHERE id = :after)",
}
_LINES = f"""
    SELECT {raw_columns({"seq": "integer", "time": "text", "type": "text", "payload": "blob"})}
    FROM events WHERE mission = ? ORDER BY seq
"""
# A clock may have gone backwards: within a mission the order is that of the lines, regardless of their times.
NUMBER = """
    UPDATE events SET position = numbered.position
    FROM (
        SELECT mission, seq, row_number() OVER (ORDER BY moment, mission, seq) AS position
        FROM (SELECT mission, seq, max(time) OVER (PARTITION BY mission ORDER BY seq) AS moment FROM events)
    ) AS numbered
    WHERE events.mission = numbered.mission AND events.seq = numbered.seq
"""
_PUT = """
    INSERT INTO mission_summaries (mission, project, user, created, status, status_unheld, form, summary, measures)
    VALUES (:mission, :project, :user, :created, :status, :status_unheld, :form, :summary, :measures)
    ON CONFLICT (mission) DO UPDATE SET project = :project, user = :user, created = :created, status = :status,
        status_unheld = :status_unheld, form = :form, summary = :summary, measures = :measures
"""
_CHANGE = """
    UPDATE mission_summaries SET user = :user, status = :status, status_unheld = :status_unheld,
        summary = :summary, measures = coalesce(:measures, measures)
    WHERE mission = :mission
"""


def project(connection: Transaction, mission: str, lines: Iterable[Event]) -> None:
    """Update a mission's row with the lines that this transaction has just appended."""
    lines = tuple(lines)
    if lines[0].seq == 1:
        _put(connection, mission, *_fold(lines))
        return
    row = connection.execute(
        "SELECT summary FROM mission_summaries WHERE mission = ? AND form = ?", (mission, FORM)
    ).fetchone()
    summary = decode_summary(row[0]) if row else None
    if summary is None:
        refold(connection, mission)
        return
    # Only the calls in these lines: otherwise all calls ever counted would be read with every line.
    calls = {call.call for line in lines if isinstance(call := read_payload(line), ModelCalled)}
    known = "SELECT 1 FROM mission_calls WHERE mission = ? AND call = ?"
    summary.calls = {call for call in calls if connection.execute(known, (mission, call)).fetchone()}
    for line in lines:
        apply(summary, line)
    measures = None
    if any(line.type in MEASURED for line in lines):
        kept = connection.execute(
            "SELECT measures FROM mission_summaries WHERE mission = ?", (mission,)
        ).fetchone()
        measures = decode_measures(kept[0])
        if measures is None:
            refold(connection, mission)
            return
        for line in lines:
            measure(measures, line)
    _keep_calls(connection, mission, summary)
    content = None if measures is None else msgspec.json.encode(measures)
    connection.execute(_CHANGE, {**_columns(summary), "mission": mission, "measures": content})


def refold(connection: Transaction, mission: str) -> bool:
    """Rebuild a mission's row from its log; return whether it changed."""
    query = "SELECT form, status, status_unheld, summary, measures FROM mission_summaries WHERE mission = ?"
    before = connection.execute(query, (mission,)).fetchone()
    connection.execute("DELETE FROM mission_calls WHERE mission = ?", (mission,))
    summary, measures = fold_lines(connection, mission)
    _put(connection, mission, summary, measures)
    made = connection.execute(query, (mission,)).fetchone()
    return bool(before != made)


def refresh(connection: Transaction) -> None:
    """Rebuild all stale rows."""
    for mission in stale(connection):
        refold(connection, mission)


def renumber(connection: Transaction) -> bool:
    """Renumber the positions of all lines if some are missing or out of order; return whether that was so."""
    wrong = """
        SELECT 1 FROM
            (SELECT position, lag(position) OVER (PARTITION BY mission ORDER BY seq) AS before FROM events)
        WHERE position IS NULL OR before >= position LIMIT 1
    """
    if connection.execute(wrong).fetchone() is None:
        return False
    # NULL first: a unique index rejects values that are equal only for a moment.
    connection.execute("UPDATE events SET position = NULL")
    connection.execute(NUMBER)
    return True


def conditions(names: Iterable[str], *, statuses: int | None) -> list[str]:
    """Return a mission list's conditions for values of these names, and for `statuses` values `status0` …"""
    found = ["missions.id <> missions.project", *(_CONDITIONS[name] for name in names)]
    if statuses is not None:
        wanted = ", ".join(f":status{number}" for number in range(statuses))
        # The effective status is known only with the holder: every candidate is read, and filtered afterwards.
        found.append(f"(status_unheld IN ({wanted}) OR status IN ({wanted}) OR form <> :form)")
    return found


def mentions(told: MissionSummary, text: str) -> bool:
    """Return whether a case-folded text is in a mission's id or request."""
    return text in told.id or (told.request is not None and text in told.request.text.casefold())


def stale(connection: Transaction) -> list[str]:
    """Return the missions whose rows are stale or missing; projects' own logs have no rows."""
    rows = connection.execute(
        "SELECT id FROM missions LEFT JOIN mission_summaries ON mission = id WHERE missions.project <> id"
        " AND (form IS NOT :form OR mission_summaries.project <> missions.project"
        " OR mission_summaries.created <> missions.created)",
        {"form": FORM},
    )
    return [mission for (mission,) in rows.fetchall()]


def fold_lines(connection: Transaction, mission: str) -> tuple[MissionSummary, MissionMeasures]:
    """Fold a mission's log; a damaged line counts as unreadable."""
    lines: list[Event] = []
    for seq, time, name, payload in connection.execute(_LINES, (mission,)):
        before = lines[-1].time if lines else "1970-01-01T00:00:00+00:00"
        # Bytes that are not text become characters that no type of ours has: such a line is only counted.
        line = ChainLine(mission=mission.encode(), seq=seq, time=time, type=name, payload=payload)
        lines.append(as_event(line, before=before))
    return _fold(lines)


def decode_summary(content: object) -> MissionSummary | None:
    """Decode a stored summary; return `None` if it is damaged."""
    try:
        return decode_as(content, MissionSummary) if isinstance(content, bytes) else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def decode_measures(content: object) -> MissionMeasures | None:
    """Decode stored measures; return `None` if they are damaged."""
    try:
        return decode_as(content, MissionMeasures) if isinstance(content, bytes) else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _fold(lines: Iterable[Event]) -> tuple[MissionSummary, MissionMeasures]:
    summary, measures = MissionSummary(), MissionMeasures()
    for line in lines:
        apply(summary, line)
        if line.type in MEASURED:
            measure(measures, line)
    return summary, measures


def _put(connection: Transaction, mission: str, summary: MissionSummary, measures: MissionMeasures) -> None:
    _keep_calls(connection, mission, summary)
    # From the mission's row, which damage to its lines does not change: lists are in its order.
    own = connection.execute("SELECT created, project FROM missions WHERE id = ?", (mission,)).fetchone()
    if own is None or not summary.created:  # a changed id: it has no lines, or no row
        return
    row = {**_columns(summary), "mission": mission, "created": own[0], "project": own[1], "form": FORM}
    connection.execute(_PUT, {**row, "measures": msgspec.json.encode(measures)})


def _columns(summary: MissionSummary) -> dict[str, object]:
    return {
        "user": summary.user,
        "status": summary.status,
        "status_unheld": unheld_status(summary),
        "summary": msgspec.json.encode(summary),
    }


def _keep_calls(connection: Transaction, mission: str, summary: MissionSummary) -> None:
    """Move the ids of counted calls out of a summary, which would grow with them, into separate rows."""
    rows = [(mission, call) for call in summary.calls]
    if rows:
        connection.executemany("INSERT OR IGNORE INTO mission_calls VALUES (?, ?)", rows)
    summary.calls = set()
