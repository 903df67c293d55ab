"""The inputs of a coordinator's decisions: its plan's progress, its child missions, and people's answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from msgspec import Struct

from chargehand.core.choices import AgentFacts
from chargehand.core.plan_events import TASK_QUESTION, PlanProgress, TaskProgress
from chargehand.core.plans import Task
from chargehand.core.records import MissionStatus, Reason
from chargehand.core.text import format_seconds, shown_path
from chargehand.decisions.decider import Decider

_OPEN: frozenset[MissionStatus] = frozenset({"planned", "running", "waiting", "paused"})


class ChildMission(Struct, frozen=True, kw_only=True):
    """The state of a task's mission; `changes` says whether it promoted a change, `cause` why it did not.

    A mission that is `stopping` was asked to stop and will end shortly.
    """

    id: str
    status: MissionStatus
    stopping: bool = False
    changes: bool = False
    reasons: tuple[Reason, ...] = ()
    cause: str = ""
    question: str = ""

    @property
    def is_open(self) -> bool:
        """Whether it may still produce a result."""
        return self.status in _OPEN


class Ladder(Struct, frozen=True, kw_only=True):
    """The options left for a task: its models in order, and its agents, the assigned one first.

    `has_other` says whether an untried agent has the capabilities that the task needs, `money_left` how much the
    mission's budget has left in USD (`None`: no budget).
    """

    models: tuple[str, ...] = ()
    agents: tuple[AgentFacts, ...] = (AgentFacts(name=""),)
    has_other: bool = False
    money_left: float | None = None


# Returns why two tasks must not work side by side, if so; the second is running.
Collides = Callable[[Task, Task], Reason | None]


class Situation(Struct, frozen=True, kw_only=True):
    """All inputs of a decision; `answers` are a person's, by question, `None` while a question is open.

    Tasks that wait for a person count towards `at_once` only if the plan itself sets that limit (`is_strict`).
    Tasks whose results wait for their merge do not count, as long as they are fewer than `at_once`. `elapsed` is
    the plan's clock: seconds of work on it. `tip` is the commit of the merged results, `changes` returns the paths
    changed by a child mission. `decider` chooses the next round of a task.
    """

    progress: PlanProgress
    children: Mapping[str, ChildMission]
    answers: Mapping[str, str | None]
    at_once: int
    ladders: Callable[[Task], Ladder]
    collides: Collides
    is_strict: bool = True
    elapsed: float = 0.0
    tip: str = ""
    changes: Callable[[str], Collection[str]] = lambda mission: ()
    decider: Decider = Decider()
    project: str = ""
    mission: str = ""

    def of(self, task: str) -> TaskProgress:
        """Return the progress of a task."""
        return self.progress.tasks.get(task, TaskProgress())

    def works(self, task: str) -> bool:
        """Return whether a task was started and has not ended."""
        known = self.of(task)
        return bool(known.runs) and known.end is None

    def runs(self, task: str) -> tuple[ChildMission, ...]:
        """Return the child missions of a task's last round; an unrecorded one counts as open."""
        return tuple(self.child(run.mission) for run in self.of(task).current)

    def child(self, mission: str) -> ChildMission:
        """Return a child mission; an unrecorded one counts as planned."""
        return self.children.get(mission) or ChildMission(id=mission, status="planned")

    def reviews(self, task: str) -> tuple[ChildMission, ...]:
        """Return the child missions that review the results of a task's last round, as `runs` does."""
        current = {run.mission for run in self.of(task).current}
        return tuple(self.child(each.mission) for each in self.of(task).reviews if each.of in current)

    def goes_on(self, task: str) -> bool:
        """Return whether any mission of a task continues by itself, without a person."""
        return any(
            run.is_open and (run.stopping or run.status not in ("waiting", "paused"))
            for run in (*self.runs(task), *self.reviews(task))
        )

    def needs_person(self, task: str) -> bool:
        """Return whether a person is asked about a task, or a child mission of it waits for a person."""
        if self.answers.get(question_about(task, self.of(task).round), "") is None:
            return True
        return any(run.status in ("waiting", "paused") for run in (*self.runs(task), *self.reviews(task)))

    def waits_for_turn(self, task: str) -> bool:
        """Return whether a task waits for others that conflicted with it."""
        held = self.of(task).held
        return held is not None and held.code == "collision_conflict" and not self.needs_person(task)

    def overdue(self, task: Task) -> Reason | None:
        """Return why a task without a good result must stop, `None` before its deadline."""
        known = self.of(task.id)
        due = known.current[-1].due if known.current else None
        if due is None or task.deadline is None or due > self.elapsed:
            return None
        return Reason(code="deadline", message=f"it was not done within {format_seconds(task.deadline)}")

    def due(self, task: Task) -> float | None:
        """Return when a task is overdue if it starts, or is restarted by a person, now."""
        return None if task.deadline is None else self.elapsed + task.deadline


def question_about(task: str, round: int) -> str:
    """Return the id of the question about a task after this many rounds."""
    return f"{TASK_QUESTION}{task}/{round}"


def wait_for_turn(now: Situation, task: Task, changes: Callable[[], Collection[str]]) -> Reason | None:
    """Return why a task with these changed paths waits for conflicting ones, `None` if it is its turn.

    Tasks that conflict in one file are redone one after the other: only one of several could be merged. A task
    that changes such a file for the first time is merged after them, as they would otherwise conflict again.
    """
    order = [each.id for each in now.progress.plan.tasks]
    for other in order:
        known = now.of(other)
        if not known.conflicts or other == task.id or known.end is not None:
            continue
        if known.given_back is not None:
            is_before = not now.of(task.id).conflicts or order.index(other) < order.index(task.id)
            is_first = is_before and not now.needs_person(other)
        else:
            is_first = now.goes_on(other) or not now.needs_person(other)
        shared = next((path for path in changes() if path in known.conflicts), None) if is_first else None
        if shared is not None:
            message = f"task {other} makes its change to {shown_path(shared)} again first"
            return Reason(code="collision_conflict", message=message)
    return None
