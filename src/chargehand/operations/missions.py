"""Routes of missions: start, show and steer them, and decide on their results."""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from chargehand.app import checkpoints, forecasts, missions, requests
from chargehand.app.checkpoints import RollbackPreviewDocument
from chargehand.app.composition import App
from chargehand.app.forecasts import ForecastDocument
from chargehand.app.requests import FollowUp, ForkRequest, IdempotencyKey, TaskAllowedDocument
from chargehand.app.worker import ensure_worker
from chargehand.configuration.client_options import client_arguments, read_client
from chargehand.core.records import MissionStatus
from chargehand.core.state import MissionState
from chargehand.identity.accounts import Caller, require_access
from chargehand.operations.operation import (
    Limit,
    MissionName,
    NamedMission,
    Offset,
    OperationTable,
    RawContent,
    RestArguments,
    Short,
    Text,
    Words,
)
from chargehand.policy.access import answer_action
from chargehand.reports import showing, story
from chargehand.reports.documents import MessageDocument, MissionDetails, MissionDocument, mission_document
from chargehand.reports.outcome import explain_failures
from chargehand.reports.reading import StateReader
from chargehand.reports.story import (
    ChangeReview,
    EventPage,
    MissionPage,
    MissionReport,
    PageRequest,
    PlanDocument,
    TranscriptPage,
)

OPERATIONS = OperationTable()
_Reason = Annotated[str, Meta(max_length=10_000)]


class MissionQuery(RestArguments, frozen=True):
    """The missions of a page; `q` is searched in ids and requests."""

    status: tuple[MissionStatus, ...] = ()
    project: Short | None = None
    user: Short | None = None
    since: Annotated[str, Meta(max_length=40, description="7d, 12h or a date (UTC).")] | None = None
    q: Annotated[str, Meta(max_length=200)] = ""
    limit: Limit = 50
    cursor: Annotated[str, Meta(max_length=64, description="`next` of the page before.")] | None = None


class NewMission(RestArguments, frozen=True):
    """A mission to start; `repo` is a registered project, by its id or path. Also the options of a run."""

    request: Text
    repo: Words
    key: Annotated[Short, Meta(description="Your own name for it: the same key is the same mission.")] | None = (
        None
    )


class PageOfMission(RestArguments, frozen=True):
    """A page of a mission's log or transcript."""

    mission: MissionName
    after: Offset = 0
    limit: Limit = 200


class ReportQuery(RestArguments, frozen=True):
    """The format of a report."""

    mission: MissionName
    format: Annotated[str, Meta(pattern="^(json|markdown)$")] = "json"


class RollbackQuery(RestArguments, frozen=True):
    """The roll-back of a mission, or of one of its tasks, `with_dependents` including tasks based on it."""

    mission: MissionName
    task: Short | None = None
    with_dependents: bool = False


class PauseBody(RestArguments, frozen=True):
    """A mission to pause, and the reason."""

    mission: MissionName
    reason: _Reason = ""


class DiscardBody(RestArguments, frozen=True):
    """A mission, or one of its tasks, to discard, and the reason."""

    mission: MissionName
    reason: _Reason = ""
    task: Short | None = None


class PromoteBody(RestArguments, frozen=True):
    """An approval, and the reason; refused if the mission's tree is no longer `tree`."""

    mission: MissionName
    reason: _Reason = ""
    task: Short | None = None
    tree: Annotated[str, Meta(max_length=64)] = ""


class ResumeBody(RestArguments, frozen=True):
    """How far a mission runs: `step` until its next step, `to_end` past all breakpoints."""

    mission: MissionName
    step: bool = False
    to_end: bool = False


class SendBody(RestArguments, frozen=True):
    """A message for the agent."""

    mission: MissionName
    text: Text
    critical: bool = False
    task: Short | None = None


class AnswerBody(RestArguments, frozen=True):
    """An answer; an option's number means its text. Refused if the open question is no longer `question`."""

    mission: MissionName
    text: Text
    question: Short | None = None
    task: Short | None = None


class ForkBody(RestArguments, frozen=True):
    """The reply that a new mission continues from, `[ATTEMPT.]TURN`, and another model or an edited reply."""

    mission: MissionName
    at: Annotated[str, Meta(max_length=20)] | None = None
    model: Words | None = None
    reply: Text | None = None


class ContinueBody(RestArguments, frozen=True):
    """A further request to a mission that ended, with limits as for a run."""

    mission: MissionName
    request: Text


class StartTask(RestArguments, frozen=True):
    """A held task of a plan."""

    mission: MissionName
    task: Short


def _mission_result(app: App, state: MissionState) -> MissionDocument:
    return mission_document(state, explain_failures(app.store, state))


