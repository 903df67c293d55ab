"""The payloads of what a coordinator decides about the tasks of its plan, and what is known of them after that."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.events import Payload, event
from chargehand.core.plans import Plan, Task, task_digest
from chargehand.core.records import Reason

# `merged`: its change is on the coordinator's branch. `done`: there was nothing to do. `left_out`: its condition
# did not hold, or a person said so; what comes after it goes on. `failed`: a person ended the mission over it.
TaskOutcome = Literal["merged", "done", "left_out", "failed"]
# What is tried for a task, in this order: the first run, another approach, another model, several side by side; a
# merge that was not good gives it back to who made it, a loop does it again. After them a person is asked.
Rung = Literal["first", "approach", "model", "best_of", "returned", "loop", "person"]
ReviewDecision = Literal["accepted", "revise", "disputed"]

# The questions about a task, and about what a plan leaves open, begin with these.
TASK_QUESTION, PLAN_QUESTION = "task/", "plan/"


@event("plan.wanted")
class PlanWanted(Payload, frozen=True, kw_only=True):
    """The mission coordinates tasks that nobody named yet: a planner, a child mission, makes its plan first."""


@event("plan.asked")
class PlannerStarted(Payload, frozen=True, kw_only=True):
    """A child mission in the role of a planner makes the plan; `round` counts from 1 how often one was asked."""

    mission: str
    round: int


@event("plan.proposed")
class PlanProposed(Payload, frozen=True, kw_only=True):
    """A planner's mission ended, and cost `cost_usd`, `None` where that is not known.

    `reason` says why its plan cannot be used, and `evidence` is an artifact with that and the plan; a plan that
    can is made with it.
    """

    mission: str
    reason: Reason | None = None
    evidence: str | None = None
    cost_usd: float | None = 0.0


@event("plan.made")
class PlanMade(Payload, frozen=True, kw_only=True):
    """The mission has a plan from here on: its tasks are child missions. A later one takes the place of it."""

    plan: Plan
    identity: str


@event("task.started")
class TaskStarted(Payload, frozen=True, kw_only=True):
    """A child mission works on a task, from `base`, a commit of the coordinator's branch.

    `round` counts from 1 how often the task was begun, `candidate` those that work side by side. `considered`
    tells of each other rung why it was not taken. `due` is the second of the plan's clock at which it is stopped.
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
    due: float | None = None


@event("task.held")
class TaskHeld(Payload, frozen=True, kw_only=True):
    """A task that could start waits: it would touch what another one touches."""

    task: str
    reason: Reason


@event("task.allowed")
class TaskAllowed(Payload, frozen=True, kw_only=True):
    """A person lets a task that is held begin, beside these others that it collides with.

    `digest` is that of the task as the plan has it now, `beside` has those of the others by id: what a person said
    counts for these tasks alone, not for what another plan makes of one of them.
    """

    task: str
    identity: str
    digest: str
    beside: dict[str, str]


class ReviewVote(Struct, frozen=True, kw_only=True):
    """What one reviewer said: `objects` to these `points`, `approves`, or `abstained`, saying nothing that counts.

    `proven`: it added a test that fails, which no vote outweighs.
    """

    mission: str
    role: str
    vote: Literal["approves", "objects", "abstained"]
    points: tuple[str, ...] = ()
    proven: bool = False


@event("task.review_started")
class ReviewStarted(Payload, frozen=True, kw_only=True):
    """A child mission in another role looks at what the child mission `of` made before that is merged: `tree`."""

    task: str
    mission: str
    of: str
    role: str
    tree: str


@event("task.reviewed")
class TaskReviewed(Payload, frozen=True, kw_only=True):
    """What the reviewers of a child mission's result came to.

    `decision` says what becomes of it: it is merged, goes back to who made it, or a person decides. `why` gives
    the rule that decided.
    """

    task: str
    of: str
    decision: ReviewDecision
    why: str
    votes: tuple[ReviewVote, ...]


@event("task.noted")
class TaskNoted(Payload, frozen=True, kw_only=True):
    """What a child mission of a task, or of its review, left for others, by who may read it as in `Completion`."""

    task: str
    mission: str
    notes: dict[str, str]


@event("task.delegated")
class TaskDelegated(Payload, frozen=True, kw_only=True):
    """What a child mission of a task handed on to others became `tasks` of the plan, or was `refused` as a whole.

    The plan that has them is made by an event that follows.
    """

    task: str
    mission: str
    tasks: tuple[str, ...] = ()
    refused: Reason | None = None


@event("task.merged")
class TaskMerged(Payload, frozen=True, kw_only=True):
    """What a child mission promoted is on the coordinator's branch, at `commit`."""

    task: str
    mission: str
    commit: str
    tree: str


