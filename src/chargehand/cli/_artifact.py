"""`chargehand artifact list` and `show`."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from chargehand.app.composition import App
from chargehand.cli._output import Output
from chargehand.cli._prepare import find_mission
from chargehand.core.errors import NotFoundError, UsageError
from chargehand.store._artifacts import ArtifactRow

_LEAST = 4
_LIST = "chargehand artifact list MISSION"


def list_artifacts(out: Output, mission: str) -> int:
    """Write id, kind, size and time of what a mission kept."""
    with App.open() as app:
        found = find_mission(app, mission)
        rows = app.store.artifacts.list(found)
    out.document(
        {
            "mission": found,
            "artifacts": [{"id": row.id, "kind": row.kind, "size": row.size, "time": row.time} for row in rows],
        }
    )
    if not rows:
        out.text(f"mission {found} kept nothing")
        return 0
    table = [(row.id[:12], row.kind, row.size, row.time[:19].replace("T", " ")) for row in rows]
    out.table(("ARTIFACT", "KIND", "BYTES", "WHEN"), table)
    return 0


def show_artifact(out: Output, name: str) -> int:
    """Write the content of one artifact."""
    with App.open() as app:
        rows = _named(app.store.artifacts.list(), name)
        content = app.store.artifacts.get(rows[0].id)
    if not out.as_json:
        out.raw(content)
        return 0
    try:
        text, encoding = content.decode(), "utf-8"
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(content).decode(), "base64"
    kept = [{"mission": row.mission or None, "kind": row.kind, "time": row.time} for row in rows]
    out.document({"id": rows[0].id, "size": len(content), "kept": kept, "encoding": encoding, "content": text})
    return 0


def _named(rows: Sequence[ArtifactRow], name: str) -> list[ArtifactRow]:
    """Return all that is known of the one artifact whose id starts with `name`.

    Raises `NotFoundError`, `UsageError` where it is too short or fits several.
    """
    start = name.lower()
    if len(start) < _LEAST:
        raise UsageError(f"{name!r} is too short for an artifact", hint=f"give at least {_LEAST} digits; {_LIST}")
    found = [row for row in rows if row.id.startswith(start)]
    ids = sorted({row.id for row in found})
    if not ids:
        raise NotFoundError(f"there is no artifact {name!r}", hint=_LIST)
    if len(ids) > 1:
        shown = ", ".join(each[: len(start) + 8] for each in ids[:5])
        raise UsageError(
            f"{name!r} fits {len(ids)} artifacts", code="ambiguous", hint=f"give more digits: {shown}"
        )
    return found
