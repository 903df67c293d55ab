"""What the tools of the MCP server do to missions; each call opens the state directory anew, as a command does."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from chargehand.app.composition import App
from chargehand.app.missions import answer_question as record_answer
from chargehand.app.missions import cancel_mission, check_answer, discard_mission
from chargehand.app.missions import send_message as send_to_agent
from chargehand.app.runs import RunRequest, record_mission
from chargehand.cli._mcp_records import (
    AnswerQuestion,
    DiffView,
    ListMissions,
    LogView,
    MissionList,
    MissionView,
    OneMission,
    RunMission,
    SendMessage,
    ShowDiff,
    ShowLog,
    Started,
)
from chargehand.cli._mcp_views import diff_view, exact, listed, log_view, mission_view
from chargehand.core.errors import NotFoundError, RefusedError, UsageError
from chargehand.core.ids import keyed_id

_LOOKED_AT = 2000
"""Missions that one call of `list_missions` looks at; the cursor goes on from there."""


def run_mission(app: App, call: RunMission) -> Started:
    """Record a mission for a worker, or return the one that its key names.

    Raises `RefusedError` (`key_reused`) for a key that stands for something else, and what a run does before
    work begins.
    """
    asked = _digest(app, call)
    if call.key is None:
        return _started(app, record_mission(app, _options(call)))
    mission = keyed_id("mission", call.key)
    if not _known(app, mission, call.key, asked):
        try:
            noted = {"mcp": {"key": call.key, "asked": asked}}
            return _started(app, record_mission(app, _options(call), mission=mission, noted=noted))
        except UsageError as error:
            if error.code != "mission_exists":
                raise
        _known(app, mission, call.key, asked)  # another call with the key came first: the store took only one
    return Started(created=False, mission=mission_view(app, mission))


def mission_status(app: App, call: OneMission) -> MissionView:
    """Return how a mission stands. Raises `NotFoundError`."""
    return mission_view(app, exact(app, call.mission))


def list_missions(app: App, call: ListMissions) -> MissionList:
    """Return a page of missions, the newest first. Raises `RepositoryError`."""
    project = app.project(Path(call.repo)).id if call.repo is not None else None
    rows = app.store.log.missions(project=project)[::-1]
    if call.cursor is not None:
        rows = rows[_place(call.cursor, [row.id for row in rows]) + 1 :]
    found = []
    for row in rows[:_LOOKED_AT]:
        state = app.mission_reader.state(row.id)
        last = row.id
        if not call.status or state.status in call.status:
            found.append(listed(state))
        if len(found) == call.limit:
            break
    more = bool(rows) and last != rows[-1].id
    return MissionList(missions=tuple(found), next_cursor=last if more else None)


def answer_question(app: App, call: AnswerQuestion) -> MissionView:
    """Answer what a mission asks and let it go on. Raises `RefusedError` (`no_question`), `UsageError`."""
    mission = exact(app, call.mission)
    asked = app.mission_reader.state(mission).open_question
    if call.question is not None and (asked is None or asked.id != call.question):
        now = "nothing" if asked is None else f"{asked.id!r}"
        raise RefusedError(
            f"mission {mission!r} does not wait for an answer to {call.question!r}: it asks {now}",
            code="no_question",
            hint="mission_status shows what it asks",
        )
    record_answer(app, mission, check_answer(asked, call.text))
    return mission_view(app, mission)


def send_message(app: App, call: SendMessage) -> MissionView:
    """Tell the agent of a mission something. Raises `RefusedError`, `UsageError`."""
    mission = exact(app, call.mission)
    send_to_agent(app, mission, call.text)
    return mission_view(app, mission)


def show_diff(app: App, call: ShowDiff) -> DiffView:
    """Return a part of what a mission changed."""
    return diff_view(app, call)


def show_log(app: App, call: ShowLog) -> LogView:
    """Return a page of a mission's events."""
    return log_view(app, call)


def discard(app: App, call: OneMission) -> MissionView:
    """Settle a mission as not wanted. Raises `RefusedError`."""
    mission = exact(app, call.mission)
    discard_mission(app, mission)
    return mission_view(app, mission)


def cancel(app: App, call: OneMission) -> MissionView:
    """Stop a mission, waiting up to half a minute, or close one that waits. Raises `RefusedError`."""
    mission = exact(app, call.mission)
    cancel_mission(app, mission)
    return mission_view(app, mission)


def _started(app: App, mission: str) -> Started:
    return Started(created=True, mission=mission_view(app, mission))


def _options(call: RunMission) -> RunRequest:
    return RunRequest(
        text=call.request,
        repo=None if call.repo is None else Path(call.repo),
        base=call.base,
        agent=call.agent,
        model=call.model,
        role=call.role,
        checks=call.checks,
        allow=call.allow,
        forbid=call.forbid,
        budget=None if call.budget is None else repr(call.budget),
        time=call.time,
        attempts=None if call.attempts is None else str(call.attempts),
        yes=True,
    )


def _digest(app: App, call: RunMission) -> str:
    """Return what tells one request from another: all that was asked, in the repository that was meant."""
    meant = str((app.cwd / (call.repo or ".")).resolve())
    content = msgspec.json.encode(msgspec.structs.replace(call, key=None, repo=meant), order="sorted")
    return hashlib.sha256(content).hexdigest()


def _known(app: App, mission: str, key: str, asked: str) -> bool:
    """Tell whether a key has its mission already. Raises `RefusedError` where that was asked for otherwise."""
    try:
        app.store.log.get(mission)
    except NotFoundError:
        return False
    before = _asked_before(app, mission)
    if before is not None and before != asked:
        raise RefusedError(
            f"the key {key!r} stands for mission {mission!r}, which was asked for with other arguments",
            code="key_reused",
            hint="use a new key for what is new; mission_status tells how that mission stands",
        )
    return True


def _asked_before(app: App, mission: str) -> str | None:
    """Return the digest of the arguments that a keyed mission was made with; `None` where they were erased."""
    first = app.store.log.read(mission, types=("mission.created",))[0].payload
    if first is None:
        return None
    noted: str = msgspec.json.decode(first)["config"]["mcp"]["asked"]
    return noted


def _place(cursor: str, known: list[str]) -> int:
    if cursor not in known:
        raise NotFoundError(f"there is no page after {cursor!r}", hint="begin anew without a cursor")
    return known.index(cursor)