@event("task.returned")
class TaskReturned(Payload, frozen=True, kw_only=True):
    """What a child mission promoted is not good together with what was merged before it.

    The next round begins on `base`, with `tree`. `evidence` is an artifact with what is wrong, `paths` are the
    first of the files in which both conflict.
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
    """A task needs nothing more; its child missions cost `cost_usd`, `None` where that is not known of all."""

    task: str
    outcome: TaskOutcome
    reason: Reason | None = None
    cost_usd: float | None = 0.0


@event("plan.slept")
class CoordinatorSlept(Payload, frozen=True, kw_only=True):
    """The coordinator has nothing to decide until one of the child missions of these tasks has news.

    A worker wakes it at `wakes` (ISO 8601, UTC) all the same: a question expires then, a task is overdue, or the
    plan's time is over.
    """

    tasks: tuple[str, ...]
    wakes: str = ""


@event("plan.woken")
class CoordinatorWoken(Payload, frozen=True, kw_only=True):
    """A child mission has news, or it is time: a worker goes on with the coordinator.

    From `idle_since` (ISO 8601, UTC) until now no worker was at work, where that is given: the plan's clock stood
    still.
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
# Where a task's progress keeps all events of a type.
_COLLECTED: dict[type[Payload], str] = {
    ReviewStarted: "reviews",
    TaskReviewed: "reviewed",
    TaskNoted: "noted",
    TaskDelegated: "delegated",
    TaskMerged: "merged",
    TaskReturned: "returned",
}


class TaskProgress(Struct, frozen=True, kw_only=True):
    """What was decided about one task so far."""

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
        """How often it was begun."""
        return self.runs[-1].round if self.runs else 0

    @property
    def current(self) -> tuple[TaskStarted, ...]:
        """The runs of the last round, side by side."""
        return tuple(run for run in self.runs if run.round == self.round)

    @property
    def given_back(self) -> TaskReturned | None:
        """Why the result of the last round was given back, `None` where it was not, or was merged since."""
        back = self.returned[-1] if self.returned else None
        current, merged = {run.mission for run in self.current}, {each.mission for each in self.merged}
        return back if back is not None and back.mission in current - merged else None

    @property
    def conflicts(self) -> frozenset[str]:
        """The files in which its results conflicted with what was merged before them."""
        return frozenset(path for each in self.returned for path in each.paths)

    def reviews_of(self, mission: str) -> tuple[ReviewStarted, ...]:
        """The reviews of what a child mission made."""
        return tuple(each for each in self.reviews if each.of == mission)

    def decision_on(self, mission: str) -> TaskReviewed | None:
        """What the reviewers of a child mission's result came to, `None` before they did."""
        return next((each for each in self.reviewed if each.of == mission), None)

    def after(self, event: Payload) -> TaskProgress:
        """Return it after one more event of the task."""
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
    """A plan and how far its tasks are; it is `wanted` while `planners` have not made one."""

    plan: Plan = Plan(tasks=())
    tasks: dict[str, TaskProgress] = {}
    wanted: bool = False
    planners: tuple[PlannerStarted, ...] = ()

    def after(self, event: Payload) -> PlanProgress:
        """Return it after one more event."""
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
        """Return what was left for readers who go by these names, of tasks that were not rolled back."""
        found = []
        for known in self.tasks.values():
            for noted in () if known.rolled_back else known.noted:
                notes = {reader: text for reader, text in noted.notes.items() if reader in readers}
                found += [replace(noted, notes=notes)] if notes else []
        return tuple(found)

    def is_allowed(self, task: Task, other: Task) -> bool:
        """Tell whether a person lets two tasks, as they are, work side by side."""
        pairs = ((self.tasks.get(one.id), one, two) for one, two in ((task, other), (other, task)))
        return any(
            known is not None
            and known.allowed is not None
            and known.allowed.digest == task_digest(one)
            and known.allowed.beside.get(two.id) == task_digest(two)
            for known, one, two in pairs
        )

    def without(self, tasks: tuple[str, ...]) -> PlanProgress:
        """Return it after these tasks were rolled back."""
        back = {name: replace(self.tasks[name], rolled_back=True) for name in tasks if name in self.tasks}
        return replace(self, tasks={**self.tasks, **back})


class TaskTally(Struct, frozen=True, kw_only=True):
    """How many tasks a plan has, how many of them came to which end, and what those cost; `None`: not known."""

    total: int
    cost_usd: float | None = 0.0
    merged: int = 0
    done: int = 0
    left_out: int = 0
    failed: int = 0

    @property
    def ended(self) -> int:
        """How many tasks need nothing more."""
        return self.merged + self.done + self.left_out + self.failed

    def after(self, event: TaskEnded | PlanProposed) -> TaskTally:
        """Return it with one more task that ended, or with what a planner cost."""
        known = self.cost_usd is not None and event.cost_usd is not None
        cost = (self.cost_usd or 0.0) + (event.cost_usd or 0.0) if known else None
        ended = {event.outcome: getattr(self, event.outcome) + 1} if isinstance(event, TaskEnded) else {}
        return replace(self, **ended, cost_usd=cost)
