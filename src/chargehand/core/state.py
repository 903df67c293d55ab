"""The state of a mission with its attempts and questions; `fold` makes it from the mission's log."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable
from copy import copy
from datetime import datetime
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from chargehand.core import attempt_events as events
from chargehand.core import mission_events as m
from chargehand.core.config import Config
from chargehand.core.events import Payload
from chargehand.core.plan_events import CoordinatorWoken, PlanProgress, TaskMerged, TaskTally
from chargehand.core.records import (
    AttemptStatus,
    Base,
    Checkpoint,
    ChoiceReason,
    Export,
    MissionRequest,
    MissionStatus,
    QuestionKind,
    Reason,
    Reverted,
    TargetDelivery,
    TierChoice,
    Verdict,
    VerdictStatus,
)

_N = TypeVar("_N", int, float)

# The limit of refused places counted separately: trying thousands of ports must not make the state grow.
_MOST_PLACES = 100
# The triggers of checkpoints taken when a mission stops or pauses before its agent has ended.
STOPPED, PAUSED = "stopped", "paused"
# The prefix of a question that asks a person to allow an action. An agent that uses it itself only gets a person.
PERMISSION = "May the agent do this? "


class Question(Struct, frozen=True, kw_only=True):
    """A question to a person, with the answer once given; `tree` is the tree that it is bound to.

    With `until` the mission only waits for the quota of `provider`, or for disk space if that is `DISK`, and the
    clock answers then. Other fields as in `QuestionAsked`; `expired` if no person answered in time.
    """

    id: str
    text: str
    options: tuple[str, ...]
    tree: str
    attempt: str | None
    answer: str | None = None
    until: str = ""
    provider: str = ""
    identity: str = ""
    kind: QuestionKind = "clarification"
    closed: bool = False
    expires: str = ""
    default: str = ""
    expired: bool = False
    meanings: tuple[str, ...] = ()

    @classmethod
    def of(cls, event: m.QuestionAsked) -> Question:
        """Return the question of an event."""
        return cls(
            id=event.question,
            text=event.text,
            options=event.options,
            tree=event.tree,
            attempt=event.attempt,
            until=event.until,
            provider=event.provider,
            kind=event.kind,
            closed=event.closed,
            expires=event.expires,
            default=event.default,
            meanings=event.meanings,
        )

    def after(self, event: m.QuestionAnswered | m.QuestionExpired) -> Question:
        """Return the question answered, or expired."""
        if isinstance(event, m.QuestionAnswered):
            return replace(self, answer=event.text, identity=event.identity)
        return replace(self, answer=event.default or None, identity=m.CLOCK, expired=True)

    @property
    def open(self) -> bool:
        """Whether it has no answer yet and can still be answered."""
        return not self.answer and not self.expired

    @property
    def lapsed(self) -> bool:
        """Whether it expired without an answer and without a default."""
        return self.expired and self.answer is None

    @property
    def deadline(self) -> str:
        """The answer's deadline and the default, in words; "" if it never expires."""
        if not self.expires:
            return ""
        moment = f"{self.expires[:19].replace('T', ' ')} UTC"
        then = f"{self.default!r} counts then" if self.default else "the mission needs a person then"
        return f"to be answered until {moment}; {then}"

    @property
    def asks_permission(self) -> bool:
        """Whether it asks a person for a decision, not for information that an agent wants."""
        return self.attempt is None or self.text.startswith(PERMISSION)

    @property
    def reason(self) -> Reason:
        """The reason for waiting, of a mission that waits for quota."""
        return quota_reason(self.provider, self.until)


# Used as the provider if a mission waits for disk space: reporting and waking work in the same way.
DISK = "the disk"


def quota_reason(provider: str, until: str) -> Reason:
    """Return the reason for waiting for quota, or for disk space; `until` is ISO 8601 in UTC."""
    moment = f"{until[:19].replace('T', ' ')} UTC"
    if provider == DISK:
        message = f"the disk is full: it resumes once there is space, checked from {moment} on"
        return Reason(code="no_space", message=message)
    return Reason(code="quota_exhausted", message=f"waiting for quota of {provider} until {moment}")


