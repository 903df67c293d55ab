"""Documents about missions: one record for each `--json` output, MCP tool result and REST body.

Fields are printed in order of declaration. An unknown value is null, never 0 or "".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from chargehand.core.attempt_events import MessageReceived, ReportMade, RoleChosen
from chargehand.core.codec import decode_as
from chargehand.core.codec import to_json as to_json  # a part of this face
from chargehand.core.events import Event, is_damaged, read_payload
from chargehand.core.mission_events import MergeConflicted, MessageSent, MissionQueued
from chargehand.core.plan_events import TaskTally
from chargehand.core.records import (
    Base,
    Checkpoint,
    Export,
    Feedback,
    Finding,
    FlakyTest,
    KnownFailures,
    MissionRequest,
    Promotion,
    QuestionKind,
    Reason,
    Reverted,
    TargetDelivery,
    TierChoice,
    Verdict,
)
from chargehand.core.state import AttemptState, AttemptUsage, MissionState, MissionSummary, NetworkUse, Question
from chargehand.core.steps import step_of
from chargehand.missions.causes import Cause, attempt_cause, mission_cause
from chargehand.missions.waiting import WaitingTask, tasks_reason
from chargehand.reports.outcome import (
    FailureDocument,
    conclude,
    ended_with_report,
    exported_branch,
    mission_cost,
    mission_seconds,
    sums_differ,
    was_rolled_back,
)
from chargehand.store.chain import AuditProblem


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """One JSON document that a command prints."""


class ArtifactEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One artifact of a mission; `size` in bytes, `time` in ISO 8601."""

    id: str
    kind: str
    size: int
    time: str


class CauseDocument(Document, frozen=True):
    """The cause of an ending without success: its class, a stable code, and a remedy."""

    kind: str = msgspec.field(name="class")
    code: str | None
    remedy: str


class ReportDocument(Document, frozen=True):
    """The last report of a mission whose role changes no files; `artifact` holds the whole report."""

    role: str
    kind: str
    text: str
    artifact: str


class DifferingSums(Document, frozen=True):
    """Two sums in USD over the same calls: as the provider reported them, and from tokens and price."""

    reported_usd: float
    computed_usd: float


class MoneyDocument(Document, frozen=True):
    """The known part of an attempt's cost: its calls to models, and the USD counted against the limits.

    `differing` is set if the providers' reports and our computation differ by 1 % or more.
    """

    calls: int
    unknown_calls: int
    booked_usd: float
    differing: DifferingSums | None


class AttemptDocument(Document, frozen=True):
    """One attempt of an agent; `seconds` is null while it runs, `cost_usd` if the cost is unknown."""

    agent: str
    model: str | None
    status: str
    verdict: str | None
    cost_usd: float | None
    cost_known: bool
    money: MoneyDocument
    seconds: float | None
    cause: CauseDocument | None
    usage: AttemptUsage


class AttemptDetails(Document, frozen=True):
    """One attempt with its workspace, reasons and failure snapshot (`captured`, an artifact)."""

    id: str
    number: int
    agent: str
    model: str | None
    status: str
    verdict: str | None
    cost_usd: float | None
    cost_known: bool
    money: MoneyDocument
    seconds: float | None
    cause: CauseDocument | None
    usage: AttemptUsage
    workspace: str
    reasons: tuple[Reason, ...]
    captured: str | None


class MissionOutline(Document, frozen=True):
    """The status of a mission, from its projected row.

    `directory` is where its agent starts, "." at the top of the repository. `branch` is in the user's repository,
    `commit` in the depot. `unread` is the changed code that no check opened, null if reads were not observed.
    `cost_usd` is null if one attempt's cost is unknown. `seconds` are from the first event to the last or the end,
    without pauses and waits for a person. `rolled_back`: its promotion was undone. `parent` is the coordinator of
    a `task`'s mission; `tasks` counts those of a coordinator, whose cost includes all their missions.
    """

    mission: str
    status: str
    rolled_back: bool
    role: str | None
    report: ReportDocument | None
    directory: str | None
    branch: str | None
    commit: str | None
    base: str | None
    export: Export | None
    checkpoints: int
    reverted: list[Reverted]
    unread: tuple[str, ...] | None
    attempts: list[AttemptDocument]
    cost_usd: float | None
    cost_known: bool
    seconds: float | None
    reasons: tuple[Reason, ...]
    cause: CauseDocument | None
    question: Question | None
    parent: str | None
    task: str | None
    tasks: TaskTally | None


