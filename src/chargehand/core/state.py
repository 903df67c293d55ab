"""What is known of a mission, its attempts and its open question; `fold` makes it of the mission's log."""

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
    Export,
    MissionRequest,
    MissionStatus,
    QuestionKind,
    Reason,
    Reverted,
    TierChoice,
    Verdict,
    VerdictStatus,
)

_N = TypeVar("_N", int, float)

# Refused places that are told apart: whoever tries thousands of ports must not make the state grow.
_MOST_PLACES = 100
# How a question begins that asks a person to allow an act. An agent that begins its own so only gets a person.
# The triggers of the checkpoints that are taken when a mission stops, or is paused, before its agent has ended.
STOPPED, PAUSED = "stopped", "paused"
PERMISSION = "May the agent do this? "


class Question(Struct, frozen=True, kw_only=True):
    """Something a person was asked, and the answer once there is one; `tree` is what it is bound to.

    With `until` it is no more than waiting for the quota of `provider`, or for room where that is `DISK`, and the
    clock answers then. The rest as in `QuestionAsked`; `expired` where nobody answered in time.
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

    @classmethod
    def of(cls, event: m.QuestionAsked) -> Question:
        """Return a question as it was asked."""
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
        )

    def after(self, event: m.QuestionAnswered | m.QuestionExpired) -> Question:
        """Return it answered, or expired."""
        if isinstance(event, m.QuestionAnswered):
            return replace(self, answer=event.text, identity=event.identity)
        return replace(self, answer=event.default or None, identity=m.CLOCK, expired=True)

    @property
    def open(self) -> bool:
        """Whether nobody answered it yet, and it can be answered."""
        return not self.answer and not self.expired

    @property
    def lapsed(self) -> bool:
        """Whether nobody answered in time and nothing counts in place of an answer."""
        return self.expired and self.answer is None

    @property
    def deadline(self) -> str:
        """Until when it can be answered and what counts then, in words; "" where it can be for ever."""
        if not self.expires:
            return ""
        moment = f"{self.expires[:19].replace('T', ' ')} UTC"
        then = f"{self.default!r} counts then" if self.default else "the mission needs a person then"
        return f"to be answered until {moment}; {then}"

    @property
    def asks_permission(self) -> bool:
        """Whether a person is asked to decide, and not what an agent wants to know."""
        return self.attempt is None or self.text.startswith(PERMISSION)

    @property
    def reason(self) -> Reason:
        """Why the mission waits where it waits for quota."""
        return quota_reason(self.provider, self.until)


# Stands for the provider where a mission waits until there is room: that is told and woken in the same way.
DISK = "the disk"


def quota_reason(provider: str, until: str) -> Reason:
    """Return why a mission waits for quota, or for room on the disk; `until` is ISO 8601 in UTC."""
    moment = f"{until[:19].replace('T', ' ')} UTC"
    if provider == DISK:
        message = f"there is no room: it goes on once there is, which is looked for from {moment} on"
        return Reason(code="no_space", message=message)
    return Reason(code="quota_exhausted", message=f"waiting for quota of {provider} until {moment}")


class AttemptUsage(Struct, frozen=True, kw_only=True):
    """What an attempt took in the sandboxes of its agent, `None` for what is not known: never 0 instead.

    Seconds and bytes. `wall_seconds` is the time sandboxes stood, `disk_used` what lay in the workspace at the
    end, `disk_written` what went to a disk on the way, `output` what commands wrote to their streams. Peaks are
    the most at once; with `sampled` the most that was measured. `network_out` and `network_in` are `None`
    where there was no network. A sandbox whose worker died tells nothing: then nothing is known of any sum.
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
        """Return it with one more sandbox."""
        more = replace(self, opened=self.opened + 1)
        if not event.egress:
            return more
        return replace(more, network_out=self.network_out or 0, network_in=self.network_in or 0)

    def with_request(self, event: events.NetworkRequested) -> AttemptUsage:
        """Return it with the bytes of one more request, or of those that were only counted."""
        return replace(
            self,
            network_out=(self.network_out or 0) + event.bytes_out,
            network_in=(self.network_in or 0) + event.bytes_in,
        )

    def with_closed(self, event: events.SandboxClosed) -> AttemptUsage:
        """Return it with what one more sandbox took."""
        # One that was opened before and never closed was lost with its worker, and what it took with it: a sum of
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
            # No sum: the sandboxes of an attempt show one workspace.
            disk_used=event.written_bytes,
            disk_written=joined(self.disk_written, event.disk_written, operator.add),
            output=joined(self.output, event.output, operator.add),
            sampled=self.sampled or event.sampled,
        )


