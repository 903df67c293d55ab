"""The work of the MCP server's tools on missions; each call opens the state directory, as a command does."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from chargehand.app.composition import App
from chargehand.app.forecasts import forecast_mission
from chargehand.app.missions import answer_question as record_answer
from chargehand.app.missions import (
    cancel_mission,
    check_answer,
    discard_mission,
    goes_on_by_itself,
)
from chargehand.app.missions import send_message as send_to_agent
from chargehand.app.requests import IdempotencyKey, record_once
from chargehand.app.runs import record_mission
from chargehand.app.truths import give_feedback as record_feedback
from chargehand.configuration.client_options import read_client
from chargehand.core.codec import convert_to
from chargehand.core.errors import NotFoundError, RefusedError
from chargehand.core.state import SETTLED, MissionState, MissionSummary
from chargehand.core.text import printable, shown_path
from chargehand.mcp._records import (
    AnswerQuestion,
    DiffView,
    EventView,
    FeedbackGivenView,
    ForecastView,
    GiveFeedback,
    ListMissions,
    LogView,
    MissionLine,
    MissionList,
    MissionView,
    OneMission,
    PromoteMission,
    RunMission,
    SendMessage,
    ShowDiff,
    ShowLog,
    Started,
)
from chargehand.missions.reading import base_tree, find_checkpoint, result_tree
from chargehand.reports.documents import mission_document, to_json
from chargehand.reports.outcome import explain_failures, exported_branch
from chargehand.reports.story import describe_event

_View = TypeVar("_View", bound=msgspec.Struct)
_TITLE = 500
_FILES = 500
# Bytes of one event's payload: larger ones are cut from a page; `chargehand mission log --json` has them.
_PAYLOAD = 8_000
_PAGE = 200_000
# Missions that one call of `list_missions` reads; the cursor continues from there.
_LOOKED_AT = 2000


def is_settled(state: MissionState) -> bool:
    """Return whether a mission does not continue until a person or a client acts."""
    return state.status in SETTLED and not goes_on_by_itself(state)


def cleaned(value: Any) -> Any:
    """Return a document with every string safe to show: no control bytes, no escape sequences."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(str(key)): cleaned(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(item) for item in value]
    return value


def exact(app: App, name: str) -> str:
    """Return a mission's id if it is complete: unlike a person at a terminal, a client may not abbreviate it.

    Raises `NotFoundError`, `UsageError` (`ambiguous`).
    """
    found = app.store.log.find(name)
    if found != name:
        raise NotFoundError(f"there is no mission {name!r}", hint=f"did you mean {found!r}?")
    return found


def mission_view(app: App, mission: str) -> MissionView:
    """Return the state of a mission. Raises `NotFoundError`."""
    seen = app.store.log.last_seq(mission)  # first: a client that reads the log from there on misses no change
    state = app.mission_reader.state(mission)
    own = {
        "settled": is_settled(state),
        "repository": shown_path(state.repository),
        "request": _shorten_request(state),
        "last_seq": seen,
    }
    return _record(to_json(mission_document(state, explain_failures(app.store, state))) | own, MissionView)


def listed(state: MissionSummary) -> MissionLine:
    """Return a mission as a line of the list."""
    line = {
        "mission": state.id,
        "status": state.status,
        "repository": shown_path(state.repository),
        "created": state.created,
        "updated": state.updated,
        "request": _shorten_request(state),
        "branch": exported_branch(state),
        "question": state.open_question is not None,
        "parent": state.parent or None,
        "task": state.task or None,
    }
    return _record(line, MissionLine)


def diff_view(app: App, call: ShowDiff) -> DiffView:
    """Return a part of a mission's change. Raises `NotFoundError`, `RefusedError`, `RepositoryError`."""
    state = app.mission_reader.state(exact(app, call.mission))
    old = base_tree(state)
    new = result_tree(state) if call.checkpoint is None else find_checkpoint(state, call.checkpoint).tree
    depot = app.projects.mission_depot(state)
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
        # git cannot apply a patch from which control characters were removed for display.
        "exact": shown.encode() == patch,
    }
    return _record(document, DiffView)


def log_view(app: App, call: ShowLog) -> LogView:
    """Return a page of a mission's events. Raises `NotFoundError`."""
    mission = exact(app, call.mission)
    # Before the lines: if the mission is settled, they include everything that led there.
    settled = is_settled(app.mission_reader.state(mission))
    lines = app.store.log.read(mission, after=call.after)
    shown: list[EventView] = []
    size = 0
    for line in lines[: call.limit]:
        cut = line.payload is not None and len(line.payload) > _PAYLOAD
        view = EventView(
            seq=line.seq,
            time=line.time,
            type=line.type,
            text=printable(describe_event(line))[:_TITLE],
            payload=None if line.payload is None or cut else cleaned(to_json(msgspec.json.decode(line.payload))),
            cut=cut,
        )
        size += len(msgspec.json.encode(view))
        # The first event is always included: otherwise a client would request the same page for ever.
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


def _shorten_request(state: MissionSummary) -> str:
    text = state.request.text if state.request else ""
    return text if len(text) <= _TITLE else text[: _TITLE - 1] + "…"


def _record(document: dict[str, Any], kind: type[_View]) -> _View:
    return convert_to(cleaned(to_json(document)), kind)


def check_may_decide(app: App, mission: str, what: str, command: str) -> None:
    """Return if clients may decide in the person's place. Raises `RefusedError` (`person_needed`)."""
    if not app.clients_may_decide():
        raise RefusedError(
            f"a client of the MCP server may not {what} mission {mission!r}: that is a person's decision",
            code="person_needed",
            hint=f"ask your person to run `chargehand {command}`; `[server] may_decide = true` in the "
            "person's own configuration file lets clients decide",
        )