class MissionDocument(MissionOutline, frozen=True):
    """The status of a mission, printed by `run`, `fork` and every command that changes a mission.

    `failures` are the failed checks or the failed agent of a mission that is not promoted, `next` the commands
    that make sense now. `warnings` are inspection's warnings about its last tree. `known_failures` and `flaky` are
    from the last verdict on that tree: failures that the base has too, and tests that both passed and failed.
    """

    failures: tuple[FailureDocument, ...]
    next: tuple[str, ...]
    warnings: tuple[Finding, ...]
    known_failures: tuple[KnownFailures, ...]
    flaky: tuple[FlakyTest, ...]


class ListedMission(MissionOutline, frozen=True):
    """One mission of `mission list`; `waits` is the reason if it should run and does not.

    `waiting` are the tasks of a coordinator that wait for a person. `damaged` says that lines of its log are
    unreadable: no worker continues it.
    """

    repository: str
    created: str
    updated: str
    request: str | None
    waits: Reason | None
    waiting: tuple[WaitingTask, ...]
    damaged: bool


class MissionListDocument(Document, frozen=True):
    """`mission list`: the newest first; `left_out` counts older missions omitted by `--limit`.

    The missions of a listed coordinator's tasks are included, and do not count.
    """

    missions: list[ListedMission]
    left_out: int


class SandboxKind(Document, frozen=True):
    """A sandbox tier and the workspace driver used with it."""

    tier: str
    driver: str


class DamagedLine(Document, frozen=True):
    """A line of a mission's log that is not as written, and its difference; `audit verify` gives details."""

    seq: int | None
    kind: str
    message: str


class MissionDetails(Document, frozen=True):
    """`mission show`: all details of one mission; it begins with the keys of the result.

    With `damaged` lines it is based on the others, and no worker continues the mission. `budget_usd` is its
    current limit of costs for models; `None` without a limit. `deliveries` go to targets other than branches.
    `feedback` is what was not retracted; it counts for attempts that ended well.
    """

    mission: str
    status: str
    rolled_back: bool
    role: str | None
    report: ReportDocument | None
    directory: str | None
    branch: str | None
    commit: str | None
    base: Base | None
    export: Export | None
    checkpoints: list[Checkpoint]
    reverted: list[Reverted]
    unread: tuple[str, ...] | None
    attempts: list[AttemptDetails]
    cost_usd: float | None
    cost_known: bool
    seconds: float | None
    reasons: tuple[Reason, ...]
    cause: CauseDocument | None
    question: Question | None
    parent: str | None
    task: str | None
    tasks: TaskTally | None
    failures: tuple[FailureDocument, ...]
    next: tuple[str, ...]
    warnings: tuple[Finding, ...]
    known_failures: tuple[KnownFailures, ...]
    flaky: tuple[FlakyTest, ...]
    budget_usd: float | None
    project: str
    repository: str
    created: str
    updated: str
    request: MissionRequest | None
    tree: str | None
    applied: Export | None
    deliveries: tuple[TargetDelivery, ...]
    promotions: tuple[Promotion, ...]
    feedback: tuple[Feedback, ...]
    verdicts: list[Verdict]
    conflicts: list[MergeConflicted]
    network: NetworkUse
    messages: list[MessageSent]
    acknowledged: list[str]
    received: list[MessageReceived]
    undelivered: dict[str, Reason]
    tier: TierChoice | None
    role_chosen: RoleChosen | None
    reports: list[ReportMade]
    queued: MissionQueued | None
    unknown_events: int
    places: list[SandboxKind]
    waits: Reason | None
    waiting: tuple[WaitingTask, ...]
    damaged: tuple[DamagedLine, ...]


