"""Event payloads of a coordinator's decisions about its plan, and the progress folded from them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.events import Payload, event
from chargehand.core.plans import Plan, Task, task_digest
from chargehand.core.records import ChoiceReason, Reason

# `merged`: its change is on the coordinator's branch. `done`: there was nothing to do. `left_out`: its condition
# did not hold, or a person decided so; later tasks continue. `failed`: a person ended the mission because of it.
TaskOutcome = Literal["merged", "done", "left_out", "failed"]
# Ways to run a task, tried in this order: the first run, another approach, another model, several candidates at
# once. A bad merge returns the task to its author, a loop repeats it. In the end a person is asked.
Rung = Literal["first", "approach", "model", "best_of", "returned", "loop", "person"]
ReviewDecision = Literal["accepted", "revise", "disputed"]

# Prefixes of questions about a task, and of questions that a plan leaves open.
TASK_QUESTION, PLAN_QUESTION = "task/", "plan/"


@event("plan.wanted")
class PlanWanted(Payload, frozen=True, kw_only=True):
    """The mission coordinates tasks that are not defined yet: a planner, a child mission, makes its plan first."""


@event("plan.asked")
class PlannerStarted(Payload, frozen=True, kw_only=True):
    """A child mission in the planner's role makes the plan; `round` counts planners from 1."""

    mission: str
    round: int


@event("plan.proposed")
class PlanProposed(Payload, frozen=True, kw_only=True):
    """A planner's mission ended; it cost `cost_usd`, `None` if unknown.

    `reason` says why its plan cannot be used, and `evidence` is an artifact with that reason and the plan. A
    usable plan is recorded by `plan.made` in the same write.
    """

    mission: str
    reason: Reason | None = None
    evidence: str | None = None
    cost_usd: float | None = 0.0


@event("plan.made")
class PlanMade(Payload, frozen=True, kw_only=True):
    """The mission has a plan from here on; its tasks are child missions. A later plan replaces it."""

    plan: Plan
    identity: str


@event("task.started")
class TaskStarted(Payload, frozen=True, kw_only=True):
    """A child mission works on a task, from `base`, a commit of the coordinator's branch.

    `round` counts from 1 how often the task was begun, `candidate` numbers the runs of one round. `considered`
    says for each other rung why it was not chosen, `reasons` has the reasons of the choice as data. `due` is the
    second of the plan's clock at which the run is stopped.
    """

    task: str
    mission: str
    round: int
    rung: Rung
    base: str
    why: str
    candidate: int = 1
    model: str | None = None
    considered: tuple[str, ...] = ()
    reasons: tuple[ChoiceReason, ...] = ()
    due: float | None = None


@event("task.held")
class TaskHeld(Payload, frozen=True, kw_only=True):
    """A task that could start waits: its changes would collide with those of another task."""

    task: str
    reason: Reason


@event("task.allowed")
class TaskAllowed(Payload, frozen=True, kw_only=True):
    """A person allows a held task to begin at the same time as the tasks that it collides with.

    `digest` is that of the task in the current plan, `beside` has those of the others by id: the permission is
    valid for these tasks only, not for changed ones of another plan.
    """

    task: str
    identity: str
    digest: str
    beside: dict[str, str]


class ReviewVote(Struct, frozen=True, kw_only=True):
    """A reviewer's vote: `objects` to these `points`, `approves`, or `abstained`, which does not count.

    `proven`: it added a failing test, which no other vote outweighs.
    """

    mission: str
    role: str
    vote: Literal["approves", "objects", "abstained"]
    points: tuple[str, ...] = ()
    proven: bool = False


@event("task.review_started")
class ReviewStarted(Payload, frozen=True, kw_only=True):
    """A child mission in another role reviews `tree`, the result of child mission `of`, before its merge."""

    task: str
    mission: str
    of: str
    role: str
    tree: str


@event("task.reviewed")
class TaskReviewed(Payload, frozen=True, kw_only=True):
    """The reviewers' decision on a child mission's result.

    By `decision` the result is merged, returned to its author, or put to a person. `why` gives the rule that
    decided.
    """

    task: str
    of: str
    decision: ReviewDecision
    why: str
    votes: tuple[ReviewVote, ...]


