"""Routes of logs, line by line as they were written, of what follows from them, and of lists without pages."""

from __future__ import annotations

import itertools
from typing import Annotated

from msgspec import Meta

from chargehand.app.accounts import Caller
from chargehand.app.configuration import JudgementPage, page_judgements
from chargehand.app.documents import MissionDocument, MissionListDocument, QuestionDocument, mission_document
from chargehand.app.missions import ListRequest, list_missions, show_question
from chargehand.app.outcome import explain_failures
from chargehand.app.reading import StateReader
from chargehand.app.storage import exported_lines
from chargehand.app.story import LogPage, page_log
from chargehand.server._routes import (
    Limit,
    MissionName,
    NamedMission,
    Offset,
    RestArguments,
    Route,
    Short,
    StreamedContent,
)


class ListQuery(RestArguments, frozen=True):
    """Which missions are listed: of a project or all, the newest `limit`; with 0 all."""

    project: Short | None = None
    status: tuple[Annotated[str, Meta(max_length=40)], ...] = ()
    since: Annotated[str, Meta(max_length=40, description="7d, 12h or a date (UTC).")] | None = None
    limit: Annotated[int, Meta(ge=0, le=1 << 31)] = 0


class LinesOfMission(RestArguments, frozen=True):
    """Which lines of a mission's log: those after the line `after`, at most `limit`."""

    mission: MissionName
    after: Offset = 0
    limit: Limit = 200


class JudgementQuery(LinesOfMission, frozen=True, kw_only=True):
    """Which judgements of a mission: with `everything` also what was simply allowed."""

    everything: bool = False


class LinesOfProject(RestArguments, frozen=True):
    """Which lines of a project's own log: those after the line `after`, at most `limit`."""

    project: Short
    after: Offset = 0
    limit: Limit = 200


class QuestionQuery(RestArguments, frozen=True):
    """Whose question is shown: a mission's, or that of the one task of it."""

    mission: MissionName
    task: Short | None = None


class ExportQuery(RestArguments, frozen=True):
    """Whose log is exported: a mission's, or all."""

    mission: MissionName | None = None


def _list(reader: StateReader, call: ListQuery, by: Caller) -> MissionListDocument:
    return list_missions(
        reader,
        ListRequest(
            repository=None if call.project is None else reader.store.projects.find(call.project).path,
            everywhere=call.project is None,
            statuses=call.status,
            since=call.since,
            limit=call.limit,
        ),
    )


def _outcome(reader: StateReader, call: NamedMission, by: Caller) -> MissionDocument:
    state = reader.mission_state(call.mission)
    return mission_document(state, explain_failures(reader.store, state))


def _project_log(reader: StateReader, call: LinesOfProject, by: Caller) -> LogPage:
    project = reader.store.projects.find(call.project)
    return page_log(reader, project.id, after=call.after, limit=call.limit, of_project=True)


def _export(reader: StateReader, call: ExportQuery, by: Caller) -> StreamedContent:
    lines = exported_lines(reader, call.mission)
    # One before anything is sent: what is wrong with the request is an error then, and no broken stream.
    return StreamedContent(itertools.chain([next(lines, b"")], lines), "application/x-ndjson")


_ONE = "/missions/{mission}"
# Before those of missions: `list` is no mission's name.
ROUTES = (
    Route(
        method="GET", path="/missions/list", action="mission.list",
        summary="List missions without pages, the oldest first, tasks with their coordinators.",
        takes=ListQuery, gives=MissionListDocument, call=_list, commands=("mission list",),
    ),
    Route(
        method="GET", path=f"{_ONE}/log", action="mission.events",
        summary="Read a page of a mission's log, line by line as it was written.",
        takes=LinesOfMission, gives=LogPage, commands=("mission log", "mission watch"),
        call=lambda reader, call, by: page_log(
            reader, reader.find_mission(call.mission), after=call.after, limit=call.limit
        ),
    ),
    Route(
        method="GET", path=f"{_ONE}/outcome", action="mission.show",
        summary="Show how it stands, as commands that change it do.",
        takes=NamedMission, gives=MissionDocument, call=_outcome,
    ),
    Route(
        method="GET", path=f"{_ONE}/question", action="question.list",
        summary="Show what it asks.",
        takes=QuestionQuery, gives=QuestionDocument, commands=("mission answer",),
        call=lambda reader, call, by: show_question(reader, call.mission, task=call.task),
    ),
    Route(
        method="GET", path=f"{_ONE}/judgements", action="mission.events",
        summary="Read a page of what was judged in it, by which rule and why.",
        takes=JudgementQuery, gives=JudgementPage, commands=("policy why",),
        call=lambda reader, call, by: page_judgements(
            reader, call.mission, everything=call.everything, after=call.after, limit=call.limit
        ),
    ),
    Route(
        method="GET", path="/projects/{project}/log", action="mission.events",
        summary="Read a page of a project's own log: actions that belong to no mission.",
        takes=LinesOfProject, gives=LogPage, call=_project_log, commands=("project log",),
    ),
    Route(
        method="GET", path="/audit/export", action="audit.export",
        summary="Export events, signed heads and the public key as JSON lines that verify on their own.",
        takes=ExportQuery, gives=StreamedContent, raw="application/x-ndjson", call=_export,
        commands=("audit export",),
    ),
)  # fmt: skip