class EventDocument(Document, frozen=True):
    """One line of a log; an erased payload is null, and a `damaged` line unreadable (`audit verify` says why)."""

    mission: str
    seq: int
    time: str
    type: str
    step: str | None
    payload: Any
    damaged: bool
    hash: str


class TranscriptDocument(Document, frozen=True):
    """One line of `mission log --transcript`; `reply` is the value for `mission fork --at`."""

    mission: str
    speaker: str
    attempt: int
    reply: str
    text: str
    tool: str
    model: str
    failed: bool
    artifact: str | None
    own_word: bool


class CheckpointsDocument(Document, frozen=True):
    """`checkpoint list`: the oldest first."""

    mission: str
    checkpoints: list[Checkpoint]


class QuestionDocument(Document, frozen=True):
    """`mission answer` without an answer: the open question; `meanings` explains each option, or is empty."""

    mission: str
    question: str
    text: str
    options: tuple[str, ...]
    kind: QuestionKind
    closed: bool
    expires: str
    default: str
    meanings: tuple[str, ...]


Delivery = Literal["next_step", "next_attempt", "next_task", "no_attempt_left", "on_resume"]


class MessageDocument(Document, frozen=True):
    """`mission send`: the recorded message, when it reaches the agent, and the number of the mission's messages.

    `delivery` is `next_step` if the agent listens while it works, `next_attempt` if it does not, `no_attempt_left`
    if this is its last one, `on_resume` if the mission is not running, or `next_task` if it has a plan: tasks that
    begin from then on get the message.
    """

    mission: str
    status: str
    messages: int
    message: str
    critical: bool
    delivery: Delivery


def mission_document(state: MissionState, failures: tuple[FailureDocument, ...] = ()) -> MissionDocument:
    """Return the status of a mission; `failures` come from `explain_failures`."""
    return MissionDocument(**_outline(state), **conclude(state, failures))


def listed_mission(
    state: MissionSummary, waits: Reason | None, waiting: tuple[WaitingTask, ...] = ()
) -> ListedMission:
    """Return a mission as `mission list` shows it."""
    return ListedMission(
        **_outline(state),
        repository=state.repository,
        created=state.created,
        updated=state.updated,
        request=state.request.text if state.request else None,
        waits=waits or tasks_reason(waiting),
        waiting=waiting,
        damaged=state.damaged_events > 0,
    )


def mission_details(
    state: MissionState,
    places: list[SandboxKind],
    waits: Reason | None,
    damaged: Sequence[AuditProblem] = (),
    failures: tuple[FailureDocument, ...] = (),
    waiting: tuple[WaitingTask, ...] = (),
    promotions: tuple[Promotion, ...] = (),
    feedback: tuple[Feedback, ...] = (),
) -> MissionDetails:
    """Return all details of a mission.

    `places` are the kinds of sandboxes that it used, `damaged` the problems of its log, `failures` come from
    `explain_failures`, `waiting` are the tasks of a coordinator that wait for a person, `promotions`
    and `feedback` those of its `MissionTruth`.
    """
    known: dict[str, Any] = _outline(state) | {
        "base": state.base,
        "checkpoints": state.checkpoints,
        "attempts": [
            AttemptDetails(
                id=attempt.id,
                number=attempt.number,
                **_attempt(attempt, state.id),
                workspace=attempt.workspace,
                reasons=attempt.reasons,
                captured=attempt.captured,
            )
            for attempt in state.attempts
        ],
    }
    return MissionDetails(
        **known,
        **conclude(state, failures),
        budget_usd=None if state.config is None else state.config.limits.budget_usd,
        project=state.project,
        repository=state.repository,
        created=state.created,
        updated=state.updated,
        request=state.request,
        tree=state.tree,
        applied=state.applied,
        deliveries=tuple(state.deliveries.values()),
        promotions=promotions,
        feedback=feedback,
        verdicts=state.verdicts,
        conflicts=state.conflicts,
        network=state.network,
        messages=state.messages,
        acknowledged=sorted(state.acknowledged),
        received=state.received,
        undelivered=state.undelivered,
        tier=state.tier,
        role_chosen=state.role,
        reports=state.reports,
        queued=state.queued,
        unknown_events=state.unknown_events,
        places=places,
        waits=waits or tasks_reason(waiting),
        waiting=waiting,
        damaged=tuple(DamagedLine(seq=each.seq, kind=each.kind, message=each.message) for each in damaged),
    )


