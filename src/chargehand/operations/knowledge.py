"""Routes of belief networks, and of lessons from earlier missions."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from chargehand.app import knowledge
from chargehand.app.composition import App
from chargehand.app.knowledge import (
    LARGEST_FILE,
    ForgottenLesson,
    LearnedVersion,
    LessonEntry,
    LessonList,
    NetworkExport,
    NetworkList,
    NetworkView,
    PosteriorView,
    RemovedNetwork,
)
from chargehand.identity.accounts import Caller
from chargehand.operations.operation import (
    NoArguments,
    OperationTable,
    RawContent,
    RestArguments,
    Short,
    Words,
)
from chargehand.reports.reading import StateReader
from chargehand.store.networks import NetworkVersion

OPERATIONS = OperationTable()
_NDJSON = "application/x-ndjson"
_File = Annotated[str, Meta(min_length=1, max_length=LARGEST_FILE)]
_Number = Annotated[int, Meta(ge=0, le=1 << 31, description="A version's number, by default the newest.")]
_Names = Annotated[tuple[Short, ...], Meta(min_length=1, max_length=10)]
_Given = Annotated[tuple[Annotated[str, Meta(max_length=4096)], ...], Meta(max_length=2000)]


class OneNetwork(RestArguments, frozen=True):
    """A network, by its name."""

    network: Short


class NetworkQuery(OneNetwork, frozen=True, kw_only=True):
    """A version of a network."""

    number: _Number | None = None


class NetworkExportQuery(NetworkQuery, frozen=True, kw_only=True):
    """A version of a network to export, in a document or as NDJSON."""

    format: Literal["json", "ndjson"] = "json"


class PosteriorQuery(NetworkQuery, frozen=True, kw_only=True):
    """The nodes to query jointly, and the evidence: NODE=STATE, or NODE=STATE:LIKELIHOOD,... for all states."""

    targets: _Names
    given: _Given = ()


class NetworkFile(OneNetwork, frozen=True, kw_only=True):
    """A network or cases as the text of a file: NDJSON, or for a network also the interchange format."""

    content: _File


@OPERATIONS.add("GET", "/knowledge", action="knowledge.show", commands=("knowledge list",))
def list_networks(reader: StateReader, call: NoArguments, by: Caller) -> NetworkList:
    """List belief networks."""
    return knowledge.list_networks(reader)


@OPERATIONS.add("PUT", "/knowledge/{network}", action="knowledge.import", commands=("knowledge import",))
def import_network(app: App, call: NetworkFile, by: Caller) -> NetworkVersion:
    """Import a belief network as a new version."""
    return knowledge.import_network(app, call.network, call.content, by=by)


@OPERATIONS.add("GET", "/knowledge/{network}", action="knowledge.show", commands=("knowledge show",))
def show_network(reader: StateReader, call: NetworkQuery, by: Caller) -> NetworkView:
    """Show a belief network."""
    return knowledge.show_network(reader, call.network, number=call.number)


@OPERATIONS.add("GET", "/knowledge/{network}/posterior", action="knowledge.show", commands=("knowledge query",))
def query_posterior(reader: StateReader, call: PosteriorQuery, by: Caller) -> PosteriorView:
    """Return the distribution of nodes given evidence."""
    return knowledge.query_posterior(reader, call.network, call.targets, call.given, number=call.number)


@OPERATIONS.add(
    "POST",
    "/knowledge/{network}/cases",
    action="knowledge.update",
    is_costly=True,
    commands=("knowledge update",),
)
def update_network(app: App, call: NetworkFile, by: Caller) -> LearnedVersion:
    """Learn from cases, as a new version."""
    return knowledge.update_network(app, call.network, call.content, by=by)


@OPERATIONS.add(
    "GET",
    "/knowledge/{network}/export",
    action="knowledge.show",
    gives=NetworkExport,
    raw=_NDJSON,
    commands=("knowledge export",),
)
def export_network(reader: StateReader, call: NetworkExportQuery, by: Caller) -> NetworkExport | RawContent:
    """Export a belief network."""
    exported = knowledge.export_network(reader, call.network, number=call.number)
    if call.format == "json":
        return exported
    return RawContent(exported.content.encode(), _NDJSON, file_name=f"{call.network}.ndjson")


@OPERATIONS.add("DELETE", "/knowledge/{network}", action="knowledge.remove", commands=("knowledge remove",))
def remove_network(app: App, call: OneNetwork, by: Caller) -> RemovedNetwork:
    """Remove a belief network with all its versions."""
    return knowledge.remove_network(app, call.network, by=by)


class LessonsQuery(RestArguments, frozen=True, kw_only=True):
    """The project whose lessons are listed, by default all."""

    project: Short | None = None


class OneLesson(RestArguments, frozen=True):
    """A lesson, by its id or its beginning."""

    lesson: Short


class NewLesson(RestArguments, frozen=True, kw_only=True):
    """A lesson for a project, and the patterns of paths that it is about."""

    text: Words
    project: Short
    paths: Annotated[tuple[Short, ...], Meta(max_length=20)] = ()


@OPERATIONS.add("GET", "/lessons", action="memory.show", commands=("memory list",))
def list_lessons(reader: StateReader, call: LessonsQuery, by: Caller) -> LessonList:
    """List lessons from earlier missions."""
    project = None if call.project is None else reader.store.projects.find(call.project).id
    return knowledge.list_lessons(reader, project=project, by=by)


@OPERATIONS.add("GET", "/lessons/{lesson}", action="memory.show", commands=("memory show",))
def show_lesson(reader: StateReader, call: OneLesson, by: Caller) -> LessonEntry:
    """Show a lesson and its effect."""
    return knowledge.show_lesson(reader, call.lesson, by=by)


@OPERATIONS.add("POST", "/lessons", action="memory.change", commands=("memory add",))
def add_lesson(app: App, call: NewLesson, by: Caller) -> LessonEntry:
    """Store a lesson of a person."""
    project = app.store.projects.find(call.project).id
    return knowledge.add_lesson(app, call.text, call.paths, project=project, by=by)


@OPERATIONS.add("POST", "/lessons/{lesson}/share", action="memory.change", commands=("memory share",))
def share_lesson(app: App, call: OneLesson, by: Caller) -> LessonEntry:
    """Share a lesson in its project."""
    return knowledge.share_lesson(app, call.lesson, by=by)


@OPERATIONS.add("DELETE", "/lessons/{lesson}", action="memory.change", commands=("memory forget",))
def forget_lesson(app: App, call: OneLesson, by: Caller) -> ForgottenLesson:
    """Erase a lesson."""
    return knowledge.forget_lesson(app, call.lesson, by=by)
