"""Plans: the obligations of a request, and the tasks that together fulfil them, as a directed acyclic graph."""

from __future__ import annotations

import hashlib
from typing import Literal

from msgspec import Struct, field

from chargehand.core.events import encode_json

# No person can review a larger plan, and the log holds the whole plan.
MOST_TASKS = 500

Risk = Literal["low", "medium", "high"]


class Obligation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One requirement of the request; tasks list in `covers` those that they fulfil."""

    id: str
    text: str


class Ambiguity(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A gap or contradiction in the request: a person is asked before any work starts.

    `default` counts as the answer if no person answers in time.
    """

    id: str
    question: str
    options: tuple[str, ...] = ()
    default: str = ""


class Estimate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The expected cost of a task, in USD and seconds."""

    usd: float | None = None
    seconds: float | None = None


class Loop(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A repeated task: at most `most` runs, while or until a command succeeds on the merged result.

    Without a command it runs `most` times.
    """

    most: int
    while_: str = field(default="", name="while")
    until: str = ""


class Task(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One unit of work, done by a child mission.

    It starts once all tasks in `after` are merged. `areas` are patterns as for `--allow`: the paths it may change,
    all if empty. `make`, `change` and `delete` are paths or patterns that it is expected to touch, `contracts` are
    interfaces that others rely on (`api:users`, `event:order.paid`, `schema:orders`). `needs` are capabilities
    that its agent has to announce. `done_when` is a command: if it succeeds before the task starts, there is
    nothing to do. `when` is a command too: if it fails, the task is left out, and the tasks after it continue.
    `candidates` agents work on it at the same time, each with the next of `models`; the first good result is
    taken. `reviewers` are roles: each reviews a good result before it is merged. Budgets are in USD, `seconds` are
    of work; if unset, the mission's limits apply. `deadline` is in seconds by the plan's clock, from when the task
    starts: without a good result by then it is stopped, and a person is asked. `delegated_by` is the task whose
    agent delegated it. The tasks of one `decide` share `decision`, the id of the first of them: its `when` is
    evaluated once for both.
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


# The planner, as a task: its role may name its own agent and models.
PLANNER = Task(id="planner", text="", role="planner")


class TeamMember(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The defaults of a role: agent, models and reviewers of its tasks and reviews."""

    role: str
    agent: str = ""
    models: tuple[str, ...] = ()
    reviewers: tuple[str, ...] = ()


class Plan(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tasks of a mission, in the order in which they start if nothing else decides.

    `at_once` bounds how many tasks run at the same time; with 1, each begins on the result of the one before.
    Tasks that wait for a person count; tasks whose results wait for their merge do not, if fewer than `at_once`.
    With 0 there is no bound but the available places, and a waiting task frees its place. `team` has the defaults
    of each role.
    """

    tasks: tuple[Task, ...]
    obligations: tuple[Obligation, ...] = ()
    ambiguities: tuple[Ambiguity, ...] = ()
    at_once: int = 0
    team: tuple[TeamMember, ...] = ()

    def member(self, role: str) -> TeamMember:
        """Return the defaults of a role."""
        return next((each for each in self.team if each.role == role), TeamMember(role=role))

    def task(self, id: str) -> Task | None:
        """Return the task with that id, `None` if missing."""
        return next((task for task in self.tasks if task.id == id), None)


def task_digest(task: Task) -> str:
    """Return a digest that identifies a task's exact content: 16 hex digits of a SHA-256."""
    return hashlib.sha256(encode_json(task)).hexdigest()[:16]


def order_tasks(plan: Plan) -> tuple[str, ...]:
    """Return the ids in a possible order of work; raise `graphlib.CycleError`, which has the cycle."""
    from graphlib import TopologicalSorter

    return tuple(TopologicalSorter({task.id: task.after for task in plan.tasks}).static_order())


def predecessors(plan: Plan) -> dict[str, frozenset[str]]:
    """Return, by id, all tasks that must be done before each one starts; raise as `order_tasks`."""
    ids = [task.id for task in plan.tasks]
    place = {each: 1 << number for number, each in enumerate(ids)}
    after = {task.id: task.after for task in plan.tasks}
    # As bits: a plan may have a dependency for each pair of tasks, with hundreds of tasks before each.
    before: dict[str, int] = {}
    for task in order_tasks(plan):
        before[task] = 0
        for name in after[task]:
            before[task] |= before[name] | place[name]
    return {task: frozenset(each for each in ids if before[task] & place[each]) for task in ids}