def _outline(state: MissionSummary) -> dict[str, Any]:
    """Return the fields that every mission document begins with."""
    cost, known = mission_cost(state)
    base = state.base.commit if state.base else None
    reported = ended_with_report(state)
    report = state.report
    return {
        "mission": state.id,
        "status": state.status,
        "rolled_back": was_rolled_back(state),
        "role": state.role.role if state.role else None,
        "report": report
        and ReportDocument(role=report.role, kind=report.kind, text=report.text, artifact=report.artifact),
        "directory": state.request and (state.request.directory or "."),
        "branch": exported_branch(state),
        # A mission that ends with a report changes nothing: its commit is the base, with nothing to export.
        "commit": base if reported else state.commit,
        "base": base,
        "export": Export(ref="", state="done", reason="report") if reported else state.export,
        "checkpoints": state.checkpoint_count,
        "reverted": state.reverted,
        "unread": state.unread,
        "attempts": [AttemptDocument(**_attempt(attempt, state.id)) for attempt in state.attempts],
        "cost_usd": cost,
        "cost_known": known,
        "seconds": mission_seconds(state),
        "reasons": state.reasons,
        "cause": cause_document(mission_cause(state), state.id),
        "question": state.open_question,
        "parent": state.parent or None,
        "task": state.task or None,
        "tasks": state.tasks,
    }


def _attempt(attempt: AttemptState, mission: str) -> dict[str, Any]:
    return {
        "agent": attempt.agent,
        "model": attempt.model,
        "status": attempt.status,
        "verdict": attempt.verdict,
        "cost_usd": attempt.cost_usd if attempt.cost_known else None,
        "cost_known": attempt.cost_known,
        "money": money_document(attempt),
        "seconds": attempt.seconds,
        "cause": cause_document(attempt_cause(attempt), mission),
        "usage": attempt.usage,
    }


def event_document(event: Event) -> EventDocument:
    """Return one line of a log as a document."""
    payload = None
    damaged = False
    try:
        payload = None if event.payload is None else decode_as(event.payload, Any)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        damaged = True
    return EventDocument(
        mission=event.mission,
        seq=event.seq,
        time=event.time,
        type=event.type,
        step=event_step(event) or None,
        payload=payload,
        damaged=damaged or is_damaged(event),
        hash=event.hash,
    )


def event_step(event: Event) -> str:
    """Return the step of a mission that a line of the log belongs to, "" without a step."""
    payload = read_payload(event)
    return (step_of(payload) or "") if payload is not None else ""


def cause_document(cause: Cause | None, mission: str) -> CauseDocument | None:
    """Return the cause of an ending without success, its remedy naming the mission; `None` on success."""
    if cause is None:
        return None
    return CauseDocument(kind=cause.kind, code=cause.code, remedy=cause.remedy.replace("MISSION", mission))


def money_document(attempt: AttemptState) -> MoneyDocument:
    """Return the known part of an attempt's cost, its amount for the limits, and sums that differ."""
    sums = DifferingSums(reported_usd=attempt.reported_usd, computed_usd=attempt.computed_usd)
    return MoneyDocument(
        calls=attempt.calls,
        unknown_calls=attempt.unknown_calls,
        booked_usd=attempt.booked_usd,
        differing=sums if sums_differ(attempt) else None,
    )