class AttemptUsage(Struct, frozen=True, kw_only=True):
    """The resource use of an attempt in its agent's sandboxes; `None` if unknown, never 0 instead.

    Seconds and bytes. `wall_seconds` is the sandboxes' lifetime, `disk_used` the size of the workspace at the end,
    `disk_written` the bytes sent to a disk on the way, `output` the bytes that commands wrote to their streams.
    Peaks are the highest values; with `sampled` the highest measured ones. `network_out` and `network_in` are
    `None` without a network. A sandbox whose worker died reports nothing, so then all sums are unknown.
    """

    opened: int = 0
    closed: int = 0
    wall_seconds: float | None = None
    cpu_seconds: float | None = None
    peak_memory: int | None = None
    peak_processes: int | None = None
    disk_used: int | None = None
    disk_written: int | None = None
    output: int | None = None
    network_out: int | None = None
    network_in: int | None = None
    sampled: bool = False

    def with_opened(self, event: events.SandboxOpened) -> AttemptUsage:
        """Return the usage with one more sandbox."""
        more = replace(self, opened=self.opened + 1)
        if not event.egress:
            return more
        return replace(more, network_out=self.network_out or 0, network_in=self.network_in or 0)

    def with_request(self, event: events.NetworkRequested) -> AttemptUsage:
        """Return the usage with the bytes of one more request, or of requests that were only counted."""
        return replace(
            self,
            network_out=(self.network_out or 0) + event.bytes_out,
            network_in=(self.network_in or 0) + event.bytes_in,
        )

    def with_closed(self, event: events.SandboxClosed) -> AttemptUsage:
        """Return the usage with one more closed sandbox."""
        # A sandbox that was opened before and never closed was lost with its worker, and its figures too: a sum of
        # the others would look like the whole.
        if self.closed + 1 < self.opened:
            unknown = AttemptUsage(network_out=self.network_out, network_in=self.network_in)
            return replace(unknown, opened=self.opened, closed=self.closed + 1)

        def joined(before: _N | None, more: _N | None, join: Callable[[_N, _N], _N]) -> _N | None:
            if self.closed == 0:
                return more
            return None if before is None or more is None else join(before, more)

        return replace(
            self,
            closed=self.closed + 1,
            wall_seconds=joined(self.wall_seconds, event.seconds, operator.add),
            cpu_seconds=joined(self.cpu_seconds, event.cpu_seconds, operator.add),
            peak_memory=joined(self.peak_memory, event.peak_memory, max),
            peak_processes=joined(self.peak_processes, event.peak_processes, max),
            # Not a sum: the sandboxes of an attempt share one workspace.
            disk_used=event.written_bytes,
            disk_written=joined(self.disk_written, event.disk_written, operator.add),
            output=joined(self.output, event.output, operator.add),
            sampled=self.sampled or event.sampled,
        )


# Statuses in which no worker continues by itself: a person (or no one) acts next.
SETTLED: frozenset[MissionStatus] = frozenset(
    {"waiting", "paused", "promoted", "refused", "failed", "exhausted", "cancelled", "discarded"}
)
ENDED = SETTLED - {"waiting", "paused"}  # the mission does not continue, whatever a person answers


