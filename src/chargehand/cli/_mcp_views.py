"""Missions as the MCP server shows them: cleaned of control bytes, bounded, in records."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from chargehand.app.checkpoints import base_tree, mission_depot, result_tree
from chargehand.app.composition import App
from chargehand.app.documents import exported_branch, mission_document, to_json
from chargehand.app.event_text import describe_event
from chargehand.app.missions import goes_on_by_itself
from chargehand.cli._mcp_records import DiffView, EventView, Listed, LogView, MissionView, ShowDiff, ShowLog
from chargehand.core.codec import convert_to
from chargehand.core.errors import NotFoundError
from chargehand.core.events import Event
from chargehand.core.state import SETTLED, MissionState
from chargehand.core.text import printable, shown_path
from chargehand.missions.reading import find_checkpoint

_View = TypeVar("_View", bound=msgspec.Struct)
_TITLE = 500
_FILES = 500
_PAYLOAD = 8_000
"""Bytes of one event's payload: more is cut from a page, and stands in `chargehand mission log --json`."""
_PAGE = 200_000


def is_settled(state: MissionState) -> bool:
    """Tell whether nobody goes on with a mission before somebody acts."""
    return state.status in SETTLED and not goes_on_by_itself(state)


def cleaned(value: Any) -> Any:
    """Return a document with every string in it safe to show: no control byte, no escape sequence."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(str(key)): cleaned(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(item) for item in value]
    return value


def exact(app: App, name: str) -> str:
    """Return a mission's id as it was given: a client does not guess as a person at a terminal may.

    Raises `NotFoundError`, `UsageError` (`ambiguous`).
    """
    found = app.store.log.find(name)
    if found != name:
        raise NotFoundError(f"there is no mission {name!r}", hint=f"did you mean {found!r}?")
    return found


def mission_view(app: App, mission: str) -> MissionView:
    """Return how a mission stands. Raises `NotFoundError`."""
    seen = app.store.log.last_seq(mission)  # first: who reads the log from there on misses nothing of the state
    state = app.mission_reader.state(mission)
    own = {
        "settled": is_settled(state),
        "repository": shown_path(state.repository),
        "request": _asked(state),
        "last_seq": seen,
    }
    return _record(to_json(mission_document(state)) | own, MissionView)


def listed(state: MissionState) -> Listed:
    """Return a mission as a line of the list."""
    line = {
        "mission": state.id,
        "status": state.status,
        "repository": shown_path(state.repository),
        "created": state.created,
        "updated": state.updated,
        "request": _asked(state),
        "branch": exported_branch(state),
        "question": state.open_question is not None,
    }
    return _record(line, Listed)


def diff_view(app: App, call: ShowDiff) -> DiffView:
    """Return a part of what a mission changed. Raises `NotFoundError`, `RefusedError`, `RepositoryError`."""
    state = app.mission_reader.state(exact(app, call.mission))
    old = base_tree(state)
    new = result_tree(state) if call.checkpoint is None else find_checkpoint(state, call.checkpoint).tree
    depot = mission_depot(app, state)
    patch = depot.patch(old, new)
    shown = printable(patch.decode(errors="replace"))
    files = depot.numstat(old, new)
    end = call.offset + call.limit
    document = {
        "mission": state.id,
        "old": old,
        "new": new,
        "files": [{**to_json(line), "path": shown_path(line.path)} for line in files[:_FILES]],
        "files_total": len(files),
        "patch": shown[call.offset : end],
        "offset": call.offset,
        "next_offset": end if end < len(shown) else None,
        "total": len(shown),
        "exact": shown.encode() == patch,
    }
    return _record(document, DiffView)


def log_view(app: App, call: ShowLog) -> LogView:
    """Return a page of a mission's events. Raises `NotFoundError`."""
    mission = exact(app, call.mission)
    settled = is_settled(app.mission_reader.state(mission))
    lines = app.store.log.read(mission, after=call.after)
    shown: list[EventView] = []
    size = 0
    for line in lines[: call.limit]:
        view = _event_view(line)
        size += len(msgspec.json.encode(view))
        if shown and size > _PAGE:
            break
        shown.append(view)
    more = len(shown) < len(lines)
    return LogView(
        mission=mission,
        events=tuple(shown),
        last_seq=lines[-1].seq if lines else app.store.log.last_seq(mission),
        next_after=shown[-1].seq if more else None,
        settled=settled,
    )


def _event_view(line: Event) -> EventView:
    cut = line.payload is not None and len(line.payload) > _PAYLOAD
    payload = None if line.payload is None or cut else cleaned(to_json(msgspec.json.decode(line.payload)))
    text = printable(describe_event(line))[:_TITLE]
    return EventView(seq=line.seq, time=line.time, type=line.type, text=text, payload=payload, cut=cut)


def _asked(state: MissionState) -> str:
    text = state.request.text if state.request else ""
    return text if len(text) <= _TITLE else text[: _TITLE - 1] + "…"


def _record(document: dict[str, Any], kind: type[_View]) -> _View:
    return convert_to(cleaned(to_json(document)), kind)