@event("task.noted")
class TaskNoted(Payload, frozen=True, kw_only=True):
    """Notes that a child mission of a task, or of its review, left for others, by reader as in `Completion`."""

    task: str
    mission: str
    notes: dict[str, str]


@event("task.delegated")
class TaskDelegated(Payload, frozen=True, kw_only=True):
    """Parts that a child mission delegated became `tasks` of the plan, or were `refused` as a whole.

    A following event has the plan with these tasks.
    """

    task: str
    mission: str
    tasks: tuple[str, ...] = ()
    refused: Reason | None = None


@event("task.merged")
class TaskMerged(Payload, frozen=True, kw_only=True):
    """A child mission's promoted result is on the coordinator's branch, at `commit`."""

    task: str
    mission: str
    commit: str
    tree: str


@event("task.returned")
class TaskReturned(Payload, frozen=True, kw_only=True):
    """A child mission's promoted result does not work together with results merged before it.

    The next round begins on `base`, with `tree`. `evidence` is an artifact with the failures, `paths` are the
    first conflicting files.
    """

    task: str
    mission: str
    reason: Reason
    base: str
    tree: str
    evidence: str
    paths: tuple[str, ...] = ()


@event("task.ended")
class TaskEnded(Payload, frozen=True, kw_only=True):
    """A task needs no more work; its child missions cost `cost_usd`, `None` if a cost is unknown."""

    task: str
    outcome: TaskOutcome
    reason: Reason | None = None
    cost_usd: float | None = 0.0


@event("plan.slept")
class CoordinatorSlept(Payload, frozen=True, kw_only=True):
    """The coordinator has nothing to decide until a child mission of one of these tasks has news.

    A worker wakes it at `wakes` (ISO 8601, UTC) in any case: a question expires then, a task is overdue, or the
    plan's time is over.
    """

    tasks: tuple[str, ...]
    wakes: str = ""


@event("plan.woken")
class CoordinatorWoken(Payload, frozen=True, kw_only=True):
    """A child mission has news, or `wakes` is reached: a worker continues the coordinator.

    If `idle_since` (ISO 8601, UTC) is given, no worker was at work from then until now, and the plan's clock was
    stopped.
    """

    mission: str
    idle_since: str = ""


PLAN_EVENTS: tuple[type[Payload], ...] = (
    PlanWanted,
    PlannerStarted,
    PlanProposed,
    PlanMade,
    TaskStarted,
    TaskHeld,
    TaskAllowed,
    ReviewStarted,
    TaskReviewed,
    TaskNoted,
    TaskDelegated,
    TaskMerged,
    TaskReturned,
    TaskEnded,
    CoordinatorSlept,
    CoordinatorWoken,
)

_OF_TASKS = (
    *(TaskStarted, TaskHeld, TaskAllowed, ReviewStarted, TaskReviewed),
    *(TaskNoted, TaskDelegated, TaskMerged, TaskReturned, TaskEnded),
)
# The field of a task's progress that collects all events of a type.
_COLLECTED: dict[type[Payload], str] = {
    ReviewStarted: "reviews",
    TaskReviewed: "reviewed",
    TaskNoted: "noted",
    TaskDelegated: "delegated",
    TaskMerged: "merged",
    TaskReturned: "returned",
}


