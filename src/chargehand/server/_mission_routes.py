"""Routes of missions: look at them, steer them, decide on their results."""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from chargehand.app.accounts import Caller, require_access
from chargehand.app.checkpoints import (
    RollbackPreviewDocument,
    preview_roll_back,
    roll_back_task,
)
from chargehand.app.composition import App
from chargehand.app.documents import (
    MessageDocument,
    MissionDetails,
    MissionDocument,
    mission_document,
)
from chargehand.app.missions import (
    addressed_mission,
    answer_mission,
    cancel_mission,
    discard_mission,
    message_document,
    pause_mission,
    promote_mission,
    report_mission,
    resume_mission,
    review_mission,
    roll_back_mission,
    send_message,
    show_mission,
)
from chargehand.app.outcome import explain_failures
from chargehand.app.reading import StateReader
from chargehand.app.requests import (
    FollowUp,
    ForkRequest,
    IdempotencyKey,
    TaskAllowedDocument,
    client_request,
    follow_up_mission,
    fork_mission,
    plan_request,
    record_mission,
    record_once,
    start_held_task,
)
from chargehand.app.story import (
    ChangeReview,
    EventPage,
    MissionPage,
    MissionReport,
    PageRequest,
    PlanDocument,
    TranscriptPage,
    page_events,
    page_missions,
    page_transcript,
    show_plan,
)
from chargehand.app.worker import ensure_worker
from chargehand.core.records import MissionStatus
from chargehand.core.state import MissionState
from chargehand.policy.access import answer_action
from chargehand.server._routes import (
    Limit,
    MissionName,
    NamedMission,
    Offset,
    RawContent,
    RestArguments,
    Route,
    Short,
    Text,
    Words,
)

_Reason = Annotated[str, Meta(max_length=10_000)]
_Many = Annotated[tuple[Words, ...], Meta(max_length=50)]


class MissionQuery(RestArguments, frozen=True):
    """Which missions a page has; `q` is looked for in ids and requests."""

    status: tuple[MissionStatus, ...] = ()
    project: Short | None = None
    user: Short | None = None
    since: Annotated[str, Meta(max_length=40, description="7d, 12h or a date (UTC).")] | None = None
    q: Annotated[str, Meta(max_length=200)] = ""
    limit: Limit = 50
    cursor: Annotated[str, Meta(max_length=64, description="`next` of the page before.")] | None = None


class NewMission(RestArguments, frozen=True):
    """What a mission is asked for with; `repo` is a registered project, by its id or path."""

    request: Text
    repo: Words
    key: Annotated[Short, Meta(description="Your own name for it: the same key is the same mission.")] | None = (
        None
    )
    directory: Words | None = None
    base: Words | None = None
    agent: Words | None = None
    model: Words | None = None
    role: Short | None = None
    team: Short | None = None
    checks: _Many = ()
    allow: _Many = ()
    forbid: _Many = ()
    budget: Annotated[float, Meta(gt=0, le=1_000_000, description="At most so many USD on models.")] | None = None
    time: Annotated[str, Meta(max_length=40, description="At most this long, such as 30m.")] | None = None
    attempts: Annotated[int, Meta(ge=1, le=100)] | None = None
    plan: Annotated[str, Meta(pattern="^auto$", description="`auto`: a planner names the tasks.")] | None = None
    break_at: Annotated[_Many, Meta(description="Where it pauses: plan, task:ID, step, promote.")] = ()


class PageOfMission(RestArguments, frozen=True):
    """A page of something that a mission has."""

    mission: MissionName
    after: Offset = 0
    limit: Limit = 200


class ReportQuery(RestArguments, frozen=True):
    """In which form a report is given."""

    mission: MissionName
    format: Annotated[str, Meta(pattern="^(json|markdown)$")] = "json"


class RollbackQuery(RestArguments, frozen=True):
    """What is rolled back: a mission, or one task of it, `with_dependents` those that are built on it too."""

    mission: MissionName
    task: Short | None = None
    with_dependents: bool = False


class PauseBody(RestArguments, frozen=True):
    """A mission to pause, and why."""

    mission: MissionName
    reason: _Reason = ""


class DiscardBody(RestArguments, frozen=True):
    """A mission, or a task of it, that is not wanted, and why."""

    mission: MissionName
    reason: _Reason = ""
    task: Short | None = None


class PromoteBody(RestArguments, frozen=True):
    """An approval, and why; `tree` refuses it where the mission's tree is another one by now."""

    mission: MissionName
    reason: _Reason = ""
    task: Short | None = None
    tree: Annotated[str, Meta(max_length=64)] = ""


class ResumeBody(RestArguments, frozen=True):
    """How far a mission goes on: `step` until its next step, `to_end` past all breakpoints."""

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
    """An answer; the number of an option stands for its text. Refused where another `question` is asked by now."""

    mission: MissionName
    text: Text
    question: Short | None = None
    task: Short | None = None


