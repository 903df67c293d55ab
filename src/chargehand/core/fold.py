"""A mission's state as a pure function of its log and of whether a worker holds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from chargehand.core import attempt_events as g
from chargehand.core import attempt_events as r
from chargehand.core import attempt_events as w
from chargehand.core import mission_events as p
from chargehand.core.codec import convert_to
from chargehand.core.config import Config
from chargehand.core.events import Event, Payload, decode
from chargehand.core.records import Reason
from chargehand.core.state import AttemptState, AttemptUsage, MissionState, Question

_MOST_PLACES = 100


def fold(events: Iterable[Event], *, live: bool) -> MissionState:
    """Return the state after `events`; `live` says whether a worker holds the mission right now.

    A mission that should run and is not held has lost its worker: it is shown as `paused` with the reason
    `worker_lost`, its running attempt as `lost`. Events of unknown types or with erased payloads are counted.
    """
    state = MissionState()
    for line in events:
        apply(state, line)
    if not live:
        state.queued = None
        _mark_lost(state)
    return state


def apply(state: MissionState, line: Event) -> None:
    """Change `state` by one event."""
    state.id, state.updated = line.mission, line.time
    state.created = state.created or line.time
    try:
        payload = decode(line.type, line.payload) if line.payload is not None else None
    except (KeyError, msgspec.ValidationError):  # a newer version's
        payload = None
    if payload is None:
        state.unknown_events += 1
        return
    handler = _HANDLERS.get(type(payload))
    if handler is not None:
        handler(state, payload)


def _mark_lost(state: MissionState) -> None:
    if state.cancel_asked and state.status in ("running", "paused"):
        state.status = "cancelled"
        state.reasons = (Reason(code="cancelled", message="a person cancelled the mission"),)
    if state.status == "running":
        state.status = "paused"
        state.reasons = (Reason(code="worker_lost", message="its worker ended; another one goes on with it"),)
    if state.status == "waiting":  # its attempt goes on with the answer
        return
    state.attempts = [
        replace(attempt, status="lost") if attempt.status == "running" else attempt for attempt in state.attempts
    ]


def _created(state: MissionState, event: p.MissionCreated) -> None:
    state.project, state.repository, state.request = event.project, event.repository, event.request
    state.config = _recorded(event.config.get("values"))
    state.forked_from = event.forked_from
    state.user = event.user
    state.status = "planned"


def _recorded(values: object) -> Config | None:
    """Return the configuration a mission was asked for with; `None` where another version wrote it unreadably."""
    try:
        return convert_to(values, Config)
    except msgspec.ValidationError:
        return None


def _claimed(state: MissionState, event: p.MissionClaimed) -> None:
    state.claims += 1
    state.queued = None
    state.fruitless_claims += 1
    state.program = event.version
    state.worker_before, state.worker = None if state.at_rest else state.worker, event.worker
    state.at_rest = False
    if state.status == "planned":
        state.status = "running"


def _queued(state: MissionState, event: p.MissionQueued) -> None:
    state.queued = event


def _admitted(state: MissionState, event: p.MissionAdmitted) -> None:
    state.queued = None


def _captured(state: MissionState, event: w.StateCaptured) -> None:
    _change_attempt(state, event.attempt, captured=event.artifact)


def _released(state: MissionState, event: p.MissionReleased) -> None:
    state.fruitless_claims = 0
    state.at_rest = True
    if state.status == "running":
        state.status = "planned"


def _paused(state: MissionState, event: p.MissionPaused) -> None:
    if state.status in ("planned", "running"):
        message = f"{event.identity} paused it" + (f": {event.reason}" if event.reason else "")
        state.status, state.reasons = "paused", (Reason(code="paused", message=message),)


def _resumed(state: MissionState, event: p.MissionResumed) -> None:
    if state.status == "paused":
        state.status, state.reasons = "running" if event.in_place else "planned", ()
        state.fruitless_claims = 0


def _cancel_asked(state: MissionState, event: p.CancelAsked) -> None:
    state.cancel_asked = True


def _message(state: MissionState, event: p.MessageSent) -> None:
    if not event.again:  # older logs have no ids
        state.messages.append(replace(event, message=event.message or f"message-{len(state.messages) + 1}"))


def _delivered(state: MissionState, event: g.MessageDelivered) -> None:
    state.delivered.add(event.message)


def _acknowledged(state: MissionState, event: g.MessageAcknowledged) -> None:
    state.acknowledged.add(event.message)


def _undelivered(state: MissionState, event: g.MessageUndelivered) -> None:
    state.undelivered[event.message] = event.reason


def _received(state: MissionState, event: g.MessageReceived) -> None:
    state.received.append(event)


def _base(state: MissionState, event: p.BaseResolved) -> None:
    state.base = event.base
    state.first_base = state.first_base or event.base


def _step(state: MissionState, event: p.StepFinished) -> None:
    state.steps[event.step] = event
    state.fruitless_claims = 0


def _attempt_started(state: MissionState, event: w.AttemptStarted) -> None:
    state.status = "running"
    state.attempts.append(
        AttemptState(id=event.attempt, number=event.number, agent=event.agent, workspace=event.workspace)
    )


def _attempt_resumed(state: MissionState, event: w.AttemptResumed) -> None:
    _change_attempt(state, event.attempt, status="running", workspace=event.workspace)


def _change_attempt(state: MissionState, id: str | None, **changes: Any) -> None:
    state.attempts = [replace(a, **changes) if a.id == id else a for a in state.attempts]


def _attempt_finished(state: MissionState, event: p.AttemptFinished) -> None:
    _change_attempt(
        state,
        event.attempt,
        status=event.status,
        seconds=event.seconds,
        cost_usd=event.cost_usd,
        cost_known=event.cost_known,
        reasons=event.reasons,
    )


def _called(state: MissionState, event: w.ModelCalled) -> None:
    before = next((attempt for attempt in state.attempts if attempt.id == event.attempt), None)
    if event.status == "replayed":  # the call it was paid for is counted already
        _change_attempt(state, event.attempt, model=event.model)
        return
    if before is None or event.call in state.calls:
        return
    state.calls.add(event.call)
    both = event.reported_usd is not None and event.computed_usd is not None
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


def _asked(state: MissionState, event: p.QuestionAsked) -> None:
    state.questions[event.question] = Question(
        id=event.question,
        text=event.text,
        options=event.options,
        tree=event.tree,
        attempt=event.attempt,
        until=event.until,
        provider=event.provider,
    )


def _answered(state: MissionState, event: p.QuestionAnswered) -> None:
    asked = state.questions.get(event.question)
    if asked is None or asked.answer is not None:  # the first answer counts
        return
    state.questions[event.question] = replace(asked, answer=event.text, identity=event.identity)
    if state.status == "waiting" and asked.id != p.PROMOTE:
        state.status, state.reasons, state.fruitless_claims = "planned", (), 0


def _tier(state: MissionState, event: w.TierChosen) -> None:
    state.tier = event.choice


def _role(state: MissionState, event: r.RoleChosen) -> None:
    state.role = event


def _report(state: MissionState, event: r.ReportMade) -> None:
    state.reports.append(event)


def _sandbox_opened(state: MissionState, event: w.SandboxOpened) -> None:
    _use(state, event.attempt, lambda usage: usage.with_opened(event))


def _sandbox_closed(state: MissionState, event: w.SandboxClosed) -> None:
    state.sandboxes.append(event)
    _use(state, event.attempt, lambda usage: usage.with_closed(event))


def _use(state: MissionState, attempt: str | None, add: Callable[[AttemptUsage], AttemptUsage]) -> None:
    if attempt is not None:
        state.attempts = [replace(a, usage=add(a.usage)) if a.id == attempt else a for a in state.attempts]


def _network(state: MissionState, event: w.NetworkRequested) -> None:
    _use(state, event.attempt, lambda usage: usage.with_request(event))
    used = state.network
    listed = 0 if event.unlisted else 1
    refused = event.unlisted_refused + listed * (not event.allowed)
    used.refused += refused
    used.allowed += event.unlisted + listed - refused
    used.bytes_out += event.bytes_out
    used.bytes_in += event.bytes_in
    place = f"{event.host}:{event.port}"
    if (
        event.host
        and not event.allowed
        and (place in used.hosts_refused or len(used.hosts_refused) < _MOST_PLACES)
    ):
        used.hosts_refused[place] = used.hosts_refused.get(place, 0) + 1


def _checkpoint(state: MissionState, event: w.CheckpointMade | p.CheckpointRestored) -> None:
    state.checkpoints.append(event.checkpoint)
    if state.base is not None:
        state.stands[event.checkpoint.commit] = state.base
    if isinstance(event, w.CheckpointMade) and event.seconds is not None:
        state.checkpoint_seconds.append(event.seconds)


def _verdict(state: MissionState, event: p.VerdictGiven) -> None:
    state.verdicts.append(event.verdict)
    _change_attempt(state, event.attempt, verdict=event.verdict.status)


def _reverted(state: MissionState, event: p.ChangesReverted) -> None:
    state.reverted.extend(event.reverted)


def _prepared(state: MissionState, event: p.PromotionPrepared) -> None:
    state.prepared = event


def _conflicted(state: MissionState, event: p.MergeConflicted) -> None:
    state.conflicts.append(event)


def _promoted(state: MissionState, event: p.PromotionDone) -> None:
    state.prepared, state.promoted_on = None, state.base
    state.ref, state.commit, state.tree = event.ref, event.commit, event.tree


def _rolled_back(state: MissionState, event: p.MissionRolledBack) -> None:
    state.prepared = None
    state.ref, state.commit, state.tree = event.ref, event.commit, event.tree


def _signed(state: MissionState, event: p.HeadSigned) -> None:
    state.signed = state.signed if event.problem else event.commit


def _exported(state: MissionState, event: p.ExportChanged) -> None:
    state.export = event.export
    if event.export.state == "done":
        state.exported = event.commit


def _applied(state: MissionState, event: p.ApplyChanged) -> None:
    state.applied = event.export


def _finished(state: MissionState, event: p.MissionFinished) -> None:
    state.cancel_asked = False
    state.queued = None
    state.at_rest = True
    if event.status != "discarded":  # what a person thinks of it later takes none of its time
        state.finished = state.updated
    state.status, state.reasons = event.status, event.reasons


_HANDLERS: dict[type[Payload], Callable[[MissionState, Any], None]] = {
    p.MissionCreated: _created,
    p.BaseResolved: _base,
    p.StepFinished: _step,
    w.AttemptStarted: _attempt_started,
    p.MissionClaimed: _claimed,
    p.MissionReleased: _released,
    p.MissionPaused: _paused,
    p.MissionResumed: _resumed,
    p.MissionQueued: _queued,
    p.MissionAdmitted: _admitted,
    w.StateCaptured: _captured,
    p.CancelAsked: _cancel_asked,
    p.MessageSent: _message,
    g.MessageDelivered: _delivered,
    g.MessageAcknowledged: _acknowledged,
    g.MessageReceived: _received,
    g.MessageUndelivered: _undelivered,
    w.AttemptResumed: _attempt_resumed,
    p.AttemptFinished: _attempt_finished,
    w.ModelCalled: _called,
    p.QuestionAsked: _asked,
    p.QuestionAnswered: _answered,
    w.TierChosen: _tier,
    r.RoleChosen: _role,
    r.ReportMade: _report,
    w.SandboxOpened: _sandbox_opened,
    w.SandboxClosed: _sandbox_closed,
    w.NetworkRequested: _network,
    w.CheckpointMade: _checkpoint,
    p.CheckpointRestored: _checkpoint,
    p.VerdictGiven: _verdict,
    p.ChangesReverted: _reverted,
    p.MergeConflicted: _conflicted,
    p.PromotionPrepared: _prepared,
    p.PromotionDone: _promoted,
    p.MissionRolledBack: _rolled_back,
    p.HeadSigned: _signed,
    p.ExportChanged: _exported,
    p.ApplyChanged: _applied,
    p.MissionFinished: _finished,
}
