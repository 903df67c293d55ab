"""A mission's state as a pure function of its log and of whether a worker holds it.

`apply` is incremental: it updates a summary (stored as a row) and a whole state by the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from chargehand.core import attempt_events as a
from chargehand.core import mission_events as m
from chargehand.core import plan_events as p
from chargehand.core.codec import convert_to
from chargehand.core.config import Config
from chargehand.core.events import Event, Payload, is_damaged, read_payload
from chargehand.core.records import MissionStatus, Reason
from chargehand.core.state import (
    AttemptState,
    AttemptUsage,
    Ending,
    MissionMeasures,
    MissionState,
    MissionSummary,
    Question,
    RestoredTree,
)

_Handlers = dict[type[Payload], Callable[[Any, Any], None]]
_H = TypeVar("_H", bound=Callable[[Any, Any], None])
_SUMMARY: _Handlers = {}
_STATE: _Handlers = {}
_MEASURES: _Handlers = {}


def _on(handlers: _Handlers, *kinds: type[Payload]) -> Callable[[_H], _H]:
    """Register a handler of these events, for summaries, whole states or measures."""

    def register(handler: _H) -> _H:
        handlers.update(dict.fromkeys(kinds, handler))
        return handler

    return register


def fold(events: Iterable[Event], *, live: bool) -> MissionState:
    """Return the state after `events`; `live` says whether a worker holds the mission right now.

    Events of unknown types, with erased payloads or with unreadable payloads are counted in `unknown_events`.
    """
    state = MissionState()
    for line in events:
        apply(state, line)
    if not live:
        mark_unheld(state)
    return state


def apply(state: MissionSummary, line: Event) -> None:
    """Update a summary or a state by one event."""
    payload = read_payload(line)
    if isinstance(state, MissionState):
        state.count_plan_time(line.time, payload)
    state.count_wait(line.time)
    state.id, state.updated = line.mission, line.time
    state.created = state.created or line.time
    if payload is None:
        state.unknown_events += 1
        state.damaged_events += is_damaged(line)
        return
    # The summary first: handlers of the state read the updated summary, for example a checkpoint's base.
    for handlers in (_SUMMARY, _STATE) if isinstance(state, MissionState) else (_SUMMARY,):
        if handler := handlers.get(type(payload)):
            handler(state, payload)


def measure(measures: MissionMeasures, line: Event) -> None:
    """Update measures by one event."""
    payload = read_payload(line)
    # `None` for an event of a newer version; its type has no handler either.
    if handler := _MEASURES.get(type(payload)):  # type: ignore[arg-type]
        handler(measures, payload)


def unheld_status(state: MissionSummary) -> MissionStatus:
    """Return the status of a mission that no worker holds.

    A mission that should run has lost its worker and is shown as `paused`, or as `cancelled` if a person cancelled
    it: no worker takes it up again, so its end needs no event. A sleeping coordinator needs no worker.
    """
    if state.cancel_asked and state.status in ("running", "paused"):
        return "cancelled"
    return "paused" if state.status == "running" and not state.asleep else state.status


def mark_unheld(state: MissionSummary) -> None:
    """Update a summary or a state for a mission that no worker holds; see `unheld_status`.

    A running attempt becomes `lost`, unless the mission waits: then it continues with the answer.
    """
    state.queued = state.held
    status = unheld_status(state)
    if status == "cancelled" != state.status:
        state.reasons = (state.cancelled_reason,)
    elif status != state.status:
        state.reasons = (Reason(code="worker_lost", message="its worker ended; another one will resume it"),)
    state.status = status
    if status != "waiting":
        state.attempts = [
            replace(attempt, status="lost") if attempt.status == "running" else attempt
            for attempt in state.attempts
        ]


@_on(_SUMMARY, m.MissionCreated)
def _create(state: MissionSummary, event: m.MissionCreated) -> None:
    state.project, state.repository, state.request = event.project, event.repository, event.request
    state.forked_from, state.user = event.forked_from, event.user
    state.parent, state.task = event.parent, event.task
    state.status = "planned"


@_on(_STATE, m.MissionCreated)
def _read_config(state: MissionState, event: m.MissionCreated) -> None:
    state.chosen = event.chosen
    try:
        state.config = convert_to(event.config.get("values"), Config)
    except msgspec.ValidationError:  # another version wrote it
        state.config = None


@_on(_SUMMARY, m.MissionClaimed)
def _claim(state: MissionSummary, event: m.MissionClaimed) -> None:
    state.claims += 1
    state.asleep = False
    state.fruitless_claims += 1  # reset by the next step, so it counts workers that the mission killed
    state.queued = None
    state.program = event.version
    # Only a worker that did not release the mission properly has left anything for the next one to clean up.
    state.worker_before, state.worker = None if state.at_rest else state.worker, event.worker
    state.at_rest = False
    # Any change to a mission claims it too: a promoted mission does not become running by that.
    if state.status == "planned":
        state.status = "running"


@_on(_SUMMARY, m.MissionQueued, m.MissionAdmitted)
def _queue(state: MissionSummary, event: m.MissionQueued | m.MissionAdmitted) -> None:
    state.queued = event if isinstance(event, m.MissionQueued) else None
    if state.held is not None:  # it has not begun, and its worker releases it
        state.status = "planned"
        state.was_held = True
        state.at_rest = True
        state.fruitless_claims = 0


@_on(_SUMMARY, m.MissionReleased)
def _release(state: MissionSummary, event: m.MissionReleased) -> None:
    # A worker that released the mission properly was not killed by it, even without progress.
    state.fruitless_claims = 0
    state.at_rest = True
    if state.status == "running":
        state.status = "planned"


@_on(_STATE, m.MissionWorked)
def _note_time(state: MissionState, event: m.MissionWorked) -> None:
    state.worked_seconds = event.seconds


@_on(_SUMMARY, m.MissionInterrupted)
def _interrupt(state: MissionSummary, event: m.MissionInterrupted) -> None:
    state.fruitless_claims += 1


@_on(_SUMMARY, m.MissionPaused)
def _pause(state: MissionSummary, event: m.MissionPaused) -> None:
    if state.status in ("planned", "running"):
        message = f"{event.identity} paused it" + (f": {event.reason}" if event.reason else "")
        reason = Reason(code="breakpoint" if event.breakpoint else "paused", message=message)
        state.status = "paused"
        state.reasons = (reason,)
        state.queued = None if state.held else state.queued
        state.stops += (event.breakpoint,) if event.breakpoint else ()


@_on(_SUMMARY, m.MissionResumed)
def _resume(state: MissionSummary, event: m.MissionResumed) -> None:
    # Also applies to a running mission: it changes where the mission stops next.
    state.stepping = event.step
    state.to_end = event.to_end or (state.to_end and not event.step)
    if state.status not in ("paused", "failed", "cancelled") and not (state.cancel_asked or state.needs_person):
        return
    state.drop_lapsed_questions()
    # Attempts interrupted together with the mission resume; finished attempts stay finished.
    state.attempts = [
        replace(attempt, status="running", reasons=())
        if attempt.status in ("failed", "cancelled") and attempt.reasons == state.reasons
        else attempt
        for attempt in state.attempts
    ]
    state.status, state.reasons = "running" if event.in_place else "planned", ()
    state.asleep = state.asleep and not event.in_place
    state.finished, state.cancel_asked = "", False
    # A person's resume restarts the count: earlier failures do not end the mission.
    state.fruitless_claims = 0


@_on(_SUMMARY, m.MissionContinued)
def _continue(state: MissionSummary, event: m.MissionContinued) -> None:
    # Interrupted attempts resume, as when a mission is resumed; finished attempts stay finished.
    state.attempts = [
        replace(attempt, status="running", reasons=()) if attempt.number > event.after else attempt
        for attempt in state.attempts
    ]
    state.drop_lapsed_questions()
    if state.request is not None:
        plan_seconds = event.plan_seconds or state.request.plan_seconds
        state.request = replace(
            state.request, attempts=event.attempts, seconds=event.seconds, plan_seconds=plan_seconds
        )
    state.status, state.reasons = "planned", ()
    state.finished, state.cancel_asked = "", False
    state.fruitless_claims = 0


@_on(_STATE, m.MissionContinued)
def _continue_from(state: MissionState, event: m.MissionContinued) -> None:
    state.continued[event.after] = event
    if state.config is not None and event.budget_usd is not None:
        limits = replace(state.config.limits, budget_usd=event.budget_usd)
        state.config = replace(state.config, limits=limits)


@_on(_SUMMARY, m.CancelAsked)
def _ask_cancel(state: MissionSummary, event: m.CancelAsked) -> None:
    state.cancel_asked, state.cancel_why = True, event.reason


@_on(_SUMMARY, m.MissionFinished)
def _finish(state: MissionSummary, event: m.MissionFinished) -> None:
    if event.status != "discarded":  # a later discard by a person uses none of its time
        state.finished = state.updated
    # A second discard keeps the ending from before the first one.
    elif state.before_discard is None:
        then = MissionSummary(status=state.status, reasons=state.reasons, cancel_asked=state.cancel_asked)
        mark_unheld(then)
        state.before_discard = Ending(status=then.status, reasons=then.reasons, base=state.base, tree=state.tree)
    state.cancel_asked = False
    state.queued = None
    state.at_rest = True
    state.asleep = False
    state.status, state.reasons = event.status, event.reasons


@_on(_SUMMARY, m.BaseResolved)
def _set_base(state: MissionSummary, event: m.BaseResolved) -> None:
    state.base = event.base


@_on(_STATE, m.BaseResolved)
def _set_first_base(state: MissionState, event: m.BaseResolved) -> None:
    # A rebase resolves another base later; a resumed mission goes through its steps from this one again.
    state.first_base = event.base if event.begins else state.first_base or event.base


@_on(_SUMMARY, m.StepFinished)
def _note_progress(state: MissionSummary, event: m.StepFinished) -> None:
    state.fruitless_claims = 0


@_on(_STATE, m.StepFinished)
def _keep_step(state: MissionState, event: m.StepFinished) -> None:
    state.steps[event.step] = event


def _change_attempt(state: MissionSummary, id: str | None, **changes: Any) -> None:
    state.attempts = [replace(each, **changes) if each.id == id else each for each in state.attempts]


@_on(_SUMMARY, a.AttemptStarted)
def _start_attempt(state: MissionSummary, event: a.AttemptStarted) -> None:
    # Also after a question: the attempt that continues with its answer reports itself that it runs.
    state.status, state.asleep = "running", False
    started = AttemptState(id=event.attempt, number=event.number, agent=event.agent, workspace=event.workspace)
    state.attempts = [*state.attempts, started]


@_on(_SUMMARY, a.AttemptResumed)
def _resume_attempt(state: MissionSummary, event: a.AttemptResumed) -> None:
    _change_attempt(state, event.attempt, status="running", workspace=event.workspace)


@_on(_SUMMARY, a.StateCaptured)
def _set_captured(state: MissionSummary, event: a.StateCaptured) -> None:
    _change_attempt(state, event.attempt, captured=event.artifact)


@_on(_SUMMARY, m.AttemptFinished)
def _finish_attempt(state: MissionSummary, event: m.AttemptFinished) -> None:
    _change_attempt(
        state,
        event.attempt,
        status=event.status,
        seconds=event.seconds,
        cost_usd=event.cost_usd,
        cost_known=event.cost_known,
        reasons=event.reasons,
        # An attempt that ended before the first claim was copied with the log of the mission forked or followed
        # up.
        copied=state.forked_from is not None and state.claims == 0,
    )


@_on(_SUMMARY, a.ModelCalled)
def _count_call(state: MissionSummary, event: a.ModelCalled) -> None:
    before = next((attempt for attempt in state.attempts if attempt.id == event.attempt), None)
    if event.status == "replayed":  # the call that was paid for is counted already
        _change_attempt(state, event.attempt, model=event.model)
        return
    if before is None or event.call in state.calls:
        return
    state.calls.add(event.call)
    # Only calls with both values: sums over different calls would differ for no reason.
    both = event.reported_usd is not None and event.computed_usd is not None
    # One call of unknown cost makes the attempt's unknown: an unknown cost is not zero.
    known = event.cost_known and (before.cost_known or before.calls == 0)
    _change_attempt(
        state,
        event.attempt,
        calls=before.calls + 1,
        model=event.model if event.status == "ok" else before.model,
        cost_known=known,
        cost_usd=(before.cost_usd or 0.0) + (event.cost_usd or 0.0) if known else None,
        booked_usd=before.booked_usd + event.booked_usd,
        unknown_calls=before.unknown_calls + (not event.cost_known),
        reported_usd=before.reported_usd + (event.reported_usd or 0.0) * both,
        computed_usd=before.computed_usd + (event.computed_usd or 0.0) * both,
    )


@_on(_SUMMARY, m.QuestionAsked)
def _ask(state: MissionSummary, event: m.QuestionAsked) -> None:
    state.questions[event.question] = Question.of(event)


@_on(_SUMMARY, m.QuestionAnswered, m.QuestionExpired)
def _answer(state: MissionSummary, event: m.QuestionAnswered | m.QuestionExpired) -> None:
    asked = state.questions.get(event.question)
    if asked is None or asked.answer is not None:  # the first answer counts
        return
    state.questions[event.question] = asked = asked.after(event)
    # The decision about a tree is made by promoting or discarding it, which have their own events.
    if state.status == "waiting" and asked.id != m.PROMOTE and not asked.lapsed:
        state.status, state.reasons, state.fruitless_claims = "planned", (), 0
        state.finished = ""  # it runs again, and so does its clock


@_on(_STATE, a.TierChosen)
def _set_tier(state: MissionState, event: a.TierChosen) -> None:
    state.tier = event.choice


@_on(_STATE, m.ForecastMade)
def _keep_forecast(state: MissionState, event: m.ForecastMade) -> None:
    state.forecasts.append(event)


@_on(_STATE, a.SandboxOpened)
def _note_kind(state: MissionState, event: a.SandboxOpened) -> None:
    state.sandbox_kinds = list(dict.fromkeys((*state.sandbox_kinds, (event.tier, event.driver))))


@_on(_SUMMARY, a.RoleChosen)
def _set_role(state: MissionSummary, event: a.RoleChosen) -> None:
    state.role = event


@_on(_SUMMARY, a.ReportMade)
def _set_report(state: MissionSummary, event: a.ReportMade) -> None:
    state.report = event


@_on(_STATE, a.ReportMade)
def _keep_report(state: MissionState, event: a.ReportMade) -> None:
    state.reports.append(event)


@_on(_SUMMARY, a.SandboxOpened, a.SandboxClosed, a.NetworkRequested)
def _use(state: MissionSummary, event: a.SandboxOpened | a.SandboxClosed | a.NetworkRequested) -> None:
    def add(usage: AttemptUsage) -> AttemptUsage:
        match event:
            case a.SandboxOpened():
                return usage.with_opened(event)
            case a.SandboxClosed():
                return usage.with_closed(event)
            case a.NetworkRequested():
                return usage.with_request(event)

    if event.attempt is not None:
        state.attempts = [
            replace(each, usage=add(each.usage)) if each.id == event.attempt else each for each in state.attempts
        ]


@_on(_MEASURES, a.SandboxClosed)
def _keep_sandbox(measures: MissionMeasures, event: a.SandboxClosed) -> None:
    measures.sandboxes.append(event)


@_on(_STATE, a.NetworkRequested)
@_on(_MEASURES, a.NetworkRequested)
def _count_request(state: MissionState | MissionMeasures, event: a.NetworkRequested) -> None:
    state.network.count(event)


@_on(_SUMMARY, a.CheckpointMade, m.CheckpointRestored)
def _count_checkpoint(state: MissionSummary, event: a.CheckpointMade | m.CheckpointRestored) -> None:
    state.checkpoint_count += 1


@_on(_STATE, a.CheckpointMade, m.CheckpointRestored)
def _keep_checkpoint(state: MissionState, event: a.CheckpointMade | m.CheckpointRestored) -> None:
    if isinstance(event, m.CheckpointRestored):
        last = state.attempts[-1].number if state.attempts else 0
        state.restored.append(RestoredTree(event.checkpoint, last, len(state.steps)))
    state.keep_checkpoint(event.checkpoint, attempt=event.attempt if isinstance(event, a.CheckpointMade) else None)


@_on(_MEASURES, a.CheckpointMade)
def _time_checkpoint(measures: MissionMeasures, event: a.CheckpointMade) -> None:
    if event.seconds is not None:
        measures.checkpoint_seconds.append(event.seconds)


@_on(_SUMMARY, m.VerdictGiven)
def _judge_attempt(state: MissionSummary, event: m.VerdictGiven) -> None:
    _change_attempt(state, event.attempt, verdict=event.verdict.status)
    if event.verdict.scope != "base":
        state.unread = event.verdict.unread


@_on(_STATE, m.VerdictGiven)
def _keep_verdict(state: MissionState, event: m.VerdictGiven) -> None:
    state.verdicts.append(event.verdict)


@_on(_SUMMARY, m.ChangesReverted)
def _revert(state: MissionSummary, event: m.ChangesReverted) -> None:
    state.reverted = [*state.reverted, *event.reverted]


@_on(_STATE, m.PromotionPrepared)
def _prepare(state: MissionState, event: m.PromotionPrepared) -> None:
    state.prepared = event


@_on(_STATE, m.MergeConflicted)
def _keep_conflict(state: MissionState, event: m.MergeConflicted) -> None:
    state.conflicts.append(event)


@_on(_SUMMARY, m.PromotionDone, m.MissionRolledBack)
def _move_branch(state: MissionSummary, event: m.PromotionDone | m.MissionRolledBack) -> None:
    state.ref, state.commit, state.tree = event.ref, event.commit, event.tree


@_on(_STATE, m.PromotionDone, m.MissionRolledBack)
def _close_promotion(state: MissionState, event: m.PromotionDone | m.MissionRolledBack) -> None:
    state.close_promotion(event.commit, event.tree)
    # A roll-back moves the branch too. `promoted_on` stays, since a roll-back is detected by comparing with it.
    if isinstance(event, m.PromotionDone):
        state.promoted_on = state.base
    elif state.plan is not None:
        state.plan = state.plan.without(event.tasks)


@_on(_STATE, m.HeadSigned)
def _sign(state: MissionState, event: m.HeadSigned) -> None:
    # A failed signature is retried with the next delivery, so the commit must not look signed.
    state.signed = state.signed if event.problem else event.commit


@_on(_SUMMARY, m.ExportChanged)
def _export(state: MissionSummary, event: m.ExportChanged) -> None:
    state.export = event.export
    if event.export.state == "done":
        state.exported = event.commit


@_on(_SUMMARY, m.ApplyChanged)
def _apply_to_branch(state: MissionSummary, event: m.ApplyChanged) -> None:
    state.applied = event.export


@_on(_STATE, m.DeliveryChanged)
def _keep_delivery(state: MissionState, event: m.DeliveryChanged) -> None:
    state.deliveries[event.delivery.target] = event.delivery


@_on(_STATE, m.MessageSent)
def _send(state: MissionState, event: m.MessageSent) -> None:
    if not event.again:  # older logs have no ids
        state.messages.append(replace(event, message=event.message or f"message-{len(state.messages) + 1}"))


@_on(_STATE, a.MessageDelivered, a.MessageAcknowledged)
def _deliver(state: MissionState, event: a.MessageDelivered | a.MessageAcknowledged) -> None:
    (state.delivered if isinstance(event, a.MessageDelivered) else state.acknowledged).add(event.message)


@_on(_STATE, a.MessageReceived)
def _receive(state: MissionState, event: a.MessageReceived) -> None:
    state.received.append(event)


@_on(_STATE, a.MessageUndelivered)
def _fail_delivery(state: MissionState, event: a.MessageUndelivered) -> None:
    state.undelivered[event.message] = event.reason


@_on(_SUMMARY, *p.PLAN_EVENTS)
def _coordinate(state: MissionSummary, event: Payload) -> None:
    state.fruitless_claims = 0  # each of them is progress
    tally = state.tasks or p.TaskTally(total=0)
    match event:
        case p.PlanMade():
            state.tasks = replace(tally, total=len(event.plan.tasks))
        case p.TaskEnded() | p.PlanProposed():
            state.tasks = tally.after(event)
        case p.CoordinatorSlept():
            state.asleep = state.at_rest = True
        case p.CoordinatorWoken():
            state.asleep, state.queued = False, None
            if state.status in ("running", "waiting"):
                state.status, state.reasons = "planned", ()


@_on(_STATE, *p.PLAN_EVENTS)
def _keep_progress(state: MissionState, event: Any) -> None:
    state.half_merged = None if isinstance(event, p.TaskMerged) else state.half_merged
    state.plan = (state.plan or p.PlanProgress()).after(event)


# The types of the events that `measure` handles.
MEASURED = frozenset(kind.type for kind in _MEASURES)