class TaskProgress(Struct, frozen=True, kw_only=True):
    """All decisions about one task so far."""

    runs: tuple[TaskStarted, ...] = ()
    merged: tuple[TaskMerged, ...] = ()
    returned: tuple[TaskReturned, ...] = ()
    reviews: tuple[ReviewStarted, ...] = ()
    reviewed: tuple[TaskReviewed, ...] = ()
    noted: tuple[TaskNoted, ...] = ()
    delegated: tuple[TaskDelegated, ...] = ()
    held: Reason | None = None
    allowed: TaskAllowed | None = None
    end: TaskEnded | None = None
    rolled_back: bool = False

    @property
    def round(self) -> int:
        """The number of the last round, 0 before the task was begun."""
        return self.runs[-1].round if self.runs else 0

    @property
    def current(self) -> tuple[TaskStarted, ...]:
        """The concurrent runs of the last round."""
        return tuple(run for run in self.runs if run.round == self.round)

    @property
    def given_back(self) -> TaskReturned | None:
        """Why the last round's result was returned; `None` if it was not returned, or was merged since."""
        back = self.returned[-1] if self.returned else None
        current, merged = {run.mission for run in self.current}, {each.mission for each in self.merged}
        return back if back is not None and back.mission in current - merged else None

    @property
    def conflicts(self) -> frozenset[str]:
        """The files in which its results conflicted with earlier merged results."""
        return frozenset(path for each in self.returned for path in each.paths)

    def reviews_of(self, mission: str) -> tuple[ReviewStarted, ...]:
        """Return the reviews of a child mission's result."""
        return tuple(each for each in self.reviews if each.of == mission)

    def decision_on(self, mission: str) -> TaskReviewed | None:
        """Return the reviewers' decision on a child mission's result, `None` before it."""
        return next((each for each in self.reviewed if each.of == mission), None)

    def after(self, event: Payload) -> TaskProgress:
        """Return the progress after one more event of the task."""
        match event:
            case TaskStarted():
                return replace(self, runs=(*self.runs, event), held=None)
            case TaskHeld():
                return replace(self, held=event.reason)
            case TaskAllowed():
                return replace(self, allowed=event)
            case TaskEnded():
                return replace(self, end=event, held=None)
        name = _COLLECTED.get(type(event), "")
        return replace(self, **{name: (*getattr(self, name), event)}) if name else self


class PlanProgress(Struct, frozen=True, kw_only=True):
    """A plan and the progress of its tasks; `wanted` until one of `planners` has made it."""

    plan: Plan = Plan(tasks=())
    tasks: dict[str, TaskProgress] = {}
    wanted: bool = False
    planners: tuple[PlannerStarted, ...] = ()

    def after(self, event: Payload) -> PlanProgress:
        """Return the progress after one more event."""
        match event:
            case PlanWanted():
                return replace(self, wanted=True)
            case PlannerStarted():
                return replace(self, planners=(*self.planners, event))
            case PlanMade():
                known = {task.id: self.tasks.get(task.id, TaskProgress()) for task in event.plan.tasks}
                return replace(self, plan=event.plan, tasks={**self.tasks, **known}, wanted=False)
        if not isinstance(event, _OF_TASKS):
            return self
        now = self.tasks.get(event.task, TaskProgress()).after(event)
        return replace(self, tasks={**self.tasks, event.task: now})

    def notes_for(self, *readers: str) -> tuple[TaskNoted, ...]:
        """Return the notes for readers with these names, from tasks that were not rolled back."""
        found = []
        for known in self.tasks.values():
            for noted in () if known.rolled_back else known.noted:
                notes = {reader: text for reader, text in noted.notes.items() if reader in readers}
                found += [replace(noted, notes=notes)] if notes else []
        return tuple(found)

    def is_allowed(self, task: Task, other: Task) -> bool:
        """Return whether a person allows two tasks, in their current form, to run at the same time."""
        pairs = ((self.tasks.get(one.id), one, two) for one, two in ((task, other), (other, task)))
        return any(
            known is not None
            and known.allowed is not None
            and known.allowed.digest == task_digest(one)
            and known.allowed.beside.get(two.id) == task_digest(two)
            for known, one, two in pairs
        )

    def without(self, tasks: tuple[str, ...]) -> PlanProgress:
        """Return the progress after these tasks were rolled back."""
        back = {name: replace(self.tasks[name], rolled_back=True) for name in tasks if name in self.tasks}
        return replace(self, tasks={**self.tasks, **back})


class TaskTally(Struct, frozen=True, kw_only=True):
    """The number of tasks of a plan, in all and by outcome, and their cost (`None` if unknown)."""

    total: int
    cost_usd: float | None = 0.0
    merged: int = 0
    done: int = 0
    left_out: int = 0
    failed: int = 0

    @property
    def ended(self) -> int:
        """The number of tasks that need no more work."""
        return self.merged + self.done + self.left_out + self.failed

    def after(self, event: TaskEnded | PlanProposed) -> TaskTally:
        """Return the tally with one more ended task, or with a planner's cost added."""
        known = self.cost_usd is not None and event.cost_usd is not None
        cost = (self.cost_usd or 0.0) + (event.cost_usd or 0.0) if known else None
        ended = {event.outcome: getattr(self, event.outcome) + 1} if isinstance(event, TaskEnded) else {}
        return replace(self, **ended, cost_usd=cost)