def check_promote(app: App, call: PromoteMission) -> MissionView:
    """Return the state of a mission that the client may promote. Raises `RefusedError` (`person_needed`)."""
    view = mission_view(app, exact(app, call.mission))
    check_may_decide(app, view.mission, "promote", f"mission promote {view.mission}")
    return view


def run_mission(app: App, call: RunMission) -> Started:
    """Record a mission for a worker, or return the mission of the key.

    Raises `RefusedError` (`key_reused`) for a key of another request, and the errors of a run before its work
    begins.
    """
    # The key identifies one request: all its arguments, and the intended repository.
    meant = str((app.cwd / (call.repo or ".")).resolve())
    # Sorted, without defaults and with the real path: the digest is the same in any later version of this program.
    content = msgspec.json.encode(msgspec.structs.replace(call, key=None, repo=meant), order="sorted")
    asked = hashlib.sha256(content).hexdigest()
    request = read_client(call, text=call.request, repo=None if call.repo is None else Path(call.repo))
    if call.key is None:
        return Started(created=True, mission=mission_view(app, record_mission(app, request)))
    mission, created = record_once(app, request, IdempotencyKey("mcp", call.key, asked))
    return Started(created=created, mission=mission_view(app, mission))


def mission_status(app: App, call: OneMission) -> MissionView:
    """Return the state of a mission. Raises `NotFoundError`."""
    return mission_view(app, exact(app, call.mission))


def list_missions(app: App, call: ListMissions) -> MissionList:
    """Return a page of missions, the newest first. Raises `RepositoryError`."""
    project = app.projects.find(Path(call.repo)).id if call.repo is not None else None
    rows = app.store.log.missions(project=project)[::-1]
    if call.cursor is not None:
        ids = [row.id for row in rows]
        if call.cursor not in ids:
            raise NotFoundError(f"there is no page after {call.cursor!r}", hint="start again without a cursor")
        rows = rows[ids.index(call.cursor) + 1 :]
    # Read after the rows, so that each of them has its summary.
    known = {summary.id: summary for summary in app.mission_reader.summaries(project=project)}
    found = []
    for row in rows[:_LOOKED_AT]:
        summary = known[row.id]
        last = row.id
        if not call.status or summary.status in call.status:
            found.append(listed(summary))
        if len(found) == call.limit:
            break
    more = bool(rows) and last != rows[-1].id
    return MissionList(missions=tuple(found), next_cursor=last if more else None)


def answer_question(app: App, call: AnswerQuestion) -> MissionView:
    """Answer a mission's question and let it continue. Raises `RefusedError` (`no_question`), `UsageError`."""
    mission = exact(app, call.mission)
    asked = app.mission_reader.state(mission).open_question
    if call.question is not None and (asked is None or asked.id != call.question):
        now = "nothing" if asked is None else f"{asked.id!r}"
        raise RefusedError(
            f"mission {mission!r} does not wait for an answer to {call.question!r}: it asks {now}",
            code="no_question",
            hint="mission_status shows its question",
        )
    if asked is not None and asked.asks_permission:
        check_may_decide(app, mission, "answer a question for permission in", f"mission answer {mission}")
    record_answer(app, mission, check_answer(asked, call.text))
    return mission_view(app, mission)


def send_message(app: App, call: SendMessage) -> MissionView:
    """Send a message to the agent of a mission. Raises `RefusedError`, `UsageError`."""
    mission = exact(app, call.mission)
    send_to_agent(app, mission, call.text)
    return mission_view(app, mission)


def show_diff(app: App, call: ShowDiff) -> DiffView:
    """Return a part of a mission's change."""
    return diff_view(app, call)


def forecast(app: App, call: OneMission) -> ForecastView:
    """Return the forecast of a mission."""
    return ForecastView(**msgspec.structs.asdict(forecast_mission(app, exact(app, call.mission))))


def show_log(app: App, call: ShowLog) -> LogView:
    """Return a page of a mission's events."""
    return log_view(app, call)


def discard(app: App, call: OneMission) -> MissionView:
    """Settle a mission as discarded. Raises `RefusedError`."""
    mission = exact(app, call.mission)
    check_may_decide(app, mission, "discard", f"mission discard {mission}")
    discard_mission(app, mission)
    return mission_view(app, mission)


def cancel(app: App, call: OneMission) -> MissionView:
    """Stop a mission, waiting up to half a minute, or close a waiting one. Raises `RefusedError`."""
    mission = exact(app, call.mission)
    state = app.mission_reader.state(mission)
    # If its result waits for a person, cancelling a mission means discarding it.
    if state.status == "waiting" and state.open_question is None:
        check_may_decide(app, mission, "close", f"mission cancel {mission}")
    cancel_mission(app, mission)
    return mission_view(app, mission)


def give_feedback(app: App, call: GiveFeedback) -> FeedbackGivenView:
    """Record a person's word on a result, or its retraction. Raises `RefusedError`, `UsageError`."""
    mission = exact(app, call.mission)
    check_may_decide(app, mission, "judge the result of", f"feedback {mission} good|bad")
    given = msgspec.structs.asdict(call) | {"mission": mission}
    recorded = record_feedback(app, given.pop("mission"), **given)
    return FeedbackGivenView(mission=mission, feedback=recorded.feedback, warning=recorded.warning)
