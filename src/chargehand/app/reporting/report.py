"""The report on a mission, of its state and log: what was asked, done, refused, judged, decided and spent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from msgspec import Struct

from chargehand.app.documents import DamagedLine, Document
from chargehand.app.outcome import (
    FailureDocument,
    ended_with_report,
    exported_branch,
    mission_cost,
    mission_seconds,
    was_rolled_back,
)
from chargehand.app.progress.event_text import describe
from chargehand.app.storage import ArtifactEntry
from chargehand.core.attempt_events import AttemptResumed, ReplayDiverged
from chargehand.core.events import Event, Payload
from chargehand.core.fold import read_payload
from chargehand.core.mission_events import (
    CLOCK,
    ApprovalGiven,
    CancelAsked,
    ChangesReverted,
    MessageSent,
    MissionInterrupted,
    MissionPaused,
    MissionResumed,
    PromotionDone,
    QuestionAnswered,
    VerdictGiven,
)
from chargehand.core.records import Base, CheckResult, Export, Finding, Reason, Reverted, Verdict
from chargehand.core.state import SETTLED, AttemptState, MissionState
from chargehand.workspace.depot import LineCount

_P = TypeVar("_P", bound=Payload)
_BY_A_PERSON = (ApprovalGiven, CancelAsked, MessageSent, MissionPaused, MissionResumed, QuestionAnswered)
_INTERRUPTIONS = (MissionInterrupted, AttemptResumed, ReplayDiverged)


class ReportRequest(Document, frozen=True):
    """What was asked, by whom and when, on which base; who was to work on it and why."""

    text: str | None
    user: str
    created: str
    repository: str
    forked_from: str | None
    base: Base | None
    role: str | None
    role_digest: str | None
    agent: str | None
    model: str | None
    why: str


class AttemptReport(Document, frozen=True):
    """One attempt, and why what it left was not taken: `failures` are checks, and the agent's own end.

    `findings` name lost and weakened tests too; `unread` is changed code that no check opened, null where that
    was not observed.
    """

    number: int
    agent: str
    model: str | None
    status: str
    verdict: str | None
    tree: str | None
    seconds: float | None
    cost_usd: float | None
    cost_known: bool
    calls: int
    unknown_calls: int
    reasons: tuple[Reason, ...]
    failures: tuple[FailureDocument, ...]
    findings: tuple[Finding, ...]
    reverted: tuple[Reverted, ...]
    unread: tuple[str, ...] | None


class PromotedTree(Document, frozen=True):
    """What was promoted last, with the verdict on exactly that tree, null where the log no longer has one.

    `undone_by` is the commit of a roll-back.
    """

    commit: str
    tree: str
    base: Base | None
    verdict: Verdict | None
    undone_by: str | None


class ReportedEvent(Document, frozen=True):
    """Something that a person decided, or that broke into the mission; `text` is all that they wrote."""

    time: str
    kind: str
    identity: str | None
    about: str
    text: str


class UndoAdvice(Document, frozen=True):
    """How to take back what the mission did, as it stands now; no commands where there is nothing to undo."""

    text: str
    commands: tuple[str, ...]


class MissionReport(Document, frozen=True):
    """`mission report`: what a person files at the end. What is not known is null, never 0 or empty.

    `final` says that nothing goes on by itself any more. `files` are null where the trees cannot be read. With
    `damaged` lines it is what the others tell.
    """

    mission: str
    status: str
    final: bool
    rolled_back: bool
    reasons: tuple[Reason, ...]
    damaged: tuple[DamagedLine, ...]
    unknown_events: int
    asked: ReportRequest
    files: tuple[LineCount, ...] | None
    checkpoints: int
    branch: str | None
    export: Export | None
    applied: Export | None
    role_report: str | None
    promoted: PromotedTree | None
    only_checks: tuple[str, ...] | None
    on_base: tuple[CheckResult, ...]
    attempts: tuple[AttemptReport, ...]
    judged_again: tuple[Verdict, ...]
    decisions: tuple[ReportedEvent, ...]
    interruptions: tuple[ReportedEvent, ...]
    cost_usd: float | None
    cost_known: bool
    seconds: float | None
    evidence: tuple[ArtifactEntry, ...]
    undo: UndoAdvice


class ReportSource(Struct, frozen=True, kw_only=True):
    """All that a report is made of; `explain` gives a failed check's lines, `failures` are the mission's own."""

    state: MissionState
    events: Sequence[Event]
    files: tuple[LineCount, ...] | None
    evidence: tuple[ArtifactEntry, ...]
    damaged: tuple[DamagedLine, ...]
    failures: tuple[FailureDocument, ...]
    explain: Callable[[CheckResult], FailureDocument]


def build_report(source: ReportSource) -> MissionReport:
    """Return the report on a mission as it stands."""
    state = source.state
    log = [(line, payload) for line in source.events if (payload := read_payload(line)) is not None]
    moves = _payloads(log, PromotionDone)
    given = _payloads(log, VerdictGiven)
    on_base = [each.verdict for each in given if each.verdict.scope == "base"]
    promoted = None
    if moves:
        of_tree = [each.verdict for each in given if each.verdict.tree == moves[-1].tree]
        promoted = PromotedTree(
            commit=moves[-1].commit,
            tree=moves[-1].tree,
            base=state.promoted_on,
            verdict=next((each for each in reversed(of_tree) if each.scope != "base"), None),
            undone_by=state.commit if was_rolled_back(state) else None,
        )
    known = {attempt.id for attempt in state.attempts}
    cost, cost_known = mission_cost(state)
    return MissionReport(
        mission=state.id,
        status=state.status,
        final=state.status in SETTLED - {"waiting", "paused"},
        rolled_back=was_rolled_back(state),
        reasons=state.reasons,
        damaged=source.damaged,
        unknown_events=state.unknown_events,
        asked=_describe_request(state),
        files=source.files,
        checkpoints=state.checkpoint_count,
        branch=exported_branch(state),
        export=state.export,
        applied=state.applied,
        role_report=state.report.text if state.report else None,
        promoted=promoted,
        only_checks=state.request.only_checks if state.request else None,
        on_base=on_base[-1].checks if on_base else (),
        attempts=tuple(_describe_attempt(source, attempt, log) for attempt in state.attempts),
        judged_again=tuple(
            each.verdict for each in given if each.verdict.scope != "base" and each.attempt not in known
        ),
        decisions=tuple(_decisions(state, log)),
        interruptions=tuple(
            ReportedEvent(time=line.time, kind=payload.type, identity=None, about="", text=describe(payload))
            for line, payload in log
            if isinstance(payload, _INTERRUPTIONS)
        ),
        cost_usd=cost,
        cost_known=cost_known,
        seconds=mission_seconds(state),
        evidence=source.evidence,
        undo=advise_undo(state),
    )


def _payloads(log: Sequence[tuple[Event, Payload]], kind: type[_P]) -> list[_P]:
    return [payload for _, payload in log if isinstance(payload, kind)]


def _describe_request(state: MissionState) -> ReportRequest:
    request, role = state.request, state.role
    return ReportRequest(
        text=request.text if request else None,
        user=state.user,
        created=state.created,
        repository=state.repository,
        forked_from=state.forked_from,
        base=state.first_base or state.base,
        role=role.role if role else (request.role or None if request else None),
        role_digest=role.digest if role else None,
        agent=request.agent if request else None,
        model=request.model if request else None,
        why=request.why if request else "",
    )


def _describe_attempt(
    source: ReportSource, attempt: AttemptState, log: Sequence[tuple[Event, Payload]]
) -> AttemptReport:
    given = [each.verdict for each in _payloads(log, VerdictGiven) if each.attempt == attempt.id]
    verdict = given[-1] if given else None
    failed = [check for check in verdict.checks if check.status != "passed"] if verdict else []
    last = attempt is source.state.attempts[-1]
    ended = [each for each in source.failures if last and each.kind == "agent"]
    reverted = [each for each in _payloads(log, ChangesReverted) if each.attempt == attempt.id]
    return AttemptReport(
        number=attempt.number,
        agent=attempt.agent,
        model=attempt.model,
        status=attempt.status,
        verdict=attempt.verdict,
        tree=verdict.tree if verdict else None,
        seconds=attempt.seconds,
        cost_usd=attempt.cost_usd if attempt.cost_known else None,
        cost_known=attempt.cost_known,
        calls=attempt.calls,
        unknown_calls=attempt.unknown_calls,
        reasons=attempt.reasons,
        failures=(*map(source.explain, failed), *ended),
        findings=verdict.findings if verdict else (),
        reverted=tuple(path for each in reverted for path in each.reverted),
        unread=verdict.unread if verdict else None,
    )


def _decisions(state: MissionState, log: Sequence[tuple[Event, Payload]]) -> Iterator[ReportedEvent]:
    """Yield what persons decided: approvals, answers, messages, and orders to pause, resume and cancel."""
    for line, payload in log:
        if not isinstance(payload, _BY_A_PERSON) or (isinstance(payload, MessageSent) and payload.again):
            continue
        if payload.identity == CLOCK:
            continue
        about, text = "", ""
        match payload:
            case QuestionAnswered():
                asked = state.questions.get(payload.question)
                about, text = asked.text if asked else payload.question, payload.text
            case ApprovalGiven():
                about, text = f"tree {payload.tree}", payload.reason
            case MessageSent():
                text = payload.text
            case MissionPaused():
                text = payload.reason
        yield ReportedEvent(time=line.time, kind=payload.type, identity=payload.identity, about=about, text=text)


def advise_undo(state: MissionState) -> UndoAdvice:
    """Return how to undo a mission, with commands that are right in the state that it is in."""
    back, cancel = f"chargehand mission rollback {state.id}", f"chargehand mission cancel {state.id}"
    if was_rolled_back(state):
        text = "It was rolled back: the branch has the tree of its base again. To take the change in again:"
        return UndoAdvice(text=text, commands=(f"chargehand mission promote {state.id}",))
    if state.commit is not None:
        if state.applied is not None and state.applied.state == "done":
            text = "It was applied to a branch of yours. Both put commits on top of it, and move nothing back:"
            reverted = f"git revert {state.promoted_on.commit}..{state.commit}" if state.promoted_on else ""
            return UndoAdvice(text=text, commands=(back, *([reverted] if reverted else [])))
        branch = exported_branch(state)
        text = "A roll-back puts a commit on the mission's branch that takes the change back"
        if branch is None:
            return UndoAdvice(text=f"{text}; nothing was written into your repository:", commands=(back,))
        text += "; where nothing was merged from it, the branch may as well be deleted:"
        return UndoAdvice(text=text, commands=(back, f"git branch -D {branch}"))
    if ended_with_report(state):
        text = "There is nothing to undo: it ended with a report and changed no file."
        return UndoAdvice(text=text, commands=())
    if state.status == "waiting":
        text = "Nothing of it is in your repository yet. To settle it as not wanted:"
        return UndoAdvice(text=text, commands=(f"chargehand mission discard {state.id}",))
    if state.status in ("planned", "running", "paused"):
        return UndoAdvice(text="Nothing of it is in your repository yet. To end it:", commands=(cancel,))
    text = "There is nothing to undo: nothing of it reached your repository."
    return UndoAdvice(text=text, commands=())