class AttemptState(Struct, frozen=True, kw_only=True):
    """The state of one attempt; `cost_usd` is `None` if unknown.

    `calls` counts its calls to models, `unknown_calls` those of unknown cost, `model` is the last that answered,
    `booked_usd` is counted against the limits. `reported_usd` and `computed_usd` add up the calls whose cost is
    known both from the provider's report and from tokens and price. `captured` is the artifact with the state of
    the sandbox when the attempt ended badly. `copied`: it ended in the mission from which this one was forked or
    followed up.
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
    copied: bool = False
    usage: AttemptUsage = AttemptUsage()

    @property
    def ended_well(self) -> bool:
        """Whether later words about its result count: none outweighs a failure or a red verdict."""
        return self.status == "succeeded" and self.verdict != "red"

    @property
    def cost_so_far(self) -> float | None:
        """The cost in USD until now, `None` if unknown: 0 for an open attempt that called no model yet."""
        if self.status in ("running", "lost") and not self.calls:
            return 0.0
        return self.cost_usd if self.cost_known else None


class NetworkUse(Struct, kw_only=True):
    """The network use of a mission's sandboxes: requests and bytes; `hosts_refused` counts refusals by place."""

    allowed: int = 0
    refused: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    # msgspec copies an empty collection given as a default for each struct.
    hosts_refused: dict[str, int] = {}

    def count(self, event: events.NetworkRequested) -> None:
        """Count a request, or requests that were too many to be listed one by one."""
        listed = 0 if event.unlisted else 1
        refused = event.unlisted_refused + listed * (not event.allowed)
        self.refused += refused
        self.allowed += event.unlisted + listed - refused
        self.bytes_out += event.bytes_out
        self.bytes_in += event.bytes_in
        place = f"{event.host}:{event.port}"
        told_apart = place in self.hosts_refused or len(self.hosts_refused) < _MOST_PLACES
        if event.host and not event.allowed and told_apart:
            self.hosts_refused[place] = self.hosts_refused.get(place, 0) + 1


class Ending(Struct, frozen=True, kw_only=True):
    """A discarded mission's state, unheld, before the discard: discarding does not change how it ended."""

    status: MissionStatus
    reasons: tuple[Reason, ...]
    base: Base | None
    tree: str | None


class MissionSummary(Struct, kw_only=True, omit_defaults=True):
    """The part of a mission's state that lists, counts and results show, changed only by `apply`.

    It does not grow with the log. The store keeps it as a row, written in the transaction that appends the lines,
    so no list ever folds a log. `base` is the base of the last checkpoint: it moves when a branch has moved, and
    back when an earlier checkpoint is restored. `unread` comes from the last verdict on a tree other than the
    base. `report` is the last report of a role that changes no files. `calls` are the ids of the counted calls to
    models, so that a call recorded twice is counted once; the store keeps them outside the row. `parent` is the
    coordinator whose `task` the mission does; `tasks` counts those of a coordinator, which is `asleep` while only
    they have work. `stops` are the breakpoints that it reached; it is `stepping` until the next recorded step, or
    runs `to_end` without a stop. `was_held` says that it waited for an earlier mission before it began.
    `waited_seconds` is the time for which it waited or was paused, up to its last event.
    """

    id: str = ""
    project: str = ""
    repository: str = ""
    user: str = ""
    request: MissionRequest | None = None
    forked_from: str | None = None
    parent: str = ""
    task: str = ""
    tasks: TaskTally | None = None
    asleep: bool = False
    created: str = ""
    updated: str = ""
    finished: str = ""
    waited_seconds: float = 0.0
    status: MissionStatus = "planned"
    reasons: tuple[Reason, ...] = ()
    role: events.RoleChosen | None = None
    report: events.ReportMade | None = None
    base: Base | None = None
    attempts: list[AttemptState] = []
    checkpoint_count: int = 0
    reverted: list[Reverted] = []
    unread: tuple[str, ...] | None = None
    ref: str | None = None
    commit: str | None = None
    tree: str | None = None
    export: Export | None = None
    exported: str | None = None
    applied: Export | None = None
    claims: int = 0
    fruitless_claims: int = 0
    program: str = ""
    worker: str | None = None
    worker_before: str | None = None
    at_rest: bool = True
    queued: m.MissionQueued | None = None
    was_held: bool = False
    cancel_asked: bool = False
    cancel_why: str = ""
    stops: tuple[str, ...] = ()
    stepping: bool = False
    to_end: bool = False
    calls: set[str] = set()
    questions: dict[str, Question] = {}
    before_discard: Ending | None = None
    unknown_events: int = 0
    damaged_events: int = 0

    def attempt(self, number: int) -> AttemptState | None:
        """Return the attempt with that number, `None` before it was started."""
        return next((attempt for attempt in self.attempts if attempt.number == number), None)

    @property
    def open_attempts(self) -> tuple[AttemptState, ...]:
        """The attempts that have not ended; they run, or would continue with another worker."""
        return tuple(attempt for attempt in self.attempts if attempt.status in ("running", "lost"))

    @property
    def open_question(self) -> Question | None:
        """The question that a person has to answer, `None` if there is no open question."""
        # It may have been cancelled while it asked: the answer is no longer needed.
        if self.status in ENDED:
            return None
        return next((asked for asked in self.questions.values() if asked.id != m.PROMOTE and asked.open), None)

    @property
    def cancelled_reason(self) -> Reason:
        """The reason for the cancellation: by a person, or by its coordinator with the coordinator's reason."""
        return Reason(code="cancelled", message=self.cancel_why or "a person cancelled the mission")

    @property
    def expiring(self) -> tuple[Question, ...]:
        """The open questions that expire, the earliest first."""
        timed = (asked for asked in self.questions.values() if asked.open and asked.expires)
        return () if self.status in ENDED else tuple(sorted(timed, key=lambda asked: asked.expires))

    @property
    def needs_person(self) -> bool:
        """Whether a question expired without an answer: it is asked again once a person resumes the mission."""
        return any(asked.lapsed for asked in self.questions.values())

    def count_wait(self, now: str) -> None:
        """Add the time up to an event at `now` if the mission waited or was paused."""
        if self.status in ("waiting", "paused") and self.updated:
            with contextlib.suppress(ValueError, TypeError):  # a damaged line
                passed = datetime.fromisoformat(now) - datetime.fromisoformat(self.updated)
                self.waited_seconds += max(0.0, passed.total_seconds())

    def drop_lapsed_questions(self) -> None:
        """Drop the questions that expired without an answer: they are asked again."""
        self.questions = {name: asked for name, asked in self.questions.items() if not asked.lapsed}

    @property
    def held(self) -> m.MissionQueued | None:
        """The wait for an earlier mission, of a mission that has not begun; `None` otherwise."""
        return self.queued if self.queued is not None and self.queued.waits_for == m.MISSIONS else None

    @property
    def waits_for_quota(self) -> Question | None:
        """The question that the clock answers, if the mission waits for one; `None` otherwise."""
        asked = self.open_question if self.status == "waiting" else None
        return asked if asked is not None and asked.until else None