class ForkBody(RestArguments, frozen=True):
    """Which reply a new mission goes on from, `[ATTEMPT.]TURN`, and with which model or edited reply."""

    mission: MissionName
    at: Annotated[str, Meta(max_length=20)] | None = None
    model: Words | None = None
    reply: Text | None = None


class ContinueBody(RestArguments, frozen=True):
    """What is wanted further of a mission that ended."""

    mission: MissionName
    request: Text
    attempts: Annotated[int, Meta(ge=1, le=100)] | None = None
    time: Annotated[str, Meta(max_length=40)] | None = None
    budget: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None


class StartTask(RestArguments, frozen=True):
    """A held task of a plan."""

    mission: MissionName
    task: Short


def _mission_result(app: App, state: MissionState) -> MissionDocument:
    return mission_document(state, explain_failures(app.store, state))


def _start(app: App, call: NewMission, by: Caller) -> MissionDocument:
    repository = app.store.projects.find(call.repo).path
    asked = client_request(call, text=call.request, repo=repository)
    asked = replace(asked, break_at=",".join(call.break_at) or None)
    request, plan = plan_request(app, asked)
    if call.key is None:
        mission = record_mission(app, request, plan=plan)
    else:
        content = msgspec.json.encode(
            msgspec.structs.replace(call, key=None, repo=str(repository)), order="sorted"
        )
        key = IdempotencyKey("rest", f"{app.identity()} {call.key}", hashlib.sha256(content).hexdigest())
        mission, _ = record_once(app, request, key, plan=plan)
    ensure_worker(app)
    return _mission_result(app, app.mission_reader.state(mission))


def _answer(app: App, call: AnswerBody, by: Caller) -> MissionDocument:
    asked = addressed_mission(app, call.mission, "answer", task=call.task)
    if asked.question is not None:
        # To permit or to decide something is more than to clarify it.
        require_access(app, by, answer_action(asked.question.kind), asked.mission)
    return _mission_result(app, answer_mission(app, asked, call.text, question=call.question).state)


def _send(app: App, call: SendBody, by: Caller) -> MessageDocument:
    meant = addressed_mission(app, call.mission, "send", task=call.task)
    return message_document(send_message(app, meant.mission, call.text, critical=call.critical))


async def _promote(app: App, call: PromoteBody, by: Caller) -> MissionDocument:
    meant = addressed_mission(app, call.mission, "promote", task=call.task)
    return _mission_result(app, await promote_mission(app, meant.mission, reason=call.reason, tree=call.tree))


def _discard(app: App, call: DiscardBody, by: Caller) -> MissionDocument:
    meant = addressed_mission(app, call.mission, "discard", task=call.task)
    return _mission_result(app, discard_mission(app, meant.mission, reason=call.reason))


async def _roll_back(app: App, call: RollbackQuery, by: Caller) -> MissionDocument:
    if call.task is None:
        return _mission_result(app, await roll_back_mission(app, call.mission))
    return _mission_result(
        app, await roll_back_task(app, call.mission, call.task, with_dependents=call.with_dependents)
    )


def _fork(app: App, call: ForkBody, by: Caller) -> MissionDocument:
    if call.reply is not None and call.reply.startswith("@"):
        # On the command line it names a file; a client has none here.
        call = msgspec.structs.replace(call, reply=f" {call.reply}")
    made, _ = fork_mission(app, ForkRequest(mission=call.mission, at=call.at, model=call.model, reply=call.reply))
    ensure_worker(app)
    return _mission_result(app, app.mission_reader.state(made))


def _continue(app: App, call: ContinueBody, by: Caller) -> MissionDocument:
    made = follow_up_mission(
        app,
        FollowUp(
            mission=call.mission,
            text=call.request,
            attempts=None if call.attempts is None else str(call.attempts),
            time=call.time,
            budget=None if call.budget is None else repr(call.budget),
        ),
    )
    ensure_worker(app)
    return _mission_result(app, app.mission_reader.state(made))


def _report(reader: StateReader, call: ReportQuery, by: Caller) -> MissionReport | RawContent:
    made, markdown = report_mission(reader, call.mission)
    return made if call.format == "json" else RawContent(markdown.encode(), "text/markdown; charset=utf-8")