@OPERATIONS.add("GET", "/missions", action="mission.list", commands=("mission list",))
def page_missions(reader: StateReader, call: MissionQuery, by: Caller) -> MissionPage:
    """List missions, the newest first."""
    return story.page_missions(
        reader,
        PageRequest(
            project=None if call.project is None else reader.store.projects.find(call.project).id,
            user=call.user,
            statuses=call.status,
            since=call.since,
            text=call.q,
            before=call.cursor,
            limit=call.limit,
        ),
    )


@OPERATIONS.add(
    "POST",
    "/missions",
    action="mission.start",
    status=201,
    commands=("run",),
    takes=client_arguments(NewMission, "rest"),
)
def start_mission(app: App, call: NewMission, by: Caller) -> MissionDocument:
    """Start a mission; a worker runs it."""
    repository = app.store.projects.find(call.repo).path
    asked = read_client(call, text=call.request, repo=repository)
    request, plan = requests.plan_request(app, asked)
    if call.key is None:
        mission = requests.record_mission(app, request, plan=plan)
    else:
        content = msgspec.json.encode(replace(call, key=None, repo=str(repository)), order="sorted")
        key = IdempotencyKey("rest", f"{app.identity()} {call.key}", hashlib.sha256(content).hexdigest())
        mission, _ = requests.record_once(app, request, key, plan=plan)
    ensure_worker(app)
    return _mission_result(app, app.mission_reader.state(mission))


@OPERATIONS.add("GET", "/missions/{mission}", action="mission.show", commands=("mission show",))
def show_mission(reader: StateReader, call: NamedMission, by: Caller) -> MissionDetails:
    """Show everything about a mission."""
    return showing.show_mission(reader, call.mission)[1]


@OPERATIONS.add("GET", "/missions/{mission}/events", action="mission.events")
def page_events(reader: StateReader, call: PageOfMission, by: Caller) -> EventPage:
    """Read a page of a mission's log in words."""
    return story.page_events(reader, call.mission, after=call.after, limit=call.limit)


@OPERATIONS.add("GET", "/missions/{mission}/transcript", action="mission.transcript", commands=("mission log",))
def page_transcript(reader: StateReader, call: PageOfMission, by: Caller) -> TranscriptPage:
    """Read a page of its agents' conversation."""
    return story.page_transcript(reader, call.mission, after=call.after, limit=call.limit)


@OPERATIONS.add("GET", "/missions/{mission}/plan", action="mission.plan", commands=("mission plan",))
def show_plan(reader: StateReader, call: NamedMission, by: Caller) -> PlanDocument:
    """Show the tasks of a mission with their progress."""
    return story.show_plan(reader, call.mission)


@OPERATIONS.add("POST", "/missions/{mission}/plan/start", action="mission.replan", commands=("mission plan",))
def start_held_task(app: App, call: StartTask, by: Caller) -> TaskAllowedDocument:
    """Start a held task at the same time as the others."""
    return requests.start_held_task(app, call.mission, call.task)


@OPERATIONS.add(
    "GET",
    "/missions/{mission}/report",
    action="mission.report",
    gives=MissionReport,
    raw="text/markdown",
    commands=("mission report",),
)
def report_mission(reader: StateReader, call: ReportQuery, by: Caller) -> MissionReport | RawContent:
    """Report request, changes, decisions and cost."""
    made, markdown = showing.report_mission(reader, call.mission)
    return made if call.format == "json" else RawContent(markdown.encode(), "text/markdown; charset=utf-8")


@OPERATIONS.add(
    "GET",
    "/missions/{mission}/forecast",
    action="mission.show",
    is_costly=True,
    commands=("mission forecast",),
)
def forecast_mission(reader: StateReader, call: NamedMission, by: Caller) -> ForecastDocument:
    """Forecast its success, cost and time."""
    return forecasts.forecast_mission(reader, call.mission)


@OPERATIONS.add("GET", "/missions/{mission}/review", action="mission.review")
def review_mission(reader: StateReader, call: NamedMission, by: Caller) -> ChangeReview:
    """Show its change for a review: files by risk, in hunks."""
    return missions.review_mission(reader, call.mission)


@OPERATIONS.add("POST", "/missions/{mission}/pause", action="mission.pause", commands=("mission pause",))
def pause_mission(app: App, call: PauseBody, by: Caller) -> MissionDocument:
    """Pause a mission."""
    return _mission_result(app, missions.pause_mission(app, call.mission, reason=call.reason))