# Statuses in which no worker goes on by itself: a person (or nobody) acts next.
SETTLED: frozenset[MissionStatus] = frozenset(
    {"waiting", "paused", "promoted", "refused", "failed", "exhausted", "cancelled", "discarded"}
)
ENDED = SETTLED - {"waiting", "paused"}  # nothing of it goes on, whatever a person answers


class AttemptState(Struct, frozen=True, kw_only=True):
    """What is known of one attempt; `cost_usd` is `None` where it is not known.

    `calls` counts its calls to models, `unknown_calls` those of unknown cost, `model` is the last that answered,
    `booked_usd` what the limits count. `reported_usd` and `computed_usd` add up the calls whose cost is known both
    by the provider's word and by tokens and price. `captured` is the artifact that shows what was going on when it
    ended badly. `copied`: it ended in the mission that this one goes on from.
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
    def cost_so_far(self) -> float | None:
        """The cost in USD until now, `None` if it is not known: 0 for an open attempt that called no model yet."""
        if self.status in ("running", "lost") and not self.calls:
            return 0.0
        return self.cost_usd if self.cost_known else None


class NetworkUse(Struct, kw_only=True):
    """What a mission's sandboxes asked of the network: requests and bytes; `hosts_refused` counts each place."""

    allowed: int = 0
    refused: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    # A default that is an empty collection msgspec copies for each struct.
    hosts_refused: dict[str, int] = {}

    def count(self, event: events.NetworkRequested) -> None:
        """Count a request, or those that were too many to be listed one by one."""
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
    """How a mission stood, held by nobody, when a person discarded it: discarding does not change how it ended."""

    status: MissionStatus
    reasons: tuple[Reason, ...]
    base: Base | None
    tree: str | None