def _page(reader: StateReader, call: MissionQuery, by: Caller) -> MissionPage:
    return page_missions(
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


_ONE = "/missions/{mission}"
ROUTES = (
    Route(
        method="GET", path="/missions", action="mission.list",
        summary="List missions, the newest first.",
        takes=MissionQuery, gives=MissionPage, call=_page, commands=("mission list",),
    ),
    Route(
        method="POST", path="/missions", action="mission.start",
        summary="Start a mission; a worker runs it.", status=201,
        takes=NewMission, gives=MissionDocument, call=_start, commands=("run",),
    ),
    Route(
        method="GET", path=_ONE, action="mission.show", summary="Show everything about a mission.",
        takes=NamedMission, gives=MissionDetails,
        call=lambda reader, call, by: show_mission(reader, call.mission)[1],
        commands=("mission show",),
    ),
    Route(
        method="GET", path=f"{_ONE}/events", action="mission.events",
        summary="Read a page of a mission's log in words.",
        takes=PageOfMission, gives=EventPage,
        call=lambda reader, call, by: page_events(reader, call.mission, after=call.after, limit=call.limit),
    ),
    Route(
        method="GET", path=f"{_ONE}/transcript", action="mission.transcript",
        summary="Read a page of what its agents said and did.",
        takes=PageOfMission, gives=TranscriptPage, commands=("mission log",),
        call=lambda reader, call, by: page_transcript(reader, call.mission, after=call.after, limit=call.limit),
    ),
    Route(
        method="GET", path=f"{_ONE}/plan", action="mission.plan",
        summary="Show the tasks of a mission and how far each is.",
        takes=NamedMission, gives=PlanDocument, commands=("mission plan",),
        call=lambda reader, call, by: show_plan(reader, call.mission),
    ),
    Route(
        method="POST", path=f"{_ONE}/plan/start", action="mission.replan",
        summary="Start a held task beside the others.",
        takes=StartTask, gives=TaskAllowedDocument, commands=("mission plan",),
        call=lambda app, call, by: start_held_task(app, call.mission, call.task),
    ),
    Route(
        method="GET", path=f"{_ONE}/report", action="mission.report",
        summary="Report what was asked, done, decided and spent.",
        takes=ReportQuery, gives=MissionReport, raw="text/markdown", call=_report,
        commands=("mission report",),
    ),
    Route(
        method="GET", path=f"{_ONE}/review", action="mission.review",
        summary="Show its change for a review: files by risk, in hunks.",
        takes=NamedMission, gives=ChangeReview,
        call=lambda reader, call, by: review_mission(reader, call.mission),
    ),
    Route(
        method="POST", path=f"{_ONE}/pause", action="mission.pause",
        summary="Freeze a mission where it is.",
        takes=PauseBody, gives=MissionDocument, commands=("mission pause",),
        call=lambda app, call, by: _mission_result(app, pause_mission(app, call.mission, reason=call.reason)),
    ),
    Route(
        method="POST", path=f"{_ONE}/resume", action="mission.resume",
        summary="Resume it from its last recorded step.",
        takes=ResumeBody, gives=MissionDocument, commands=("mission resume",),
        call=lambda app, call, by: _mission_result(
            app, resume_mission(app, call.mission, step=call.step, to_end=call.to_end).state
        ),
    ),
    Route(
        method="POST", path=f"{_ONE}/cancel", action="mission.cancel",
        summary="Stop a mission, or close one that waits.",
        takes=NamedMission, gives=MissionDocument, commands=("mission cancel",),
        call=lambda app, call, by: _mission_result(app, cancel_mission(app, call.mission)),
    ),
    Route(
        method="POST", path=f"{_ONE}/send", action="mission.send",
        summary="Send the agent a message.",
        takes=SendBody, gives=MessageDocument, call=_send, commands=("mission send",),
    ),
    Route(
        method="POST", path=f"{_ONE}/answer", action="mission.answer",
        summary="Answer what a mission asks.",
        takes=AnswerBody, gives=MissionDocument, call=_answer, commands=("mission answer",),
    ),
    Route(
        method="POST", path=f"{_ONE}/promote", action="mission.promote",
        summary="Approve a waiting mission and promote it.",
        takes=PromoteBody, gives=MissionDocument, call=_promote, commands=("mission promote",),
    ),
    Route(
        method="POST", path=f"{_ONE}/discard", action="mission.discard",
        summary="Settle a mission as not wanted.",
        takes=DiscardBody, gives=MissionDocument, call=_discard, commands=("mission discard",),
    ),
    Route(
        method="GET", path=f"{_ONE}/rollback", action="mission.diff",
        summary="Show what rolling it back would do.",
        takes=RollbackQuery, gives=RollbackPreviewDocument, commands=("mission rollback",),
        call=lambda reader, call, by: preview_roll_back(
            reader, call.mission, task=call.task, with_dependents=call.with_dependents
        ),
    ),
    Route(
        method="POST", path=f"{_ONE}/rollback", action="mission.rollback",
        summary="Undo its promotion by a new commit.",
        takes=RollbackQuery, gives=MissionDocument, call=_roll_back, commands=("mission rollback",),
    ),
    Route(
        method="POST", path=f"{_ONE}/fork", action="mission.fork",
        summary="Start a mission from one of its replies.",
        takes=ForkBody, gives=MissionDocument, call=_fork, commands=("mission fork",), status=201,
    ),
    Route(
        method="POST", path=f"{_ONE}/continue", action="mission.continue",
        summary="Let it go on with what you add.",
        takes=ContinueBody, gives=MissionDocument, call=_continue, commands=("mission continue",),
    ),
)  # fmt: skip
