"""The report on a mission, from its state and log: request, changes, refusals, verdicts, decisions and cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from msgspec import Struct

from chargehand.core.attempt_events import AttemptResumed, ReplayDiverged
from chargehand.core.events import Event, Payload, read_payload
from chargehand.core.mission_events import (
    CLOCK,
    ApprovalGiven,
    CancelAsked,
    ChangesReverted,
    MessageSent,
    MissionContinued,
    MissionInterrupted,
    MissionPaused,
    MissionResumed,
    PromotionDone,
    QuestionAnswered,
    VerdictGiven,
)
from chargehand.core.plan_events import PlanProgress, ReviewVote
from chargehand.core.plans import Obligation
from chargehand.core.records import CheckResult, Reason, Reverted, Verdict
from chargehand.core.state import SETTLED, MissionState
from chargehand.reports.documents import ArtifactEntry, Document, MissionDetails
from chargehand.reports.outcome import FailureDocument, ended_with_report, exported_branch, was_rolled_back
from chargehand.reports.progress.event_text import describe
from chargehand.workspace.depot import Depot, LineCount
from chargehand.workspace.rollback import revert_command

_P = TypeVar("_P", bound=Payload)
_BY_A_PERSON = (
    *(ApprovalGiven, CancelAsked, MessageSent, MissionContinued, MissionPaused, MissionResumed),
    QuestionAnswered,
)
_INTERRUPTIONS = (MissionInterrupted, AttemptResumed, ReplayDiverged)


class AttemptReport(Document, frozen=True):
    """The reasons why an attempt's result was not taken, or remarks about it.

    `verdict` names lost and weakened tests among its findings; `failures` are its failed checks, and a bad end of
    the agent.
    """

    number: int
    verdict: Verdict | None
    failures: tuple[FailureDocument, ...]
    reverted: tuple[Reverted, ...]


class PromotedTree(Document, frozen=True):
    """The last promotion, with the verdict on exactly that tree (null if the log no longer has one).

    `undone_by` is the commit of a roll-back.
    """

    commit: str
    tree: str
    verdict: Verdict | None
    undone_by: str | None


class ReportedEvent(Document, frozen=True):
    """A person's decision, or an interruption of the mission; `text` is the person's full text."""

    time: str
    kind: str
    identity: str | None
    about: str
    text: str


class UndoAdvice(Document, frozen=True):
    """Advice for undoing the mission in its current state; no commands if there is nothing to undo."""

    text: str
    commands: tuple[str, ...]


class TaskReport(Document, frozen=True):
    """One task of a plan: its outcome, the obligations that it `covers`, its missions, and the reviewers' votes.

    `returned` says each time why a result was returned: it did not work together with merged results, or reviewers
    objected. `outcome` and `cost_usd` are null while it runs, and if unknown.
    """

    id: str
    text: str
    covers: tuple[str, ...]
    outcome: str | None
    reason: Reason | None
    returned: tuple[Reason, ...]
    missions: tuple[str, ...]
    commit: str | None
    rolled_back: bool
    reviews: tuple[ReviewVote, ...]
    cost_usd: float | None


class MissionReport(Document, frozen=True):
    """`mission report`: the final report for a person's files. An unknown value is null, never 0 or empty.

    `details` are those of `mission show`. `final` says that the mission will not continue. `files` are null if the
    trees are unreadable. `on_base` is the verdict before any work, `judged_again` those that a person requested.
    """

    mission: str
    status: str
    final: bool
    user: str
    forked_from: str | None
    files: tuple[LineCount, ...] | None
    promoted: PromotedTree | None
    on_base: Verdict | None
    attempts: tuple[AttemptReport, ...]
    judged_again: tuple[Verdict, ...]
    tasks: tuple[TaskReport, ...]
    obligations: tuple[Obligation, ...]
    decisions: tuple[ReportedEvent, ...]
    interruptions: tuple[ReportedEvent, ...]
    evidence: tuple[ArtifactEntry, ...]
    undo: UndoAdvice
    details: MissionDetails


class ReportSource(Struct, frozen=True, kw_only=True):
    """The sources of a report; `explain` describes a failed check with the relevant lines.

    `depot` is `None` if the trees are unreadable.
    """

    state: MissionState
    details: MissionDetails
    events: Sequence[Event]
    files: tuple[LineCount, ...] | None
    evidence: tuple[ArtifactEntry, ...]
    explain: Callable[[CheckResult], FailureDocument]
    depot: Depot | None


def build_report(source: ReportSource) -> MissionReport:
    """Build the report on a mission in its current state."""
    state = source.state
    log = [(line, payload) for line in source.events if (payload := read_payload(line)) is not None]
    given = _payloads(log, VerdictGiven)
    moves = _payloads(log, PromotionDone)
    on_base = [each.verdict for each in given if each.verdict.scope == "base"]
    if state.plan is not None:  # the tips that its tasks are merged with are bases, too
        on_base = [each for each in on_base if state.first_base and each.tree == state.first_base.tree]
    own = [each for each in given if each.verdict.scope != "base"]
    promoted = None
    if moves:
        of_tree = [each.verdict for each in own if each.verdict.tree == moves[-1].tree]
        promoted = PromotedTree(
            commit=moves[-1].commit,
            tree=moves[-1].tree,
            verdict=of_tree[-1] if of_tree else None,
            undone_by=state.commit if was_rolled_back(state) else None,
        )
    known = {attempt.id for attempt in state.attempts}
    return MissionReport(
        mission=state.id,
        status="rolled back" if was_rolled_back(state) else state.status,
        final=state.status in SETTLED - {"waiting", "paused"},
        user=state.user,
        forked_from=state.forked_from,
        files=source.files,
        promoted=promoted,
        on_base=on_base[-1] if on_base else None,
        attempts=tuple(_report_attempts(source, log)),
        judged_again=tuple(each.verdict for each in own if each.attempt not in known),
        tasks=tuple(_report_tasks(state.plan)) if state.plan is not None else (),
        obligations=state.plan.plan.obligations if state.plan is not None else (),
        decisions=tuple(_decisions(state, log)),
        interruptions=tuple(
            ReportedEvent(time=line.time, kind=payload.type, identity=None, about="", text=describe(payload))
            for line, payload in log
            if isinstance(payload, _INTERRUPTIONS)
        ),
        evidence=source.evidence,
        undo=advise_undo(state, source.depot),
        details=source.details,
    )


def _payloads(log: Sequence[tuple[Event, Payload]], kind: type[_P]) -> list[_P]:
    return [payload for _, payload in log if isinstance(payload, kind)]


def _report_attempts(source: ReportSource, log: Sequence[tuple[Event, Payload]]) -> Iterator[AttemptReport]:
    # The mission's own failures are those of its last attempt: the end of the agent is known for that one only.
    ended = [failure for failure in source.details.failures if failure.kind == "agent"]
    for attempt in source.state.attempts:
        given = [each.verdict for each in _payloads(log, VerdictGiven) if each.attempt == attempt.id]
        failed = [check for check in given[-1].checks if check.status != "passed"] if given else []
        reverted = [each.reverted for each in _payloads(log, ChangesReverted) if each.attempt == attempt.id]
        yield AttemptReport(
            number=attempt.number,
            verdict=given[-1] if given else None,
            failures=(*map(source.explain, failed), *(ended if attempt is source.state.attempts[-1] else ())),
            reverted=tuple(path for paths in reverted for path in paths),
        )


def _report_tasks(progress: PlanProgress) -> Iterator[TaskReport]:
    for task in progress.plan.tasks:
        known = progress.tasks[task.id]
        yield TaskReport(
            id=task.id,
            text=task.text,
            covers=task.covers,
            outcome=known.end.outcome if known.end is not None else None,
            reason=known.end.reason if known.end is not None else known.held,
            returned=tuple(each.reason for each in known.returned),
            missions=tuple(run.mission for run in known.runs),
            commit=known.merged[-1].commit if known.merged else None,
            rolled_back=bool(known.rolled_back),
            reviews=tuple(vote for each in known.reviewed for vote in each.votes),
            cost_usd=known.end.cost_usd if known.end is not None else None,
        )


def _decisions(state: MissionState, log: Sequence[tuple[Event, Payload]]) -> Iterator[ReportedEvent]:
    """Yield the decisions of people: approvals, answers, messages, and orders to pause, resume and cancel."""
    for line, payload in log:
        if not isinstance(payload, _BY_A_PERSON) or payload.identity == CLOCK:
            continue
        about = text = ""
        match payload:
            case MessageSent(again=True):
                continue
            case QuestionAnswered():
                asked = state.questions.get(payload.question)
                about, text = asked.text if asked else payload.question, payload.text
            case ApprovalGiven():
                about, text = f"tree {payload.tree}", payload.reason
            case MessageSent():
                text = payload.text
            case MissionContinued():
                about = f"after attempt {payload.after}"
            case MissionPaused():
                text = payload.reason
        yield ReportedEvent(time=line.time, kind=payload.type, identity=payload.identity, about=about, text=text)


def advise_undo(state: MissionState, depot: Depot | None = None) -> UndoAdvice:
    """Return how to undo a mission, with commands that are valid in its current state."""
    branch = exported_branch(state)
    commands: tuple[str, ...] = ()
    if was_rolled_back(state):
        text = "It was rolled back: the branch has the tree of its base again. To take the change in again:"
        commands = (f"chargehand mission promote {state.id}",)
    elif state.commit is not None:
        commands = (f"chargehand mission rollback {state.id}",)
        if state.applied is not None and state.applied.state == "done" and state.promoted_on is not None:
            text = "It was applied to one of your branches. Either adds commits on top; no branch moves back:"
            base = state.promoted_on.commit
            plain = f"git revert {base}..{state.commit}"
            commands += (plain if depot is None else revert_command(depot, base, state.commit),)
        elif branch is not None:
            text = "By a commit on the mission's branch; or delete that branch, if nothing was merged from it:"
            commands += (f"git branch -D {branch}",)
        else:
            text = "By a commit on the mission's branch; nothing was written into your repository:"
    elif state.status in ("planned", "running", "paused"):
        text = "Nothing from it is in your repository yet. To end it:"
        commands = (f"chargehand mission cancel {state.id}",)
    elif state.status == "waiting":
        text = "Nothing from it is in your repository yet. To discard it:"
        commands = (f"chargehand mission discard {state.id}",)
    elif ended_with_report(state):
        text = "There is nothing to undo: it ended with a report and changed no file."
    else:
        text = "There is nothing to undo: your repository is unchanged."
    return UndoAdvice(text=text, commands=commands)