class MissionSummary(Struct, kw_only=True, omit_defaults=True):
    """What lists, counts and results tell of a mission, changed only by `apply`; it does not grow with its log.

    The store keeps it as a row, written in the transaction that appends the lines, so no list ever folds a log.
    `base` is what the last checkpoint stands on: it moves where a branch has moved on, and back with a checkpoint
    of before. `unread` is that of the last verdict on a tree of its own. `report` is the last one of a role that
    changes nothing. `calls` are the ids of the counted calls to models, so that a call told of twice is counted
    once; the store keeps them beside the row. `parent` is the coordinator whose `task` the mission does; `tasks`
    counts those of a coordinator, which is `asleep` while only they have something to do. `stops` are the
    breakpoints that it met; it is `stepping` until the next recorded step, or goes `to_end` without a stop. It
    `was_held` where it waited for an earlier mission before it began. `waited_seconds` are those for which it
    waited or was paused, up to its last event.
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
        """Return the attempt of that number, `None` before it was started."""
        return next((attempt for attempt in self.attempts if attempt.number == number), None)

    @property
    def open_attempts(self) -> tuple[AttemptState, ...]:
        """The attempts that have no end yet; they run, or would go on with another worker."""
        return tuple(attempt for attempt in self.attempts if attempt.status in ("running", "lost"))

    @property
    def open_question(self) -> Question | None:
        """What the mission waits for a person to say, `None` where it waits for nothing."""
        # It may have been cancelled while it asked: nobody needs the answer.
        if self.status in ENDED:
            return None
        return next((asked for asked in self.questions.values() if asked.id != m.PROMOTE and asked.open), None)

    @property
    def cancelled_reason(self) -> Reason:
        """Why the mission was cancelled: a person wanted it, or its coordinator, which said why."""
        return Reason(code="cancelled", message=self.cancel_why or "a person cancelled the mission")

    @property
    def expiring(self) -> tuple[Question, ...]:
        """The open questions that expire, the first one first."""
        timed = (asked for asked in self.questions.values() if asked.open and asked.expires)
        return () if self.status in ENDED else tuple(sorted(timed, key=lambda asked: asked.expires))

    @property
    def needs_person(self) -> bool:
        """Whether a question expired without an answer: it is asked again once a person resumes the mission."""
        return any(asked.lapsed for asked in self.questions.values())

    def count_wait(self, now: str) -> None:
        """Count what passed until an event at `now` if the mission waited, for a person most of the time."""
        if self.status in ("waiting", "paused") and self.updated:
            with contextlib.suppress(ValueError, TypeError):  # a damaged line
                passed = datetime.fromisoformat(now) - datetime.fromisoformat(self.updated)
                self.waited_seconds += max(0.0, passed.total_seconds())

    def drop_lapsed_questions(self) -> None:
        """Forget the questions that nobody answered in time: who asked them asks again."""
        self.questions = {name: asked for name, asked in self.questions.items() if not asked.lapsed}

    @property
    def held(self) -> m.MissionQueued | None:
        """What a mission that has not begun waits for, where that is an earlier mission; `None` otherwise."""
        return self.queued if self.queued is not None and self.queued.waits_for == m.MISSIONS else None

    @property
    def waits_for_quota(self) -> Question | None:
        """The question that the clock answers, where the mission waits for that; `None` otherwise."""
        asked = self.open_question if self.status == "waiting" else None
        return asked if asked is not None and asked.until else None


class MissionMeasures(Struct, kw_only=True, omit_defaults=True):
    """What statistics count of a mission; kept apart from its summary, which lists would have to read with it.

    `checkpoint_seconds` are those of the checkpoints that say how long they took, in order.
    """

    checkpoint_seconds: list[float] = []
    sandboxes: list[events.SandboxClosed] = []
    network: NetworkUse = field(default_factory=NetworkUse)


class RestoredTree(Struct, frozen=True):
    """A checkpoint that a person made of a mission's last tree.

    `attempt` is the number of the last attempt before it, 0 without one, and `steps` the number of steps recorded
    until then.
    """

    checkpoint: Checkpoint
    attempt: int
    steps: int


class MissionState(MissionSummary, kw_only=True):
    """A mission's summary with everything that grows with its log; made by `fold`.

    `stands` tells the base of each checkpoint's commit, `stopped` the tree of each attempt that was stopped before
    its end, as it was then or as a person restored it since, `promoted_on` that of what is promoted, `continued`
    after which attempts a person wanted another one, `worked_seconds` what its workers noted of its time limit,
    `plan` how far a coordinator's tasks are, `half_merged` the task whose result is on its branch although no
    `task.merged` says so yet, `sandbox_kinds` the tiers and drivers of its sandboxes, each pair once.
    """

    config: Config | None = None
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
        """The last verdict on a tree of the mission's own, not on a base."""
        return next((each for each in reversed(self.verdicts) if each.scope != "base"), None)

    def seconds_of(self, prefix: str = "") -> float:
        """Return the seconds of the recorded steps below `prefix`; a finished step has those within it."""
        names = [name for name in self.steps if name.startswith(prefix)]
        return sum(self.steps[name].seconds for name in names if not self._is_nested(name))

    @property
    def seconds_used(self) -> float:
        """The seconds of the time limit that are used: at least those of the recorded steps."""
        return max(self.worked_seconds, self.seconds_of())

    def keep_checkpoint(self, checkpoint: Checkpoint, *, attempt: str | None) -> None:
        """Add a checkpoint of an attempt, or (`None`) one that a person restored."""
        self.checkpoints.append(checkpoint)
        # Restoring a checkpoint brings its base back: promoting it must not take off what the branch got since.
        if self.base is not None:
            self.stands[checkpoint.commit] = self.base
        if attempt is not None:
            if checkpoint.trigger in (STOPPED, PAUSED):
                self.stopped[attempt] = checkpoint.tree
        # A tree on another base does not fit an attempt, which resumes on the base that it began on.
        elif self.attempts and self.base == self.first_base:
            self.stopped[self.attempts[-1].id] = checkpoint.tree

    def close_promotion(self, commit: str, tree: str) -> None:
        """Forget the journal's entry: its branch is moved, for the result of a task where it says so."""
        before, self.prepared = self.prepared, None
        if before is not None and before.mission:
            self.half_merged = TaskMerged(task=before.task, mission=before.mission, commit=commit, tree=tree)

    def count_plan_time(self, now: str, event: Payload | None) -> None:
        """Count what passed until an event at `now`: while a plan is worked on, or sleeps until a task has news.

        It stands still while people are waited for, and while no worker is at work: from the death of the one that
        had it to the next claim, and as long as it slept and there was none.
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
    """Return what the attempts of missions cost in USD so far, `None` if the cost of any call is not known."""
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
