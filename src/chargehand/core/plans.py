"""Plans: what a request demands, and the tasks that together fulfil it, as a directed acyclic graph."""

from __future__ import annotations

import hashlib
from typing import Literal

from msgspec import Struct, field

from chargehand.core.events import encode_json

# More than this and no person has read it; the log holds the whole plan.
MOST_TASKS = 500

Risk = Literal["low", "medium", "high"]


class Obligation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that the request demands; tasks name in `covers` which of them they fulfil."""

    id: str
    text: str


class Ambiguity(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the request leaves open or contradicts itself in: a person is asked before any work starts.

    `default` counts as the answer where nobody answers in time.
    """

    id: str
    question: str
    options: tuple[str, ...] = ()
    default: str = ""


class Estimate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a task is expected to take, in USD and seconds."""

    usd: float | None = None
    seconds: float | None = None


class Loop(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task that is done again: `most` times in all, while or until a command succeeds on what is merged.

    Without a command it is done `most` times.
    """

    most: int
    while_: str = field(default="", name="while")
    until: str = ""


class Task(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One unit of work, done by a child mission.

    It starts once all tasks in `after` are merged. `areas` are patterns as `--allow` has them: what it may change,
    everything where there are none. `make`, `change` and `delete` name paths or patterns that it is expected to
    touch, `contracts` what others rely on (`api:users`, `event:order.paid`, `schema:orders`). `needs` are
    capabilities that its agent has to announce. `done_when` is a command: where it succeeds before the task
    starts, there is nothing to do. `when` is one too: where it fails, the task is left out, and what comes after
    it goes on. `candidates` agents work on it side by side, each with the next of `models`; the first good result
    is taken. `reviewers` are roles: each looks at a good result before it is merged. Budgets are in USD, `seconds`
    of work; where unset, the mission's own limits hold. `deadline` is in seconds by the plan's clock, from when it
    starts: without a good result by then it is stopped, and a person is asked. `delegated_by` is the task whose
    agent handed it on. The tasks of one `decide` have the same `decision`, the id of the first of them: the `when`
    of that one is asked once for both.
    """

    id: str
    text: str
    after: tuple[str, ...] = ()
    role: str = ""
    agent: str = ""
    models: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    areas: tuple[str, ...] = ()
    make: tuple[str, ...] = ()
    change: tuple[str, ...] = ()
    delete: tuple[str, ...] = ()
    contracts: tuple[str, ...] = ()
    covers: tuple[str, ...] = ()
    acceptance: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    done_when: str = ""
    when: str = ""
    loop: Loop | None = None
    candidates: int = 1
    reviewers: tuple[str, ...] = ()
    attempts: int | None = None
    seconds: float | None = None
    deadline: float | None = None
    budget_usd: float | None = None
    priority: int = 0
    risk: Risk = "low"
    estimate: Estimate | None = None
    delegated_by: str = ""
    decision: str = ""


# Who makes a plan, as a task: its role may name an agent and models of its own.
PLANNER = Task(id="planner", text="", role="planner")


class TeamMember(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who works in a role: what its tasks, and its reviews, take where they say nothing themselves."""

    role: str
    agent: str = ""
    models: tuple[str, ...] = ()
    reviewers: tuple[str, ...] = ()


class Plan(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tasks of a mission, in the order in which they start where nothing else decides.

    `at_once` bounds how many work side by side; with 1, each begins on the result of the one before. Those that
    wait for a person count; fewer than `at_once` whose results wait for their merge do not. 0 is as many as there
    are places, which who waits leaves to others. `team` says who works in which role.
    """

    tasks: tuple[Task, ...]
    obligations: tuple[Obligation, ...] = ()
    ambiguities: tuple[Ambiguity, ...] = ()
    at_once: int = 0
    team: tuple[TeamMember, ...] = ()

    def member(self, role: str) -> TeamMember:
        """Return who works in a role."""
        return next((each for each in self.team if each.role == role), TeamMember(role=role))

    def task(self, id: str) -> Task | None:
        """Return the task of that id, `None` where there is none."""
        return next((task for task in self.tasks if task.id == id), None)


def task_digest(task: Task) -> str:
    """Return what tells a task, as a plan has it, from any other: 16 hex digits of a SHA-256."""
    return hashlib.sha256(encode_json(task)).hexdigest()[:16]


def order_tasks(plan: Plan) -> tuple[str, ...]:
    """Return the ids in an order in which they can be done; raises `graphlib.CycleError`, which has the cycle."""
    from graphlib import TopologicalSorter

    return tuple(TopologicalSorter({task.id: task.after for task in plan.tasks}).static_order())


def predecessors(plan: Plan) -> dict[str, frozenset[str]]:
    """Return, by id, all tasks that are done before each one starts; raises as `order_tasks`."""
    ids = [task.id for task in plan.tasks]
    place = {each: 1 << number for number, each in enumerate(ids)}
    after = {task.id: task.after for task in plan.tasks}
    # As bits: a plan may have as many dependencies as pairs of tasks, each with hundreds before it.
    before: dict[str, int] = {}
    for task in order_tasks(plan):
        before[task] = 0
        for name in after[task]:
            before[task] |= before[name] | place[name]
    return {task: frozenset(each for each in ids if before[task] & place[each]) for task in ids}