class MissionMeasures(Struct, kw_only=True, omit_defaults=True):
    """The measures of a mission for statistics; kept apart from its summary, since lists would read them with it.

    `checkpoint_seconds` are the recorded durations of checkpoints, in order.
    """

    checkpoint_seconds: list[float] = []
    sandboxes: list[events.SandboxClosed] = []
    network: NetworkUse = field(default_factory=NetworkUse)


class RestoredTree(Struct, frozen=True):
    """A checkpoint that a person made the mission's latest tree.

    `attempt` is the number of the last attempt before it, 0 without one, and `steps` the number of steps recorded
    until then.
    """

    checkpoint: Checkpoint
    attempt: int
    steps: int


class MissionState(MissionSummary, kw_only=True):
    """A mission's summary with everything that grows with its log; made by `fold`.

    `stands` maps a checkpoint's commit to its base; `stopped` maps an attempt that was stopped before its end to
    its tree, as it was then or as a person restored it since. `promoted_on` is the base of the promoted tree,
    `continued` maps the number of an attempt to a person's request to continue after it, `worked_seconds` is the
    used time limit as its workers noted it, `plan` the progress of a coordinator's tasks. `half_merged` is the
    task whose result is on the coordinator's branch without a recorded `task.merged`. `sandbox_kinds` are the
    tiers and drivers of its sandboxes, each pair once. `chosen` are the reasons for its agent and model.
    """

    config: Config | None = None
    chosen: tuple[ChoiceReason, ...] = ()
    forecasts: list[m.ForecastMade] = []
    first_base: Base | None = None
    promoted_on: Base | None = None
    checkpoints: list[Checkpoint] = []
    restored: list[RestoredTree] = []
    stands: dict[str, Base] = {}
    stopped: dict[str, str] = {}
    tier: TierChoice | None = None
    sandbox_kinds: list[tuple[str, str]] = []
    reports: list[events.ReportMade] = []
    network: NetworkUse = field(default_factory=NetworkUse)
    verdicts: list[Verdict] = []
    conflicts: list[m.MergeConflicted] = []
    prepared: m.PromotionPrepared | None = None
    signed: str | None = None
    deliveries: dict[str, TargetDelivery] = {}
    steps: dict[str, m.StepFinished] = {}
    continued: dict[int, m.MissionContinued] = {}
    plan: PlanProgress | None = None
    plan_elapsed: float = 0.0
    worked_seconds: float = 0.0
    half_merged: TaskMerged | None = None
    messages: list[m.MessageSent] = []
    delivered: set[str] = set()
    acknowledged: set[str] = set()
    received: list[events.MessageReceived] = []
    undelivered: dict[str, Reason] = {}

    @property
    def last_verdict(self) -> Verdict | None:
        """The last verdict on a tree of the mission, not on a base."""
        return next((each for each in reversed(self.verdicts) if each.scope != "base"), None)

    def seconds_of(self, prefix: str = "") -> float:
        """Return the seconds of the recorded steps below `prefix`; a finished step includes its nested steps."""
        names = [name for name in self.steps if name.startswith(prefix)]
        return sum(self.steps[name].seconds for name in names if not self._is_nested(name))

    @property
    def seconds_used(self) -> float:
        """The used seconds of the time limit: at least those of the recorded steps."""
        return max(self.worked_seconds, self.seconds_of())

    def keep_checkpoint(self, checkpoint: Checkpoint, *, attempt: str | None) -> None:
        """Add a checkpoint of an attempt, or (`None`) a checkpoint that a person restored."""
        self.checkpoints.append(checkpoint)
        # Restoring a checkpoint restores its base too: promoting it must not remove later commits of the branch.
        if self.base is not None:
            self.stands[checkpoint.commit] = self.base
        if attempt is not None:
            if checkpoint.trigger in (STOPPED, PAUSED):
                self.stopped[attempt] = checkpoint.tree
        # A tree on another base does not fit an attempt, which resumes on the base that it began on.
        elif self.attempts and self.base == self.first_base:
            self.stopped[self.attempts[-1].id] = checkpoint.tree

    def close_promotion(self, commit: str, tree: str) -> None:
        """Clear the journal's entry, since its branch was moved; note a task's result that it merged."""
        before, self.prepared = self.prepared, None
        if before is not None and before.mission:
            self.half_merged = TaskMerged(task=before.task, mission=before.mission, commit=commit, tree=tree)

    def count_plan_time(self, now: str, event: Payload | None) -> None:
        """Add the time up to an event at `now` while a plan is worked on, or sleeps until a task has news.

        The clock stops while people are waited for, and while no worker is at work: from the death of its worker
        to the next claim, and while it slept and no worker ran.
        """
        if self.plan is None or self.status != "running":
            return
        if isinstance(event, m.MissionClaimed) and not self.asleep:
            return
        until = event.idle_since if isinstance(event, CoordinatorWoken) and event.idle_since else now
        with contextlib.suppress(ValueError, TypeError):  # a damaged line
            passed = datetime.fromisoformat(until) - datetime.fromisoformat(self.updated)
            self.plan_elapsed += max(0.0, passed.total_seconds())

    def _is_nested(self, name: str) -> bool:
        parts = name.split("/")
        return any("/".join(parts[:count]) in self.steps for count in range(1, len(parts)))


def total_cost(missions: Iterable[MissionSummary]) -> float | None:
    """Return the cost of missions' attempts in USD so far, `None` if the cost of any call is unknown."""
    costs = [attempt.cost_so_far for mission in missions for attempt in mission.attempts]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


def independent_copy(value: Any) -> Any:
    """Return a copy of a state that `apply` may change while others read the original; frozen parts are shared."""
    if isinstance(value, list | dict | set):
        return value.copy()
    if not isinstance(value, Struct) or value.__struct_config__.frozen:
        return value
    made = copy(value)
    for name in value.__struct_fields__:
        setattr(made, name, independent_copy(getattr(value, name)))
    return made
