"""A mission's state as a pure function of its log and of whether a worker holds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from chargehand.core import _payloads as p
from chargehand.core import _payloads_messages as g
from chargehand.core import _payloads_roles as r
from chargehand.core import _payloads_work as w
from chargehand.core._config import Config
from chargehand.core._events import Event, Payload, decode
from chargehand.core._questions import Question
from chargehand.core._records import (
    AttemptStatus,
    Base,
    Checkpoint,
    Export,
    MissionRequest,
    MissionStatus,
    Reason,
    Reverted,
    Verdict,
    VerdictStatus,
)
from chargehand.core._tiers import TierChoice
from chargehand.core._usage import AttemptUsage

SETTLED: frozenset[MissionStatus] = frozenset(
    {"waiting", "paused", "promoted", "refused", "failed", "exhausted", "cancelled", "discarded"}
)
"""Statuses in which no worker goes on by itself: a person (or nobody) acts next."""
_ENDED = SETTLED - {"waiting", "paused"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptState:
    """What is known of one attempt; `cost_usd` is `None` where it is not known.

    `calls` counts its calls to models, `unknown_calls` those of unknown cost, `model` is the last that answered,
    `booked_usd` what the limits count. `reported_usd` and `computed_usd` add up the calls whose cost is known both
    by the provider's word and by tokens and price. `captured` is the artifact that shows what was going on when it
    ended badly.
    """

    id: str
    number: int
    agent: str
    workspace: str
    status: AttemptStatus = "running"
    verdict: VerdictStatus | None = None
    seconds: float | None = None
    cost_usd: float | None = None
    cost_known: bool = False
    calls: int = 0
    model: str | None = None
    booked_usd: float = 0.0
    unknown_calls: int = 0
    reported_usd: float = 0.0
    computed_usd: float = 0.0
    reasons: tuple[Reason, ...] = ()
    captured: str | None = None
    usage: AttemptUsage = field(default_factory=AttemptUsage)


@dataclass(slots=True, kw_only=True)
class NetworkUse:
    """What a mission's sandboxes asked of the network: requests and bytes; `hosts_refused` counts each place."""

    allowed: int = 0
    refused: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    hosts_refused: dict[str, int] = field(default_factory=dict)


_MOST_PLACES = 100


@dataclass(slots=True, kw_only=True)
class MissionState:
    """The one mutable record: changed only by `apply`, event by event.

    `base` is what the last checkpoint stands on: it moves where a branch has moved on, and back with a checkpoint
    of before. `stands` tells it of each checkpoint's commit, `promoted_on` of what is promoted.
    """

    id: str = ""
    project: str = ""
    repository: str = ""
    request: MissionRequest | None = None
    config: Config | None = None
    created: str = ""
    updated: str = ""
    finished: str = ""
    status: MissionStatus = "planned"
    base: Base | None = None
    first_base: Base | None = None
    promoted_on: Base | None = None
    attempts: list[AttemptState] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    checkpoint_seconds: list[float] = field(default_factory=list)
    stands: dict[str, Base] = field(default_factory=dict)
    tier: TierChoice | None = None
    role: r.RoleChosen | None = None
    reports: list[r.ReportMade] = field(default_factory=list)
    sandboxes: list[w.SandboxClosed] = field(default_factory=list)
    network: NetworkUse = field(default_factory=NetworkUse)
    verdicts: list[Verdict] = field(default_factory=list)
    reverted: list[Reverted] = field(default_factory=list)
    conflicts: list[p.MergeConflicted] = field(default_factory=list)
    reasons: tuple[Reason, ...] = ()
    ref: str | None = None
    prepared: p.PromotionPrepared | None = None
    commit: str | None = None
    tree: str | None = None
    signed: str | None = None
    export: Export | None = None
    exported: str | None = None
    applied: Export | None = None
    steps: dict[str, p.StepFinished] = field(default_factory=dict)
    claims: int = 0
    fruitless_claims: int = 0
    program: str = ""
    worker: str | None = None
    worker_before: str | None = None
    at_rest: bool = True
    queued: p.MissionQueued | None = None
    cancel_asked: bool = False
    calls: set[str] = field(default_factory=set)
    questions: dict[str, Question] = field(default_factory=dict)
    forked_from: str | None = None
    user: str = ""
    messages: list[p.MessageSent] = field(default_factory=list)
    delivered: set[str] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)
    received: list[g.MessageReceived] = field(default_factory=list)
    unknown_events: int = 0

    def attempt(self, number: int) -> AttemptState | None:
        """Return the attempt of that number, `None` before it was started."""
        return next((attempt for attempt in self.attempts if attempt.number == number), None)

    @property
    def open_question(self) -> Question | None:
        """What the mission waits for a person to say, `None` where it waits for nothing."""
        if self.status in _ENDED:
            return None
        return next(
            (asked for asked in self.questions.values() if asked.id != p.PROMOTE and not asked.answer), None
        )

    @property
    def waits_for_quota(self) -> Question | None:
        """The question that the clock answers, where the mission waits for that; `None` otherwise."""
        asked = self.open_question if self.status == "waiting" else None
        return asked if asked is not None and asked.until else None

    def seconds_of(self, prefix: str = "") -> float:
        """Return the seconds of the recorded steps below `prefix`; a finished step has those within it."""
        names = [name for name in self.steps if name.startswith(prefix)]
        return sum(self.steps[name].seconds for name in names if not _within(name, self.steps))


def _within(name: str, steps: dict[str, p.StepFinished]) -> bool:
    parts = name.split("/")
    return any("/".join(parts[:count]) in steps for count in range(1, len(parts)))


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
        return msgspec.convert(values, Config)
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