@OPERATIONS.add("POST", "/missions/{mission}/resume", action="mission.resume", commands=("mission resume",))
def resume_mission(app: App, call: ResumeBody, by: Caller) -> MissionDocument:
    """Resume it from its last recorded step."""
    resumed = missions.resume_mission(app, call.mission, step=call.step, to_end=call.to_end)
    return _mission_result(app, resumed.state)


@OPERATIONS.add("POST", "/missions/{mission}/cancel", action="mission.cancel", commands=("mission cancel",))
def cancel_mission(app: App, call: NamedMission, by: Caller) -> MissionDocument:
    """Stop a mission, or close one that waits."""
    return _mission_result(app, missions.cancel_mission(app, call.mission))


@OPERATIONS.add("POST", "/missions/{mission}/send", action="mission.send", commands=("mission send",))
def send_message(app: App, call: SendBody, by: Caller) -> MessageDocument:
    """Send the agent a message."""
    meant = missions.addressed_mission(app, call.mission, "send", task=call.task)
    sent = missions.send_message(app, meant.mission, call.text, critical=call.critical)
    return missions.message_document(sent)


@OPERATIONS.add("POST", "/missions/{mission}/answer", action="mission.answer", commands=("mission answer",))
def answer_mission(app: App, call: AnswerBody, by: Caller) -> MissionDocument:
    """Answer a mission's question."""
    asked = missions.addressed_mission(app, call.mission, "answer", task=call.task)
    if asked.question is not None:
        # To permit or decide something requires more rights than to clarify it.
        require_access(app, by, answer_action(asked.question.kind), asked.mission)
    return _mission_result(app, missions.answer_mission(app, asked, call.text, question=call.question).state)


@OPERATIONS.add("POST", "/missions/{mission}/promote", action="mission.promote", commands=("mission promote",))
async def promote_mission(app: App, call: PromoteBody, by: Caller) -> MissionDocument:
    """Approve a waiting mission and promote it."""
    meant = missions.addressed_mission(app, call.mission, "promote", task=call.task)
    promoted = await missions.promote_mission(app, meant.mission, reason=call.reason, tree=call.tree)
    return _mission_result(app, promoted)


@OPERATIONS.add("POST", "/missions/{mission}/discard", action="mission.discard", commands=("mission discard",))
def discard_mission(app: App, call: DiscardBody, by: Caller) -> MissionDocument:
    """Settle a mission as not wanted."""
    meant = missions.addressed_mission(app, call.mission, "discard", task=call.task)
    return _mission_result(app, missions.discard_mission(app, meant.mission, reason=call.reason))


@OPERATIONS.add("GET", "/missions/{mission}/rollback", action="mission.diff", commands=("mission rollback",))
def preview_rollback(reader: StateReader, call: RollbackQuery, by: Caller) -> RollbackPreviewDocument:
    """Show the effect of rolling it back."""
    return checkpoints.preview_roll_back(
        reader, call.mission, task=call.task, with_dependents=call.with_dependents
    )


@OPERATIONS.add("POST", "/missions/{mission}/rollback", action="mission.rollback", commands=("mission rollback",))
async def roll_back_mission(app: App, call: RollbackQuery, by: Caller) -> MissionDocument:
    """Undo its promotion by a new commit."""
    if call.task is None:
        return _mission_result(app, await missions.roll_back_mission(app, call.mission))
    rolled_back = await checkpoints.roll_back_task(
        app, call.mission, call.task, with_dependents=call.with_dependents
    )
    return _mission_result(app, rolled_back)


@OPERATIONS.add("POST", "/missions/{mission}/fork", action="mission.fork", status=201, commands=("mission fork",))
def fork_mission(app: App, call: ForkBody, by: Caller) -> MissionDocument:
    """Start a mission from one of its replies."""
    if call.reply is not None and call.reply.startswith("@"):
        # On the command line `@` names a file; a client has no file here.
        call = replace(call, reply=f" {call.reply}")
    made, _ = requests.fork_mission(
        app, ForkRequest(mission=call.mission, at=call.at, model=call.model, reply=call.reply)
    )
    ensure_worker(app)
    return _mission_result(app, app.mission_reader.state(made))


@OPERATIONS.add(
    "POST",
    "/missions/{mission}/continue",
    action="mission.continue",
    commands=("mission continue",),
    takes=client_arguments(ContinueBody, "rest", "attempts", "time", "budget"),
)
def continue_mission(app: App, call: ContinueBody, by: Caller) -> MissionDocument:
    """Continue it with a further request."""
    asked = read_client(call, text=call.request, repo=None)
    limits = {"attempts": asked.attempts, "time": asked.time, "budget": asked.budget}
    made = requests.follow_up_mission(app, FollowUp(mission=call.mission, text=call.request, **limits))
    ensure_worker(app)
    return _mission_result(app, app.mission_reader.state(made))
