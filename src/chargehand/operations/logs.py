"""Routes of logs as written, line by line, of views derived from them, and of lists without pages."""

from __future__ import annotations

import itertools
from typing import Annotated

from msgspec import Meta

from chargehand.app import configuration, missions, storage
from chargehand.app.configuration import JudgementPage
from chargehand.identity.accounts import Caller
from chargehand.operations.operation import (
    Limit,
    MissionName,
    NamedMission,
    Offset,
    OperationTable,
    RestArguments,
    Short,
    StreamedContent,
    project_path,
)
from chargehand.reports import story
from chargehand.reports.documents import MissionDocument, MissionListDocument, QuestionDocument, mission_document
from chargehand.reports.outcome import explain_failures
from chargehand.reports.reading import StateReader
from chargehand.reports.story import LogPage

# In the table of all routes these come before the routes of missions: `list` is not a mission's name.
OPERATIONS = OperationTable()


class ListQuery(RestArguments, frozen=True):
    """The missions to list: of a project or all, the newest `limit`; 0 is no limit."""

    project: Short | None = None
    status: tuple[Annotated[str, Meta(max_length=40)], ...] = ()
    since: Annotated[str, Meta(max_length=40, description="7d, 12h or a date (UTC).")] | None = None
    limit: Annotated[int, Meta(ge=0, le=1 << 31)] = 0


class LinesOfMission(RestArguments, frozen=True):
    """The lines of a mission's log to read: those after the line `after`, at most `limit`."""

    mission: MissionName
    after: Offset = 0
    limit: Limit = 200


class JudgementQuery(LinesOfMission, frozen=True, kw_only=True):
    """The judgements of a mission to read; with `everything` also plain permissions."""

    everything: bool = False


class LinesOfProject(RestArguments, frozen=True):
    """The lines of a project's own log to read: those after the line `after`, at most `limit`."""

    project: Short
    after: Offset = 0
    limit: Limit = 200


class QuestionQuery(RestArguments, frozen=True):
    """The question to show: of a mission, or of one of its tasks."""

    mission: MissionName
    task: Short | None = None


class ExportQuery(RestArguments, frozen=True):
    """The log to export: of a mission, or all."""

    mission: MissionName | None = None


@OPERATIONS.add("GET", "/missions/list", action="mission.list", commands=("mission list",))
def list_missions(reader: StateReader, call: ListQuery, by: Caller) -> MissionListDocument:
    """List missions without pages, the newest first, tasks with their coordinators."""
    return missions.list_missions(
        reader,
        missions.ListRequest(
            repository=project_path(reader, call.project),
            everywhere=call.project is None,
            statuses=call.status,
            since=call.since,
            limit=call.limit,
        ),
    )


@OPERATIONS.add(
    "GET", "/missions/{mission}/log", action="mission.events", commands=("mission log", "mission watch")
)
def read_mission_log(reader: StateReader, call: LinesOfMission, by: Caller) -> LogPage:
    """Read a page of a mission's log as written, line by line."""
    return story.page_log(reader, reader.find_mission(call.mission), after=call.after, limit=call.limit)


@OPERATIONS.add("GET", "/missions/{mission}/outcome", action="mission.show")
def show_outcome(reader: StateReader, call: NamedMission, by: Caller) -> MissionDocument:
    """Show its outcome, in the form that commands print."""
    state = reader.mission_state(call.mission)
    return mission_document(state, explain_failures(reader.store, state))


@OPERATIONS.add("GET", "/missions/{mission}/question", action="question.list", commands=("mission answer",))
def show_question(reader: StateReader, call: QuestionQuery, by: Caller) -> QuestionDocument:
    """Show its open question."""
    return missions.show_question(reader, call.mission, task=call.task)


@OPERATIONS.add("GET", "/missions/{mission}/judgements", action="mission.events", commands=("policy why",))
def read_judgements(reader: StateReader, call: JudgementQuery, by: Caller) -> JudgementPage:
    """Read a page of its judgements, with rule and reason."""
    return configuration.page_judgements(
        reader, call.mission, everything=call.everything, after=call.after, limit=call.limit
    )


@OPERATIONS.add("GET", "/projects/{project}/log", action="mission.events", commands=("project log",))
def read_project_log(reader: StateReader, call: LinesOfProject, by: Caller) -> LogPage:
    """Read a page of a project's own log: actions that belong to no mission."""
    project = reader.store.projects.find(call.project)
    return story.page_log(reader, project.id, after=call.after, limit=call.limit, of_project=True)


@OPERATIONS.add(
    "GET", "/audit/export", action="audit.export", raw="application/x-ndjson", commands=("audit export",)
)
def export_log(reader: StateReader, call: ExportQuery, by: Caller) -> StreamedContent:
    """Export events, signed heads and the public key as JSON lines that can be verified by themselves."""
    lines = storage.exported_lines(reader, call.mission)
    # The first line is read before anything is sent, so that an invalid request is an error, not a broken stream.
    return StreamedContent(itertools.chain([next(lines, b"")], lines), "application/x-ndjson")
